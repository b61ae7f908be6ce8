"""A Sphinx extension for the guide: views and numbers on its pages are computed from trained models during the build.

    {look}    shows a line of Python and the interactive view of its result
    {value}   inserts the value of an expression into a sentence
    {try}     shows commands; RUN, TRANSLATOR and CLASSIFIER become the folders of the runs

Formulas become MathML, which browsers draw without a script. Options (-D): `runs` is the folder that make_run.py
filled; `run` and `text` are a reader's own run and a text for it.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole
from sphinx.writers.html5 import HTML5Translator

import penwright
from penwright.config import DecodingSettings, ModelSettings
from penwright.decoding.sampling.sampler import Sampling
from penwright.generation.generator import Generator
from penwright.inspection import Inspector, view
from penwright.inspection.heads import parse_head
from penwright.inspection.views import labels, one_head
from penwright.model import make_model
from penwright.run.checkpoints import Record
from penwright.run.folder import Run
from penwright.views import View
from penwright.views.ink import label

USUAL_TEXTS = {
    "writer": "If the name is not defined, an exception is raised",
    "translator": "am Freitag, dem 17. Mai 1991",
    "classifier": "the third of May",
}
LONGEST = 60  # characters of a sample that is used as the text; tables of all its tokens stay readable


@cache
def names(runs: str, run: str, text: str) -> dict[str, Any]:
    """Return the names that expressions on the pages may use. A reader's run replaces the run of the same shape."""
    folders, texts = {name: Path(runs) / name for name in (*USUAL_TEXTS, "crammer")}, dict(USUAL_TEXTS)
    shape = penwright.inspect(penwright.load(run)).shape if run else "writer"
    if run:
        folders[shape] = Path(run)
    texts[shape] = text or (_sample(Path(run)) if run else "") or texts[shape]
    looks = {name: penwright.inspect(penwright.load(folders[name])) for name in texts}
    look = looks["writer"]
    helpers = (curves, cut, labels, log, matrix, parameters, reshaped, schedule, score, strongest, written)
    return {
        **looks,
        **{each.__name__: each for each in helpers},
        "folders": folders,
        "text": texts["writer"],
        "german": texts["translator"],
        "english": looks["translator"].application.translate([texts["translator"]])[0].text,
        "line": texts["classifier"],
        "settings": look.model.settings,
        "head": strongest(look, "previous", texts["writer"]),
        "ending": _ending(folders["writer"]) or texts["writer"],
        "crammed": len(_whole(folders["crammer"])),
        "seconds": {name: round(_metrics(folders[name])[-1]["seconds"]) for name in folders},
        "classic": _classic(look),
        "DecodingSettings": DecodingSettings,
        "usual": DecodingSettings(temperature=0.7, top_p=0.9, max_new_tokens=40),
    }


def _sample(run: Path) -> str:
    """Return the beginning of the prompt of the last sample of a run."""
    prompts = [record["prompt"] for record in Run.open(run).records("samples.jsonl")]
    return str(prompts[-1])[:LONGEST].strip() if prompts else ""


def _whole(folder: Path) -> str:
    """Return the first file that a run was trained on; an empty text if it is gone."""
    path = Path(Run.open(folder).recipe.data.train[0])
    return path.read_text("utf-8", errors="replace") if path.is_file() else ""


def _ending(folder: Path, n_characters: int = 12_000) -> str:
    """Return the end of the text of a run. The end of a single text is held out, so the writer has not seen it."""
    return _whole(folder)[-n_characters:]


def _metrics(folder: Path) -> Sequence[Record]:
    return Run.open(folder).records("metrics.jsonl")


def _classic(look: Inspector) -> Inspector:
    """Return an untrained writer with sinusoidal positions, as in the paper."""
    settings = ModelSettings.model_validate({"d_model": 64, "n_layers": 1, "positions": {"type": "sinusoidal"}})
    model = make_model("generate", look.tokenizer.vocab_size, settings)
    return penwright.inspect(Generator(model, look.tokenizer))  # type: ignore[arg-type]  # of this task


def curves(folders: Sequence[Path], score: str = "nats per token") -> View:
    """Return the curves of a held-out score by step."""
    found = {folder.name: _metrics(folder) for folder in folders}
    runs = [
        {"name": name, "x": [record["step"] for record in records], "y": [record[score] for record in records]}
        for name, records in found.items()
    ]
    return View("curves", {"runs": runs, "x_label": "step", "y_label": f"{score}, held out"})


def schedule(folder: Path, total_steps: int = 200) -> View:
    """Return the curve of the learning-rate factor in a run of this many steps."""
    steps = np.arange(total_steps)
    factors = [Run.open(folder).recipe.schedule.factor(step, total_steps) for step in steps.tolist()]
    run = {"name": "learning rate", "x": steps, "y": np.array(factors)}
    return View("curves", {"runs": [run], "x_label": "step", "y_label": "part of the peak learning rate"})


def strongest(look: Inspector, statistic: str, text: str, part: int = 0) -> str:
    """Return the name of the head with the highest value of a statistic on a text."""
    found = look.head_statistics(text)[part]
    values = np.nan_to_num(getattr(found, statistic), nan=-1.0)
    row, number = divmod(int(values.argmax()), values.shape[1])
    return f"{found.name}.{found.layers[row]}.{number}"


def matrix(look: Inspector, head: str, text: str) -> View:
    """Return the view of one head as a matrix."""
    chosen = parse_head(head, look.model)
    return one_head(look.attention(text, layers=[chosen.layer]), chosen)


def reshaped(look: Inspector, text: str, settings: DecodingSettings, k: int = 8) -> View:
    """Return a view of the most likely next tokens before and after the sampling settings."""
    import torch  # noqa: PLC0415 (most pages do not need it)

    found = look.token_scores(text, k=len(look.words)).next
    logits = torch.from_numpy(np.log(found.probabilities))[None]
    after = Sampling(settings=settings).reshape(logits).softmax(-1)[0].tolist()
    rows = list(zip(found.texts, found.ids.tolist(), found.probabilities.tolist(), after, strict=True))[:k]
    before = [{"text": text, "id": token, "probability": p} for text, token, p, _ in rows]
    drawn = [{"text": text, "id": token, "probability": p} for text, token, _, p in rows if p > 0]
    return View("candidates", {"before": before, "after": drawn})


def written(look: Inspector, text: str, settings: DecodingSettings) -> str:
    """Return the text with a completion."""
    assert isinstance(look.application, Generator)
    return text + look.application.generate(text, settings)[0].text


def cut(look: Inspector, text: str) -> str:
    """Return the tokens of a text with their ids."""
    return " · ".join(f"{label(look.words[token])} {token}" for token in look.tokenizer.encode(text))


def parameters(look: Inspector) -> str:
    """Return the number of parameters of a model."""
    return f"{sum(each.numel() for each in look.model.parameters()):,}"


def score(folder: Path, name: str) -> float:
    """Return the last held-out score of a run."""
    return float(_metrics(folder)[-1][name])


class _Asking(SphinxDirective):
    """Base of the directives: evaluates expressions with the names of the pages."""

    has_content = True

    def evaluate(self, expression: str) -> Any:
        config = self.env.config
        return eval(expression, {}, names(config.runs, config.run, config.text))


class Look(_Asking):
    """Show an expression and the view of its result. Its argument sets an option of the view, such as shape=circle."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        code = "\n".join(self.content)
        found = self.evaluate(code)
        drawn = found if isinstance(found, View) else view(found)
        pairs = (option.split("=") for option in self.arguments)
        given = {name: float(value) if value[0].isdigit() else value for name, value in pairs}
        drawn = replace(drawn, options={**drawn.options, **given})
        shown = nodes.literal_block(code, code, language="python", classes=["asked"])
        return [shown, nodes.raw("", drawn._repr_mimebundle_()["text/html"], format="html", classes=["look"])]


class Try(_Asking):
    """An exercise with commands that name the runs of this build."""

    def run(self) -> list[nodes.Node]:
        folders = self.evaluate("folders")
        text = "\n".join(self.content)
        for placeholder, name in (("TRANSLATOR", "translator"), ("CLASSIFIER", "classifier"), ("RUN", "writer")):
            text = text.replace(placeholder, str(folders[name]))
        box = nodes.admonition("", nodes.title("", "Try it"), classes=["tip"])
        self.state.nested_parse(type(self.content)(text.split("\n"), source="try"), 0, box)
        return [box]


class Value(SphinxRole):
    """The value of an expression, as text."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        config = self.env.config
        found = eval(self.text, {}, names(config.runs, config.run, config.text))
        text = f"{found:,.3g}" if isinstance(found, float) else str(found)
        return [nodes.inline("", text, support_smartquotes=False)], []  # the text of a model stays unchanged


def inline_formula(writer: HTML5Translator, node: nodes.math) -> None:
    """Write a formula inside a sentence."""
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def formula(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on a line of its own."""
    writer.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives, the role and the options."""
    app.add_config_value("runs", str(Path(__file__).parents[1] / "build" / "runs"), "env")
    app.add_config_value("run", "", "env")
    app.add_config_value("text", "", "env")
    app.add_directive("look", Look)
    app.add_directive("try", Try)
    app.add_role("value", Value())
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    return {"parallel_read_safe": True}
