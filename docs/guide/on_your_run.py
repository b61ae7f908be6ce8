"""The names that code on the pages of the guide may use: trained models, texts, and short functions about them.

A reader's own run can replace the model of the same shape.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import diagrams
import numpy as np
import torch

import penwright
from penwright.config import DecodingSettings, ModelSettings
from penwright.decoding.sampling.sampler import Sampling
from penwright.errors import PenwrightError, UsageError
from penwright.generation.generator import Generator
from penwright.inspection import Inspector, whole_model
from penwright.inspection.attention_maps import parse_head
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


# Each text with what is right. The pages show the first that the model gets right; if it gets none right, the build
# fails.
DATES = (
    ("am Freitag, dem 17. Mai 1991", "on Friday, May 17, 1991"),
    ("am Montag, dem 3. August 2026", "on Monday, August 3, 2026"),
    ("am Sonntag, dem 9. Februar 1986", "on Sunday, February 9, 1986"),
    ("am Dienstag, dem 24. Juni 2003", "on Tuesday, June 24, 2003"),
)
ORDINALS = (
    ("der einundzwanzigste März", "the twenty-first of March"),
    ("der vierundzwanzigste Juni", "the twenty-fourth of June"),
    ("der dreiundzwanzigste Mai", "the twenty-third of May"),
)
WORDS = {  # that occur in these dates
    "Friday": "Freitag",
    "Monday": "Montag",
    "Sunday": "Sonntag",
    "Tuesday": "Dienstag",
    "May": "Mai",
    "August": "August",
    "February": "Februar",
    "June": "Juni",
}
PROMPTS = (USUAL_TEXTS["writer"], "The class statement", "The return statement", "This is the", "If the", "A list")
GREEDY = DecodingSettings(temperature=0.0, max_new_tokens=80)
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


@cache
def names(runs: str, run: str, text: str, trained: bool) -> dict[str, Any]:
    """Return the names. `trained` says that the models are the guide's own, with all their steps."""
    folders, texts = {name: Path(runs) / name for name in (*USUAL_TEXTS, "crammer")}, dict(USUAL_TEXTS)
    shape = penwright.inspect(penwright.load(run)).kind if run else "writer"
    if run:
        folders[shape] = Path(run)
    texts[shape] = text or (_sample(Path(run)) if run else "") or texts[shape]
    looks = {name: penwright.inspect(penwright.load(folders[name])) for name in texts}
    look, translator = looks["writer"], looks["translator"]
    german = first_right(translator, DATES) if trained else texts["translator"]
    english = translator.application.translate([german])[0].text
    words = [(word, source) for word, source in WORDS.items() if word in english]
    return {
        **looks,
        **{each.__name__: each for each in HELPERS},
        "diagrams": diagrams,
        "np": np,
        "folders": folders,
        "texts": Path(runs) / "texts",
        "text": texts["writer"],
        "german": german,
        "english": english,
        "ordinal": first_right(translator, ORDINALS) if trained else ORDINALS[0][0],
        "line": texts["classifier"],
        "settings": look.model.settings,
        "head": strongest(look, "previous", texts["writer"]),
        "ending": _ending(folders["writer"]) or texts["writer"],
        "crammed": len(_whole(folders["crammer"])),
        "steps": {name: _metrics(folders[name])[-1]["step"] for name in folders},
        "classic": _classic(look),
        "whole_model": whole_model,
        "circling": first_circling(look) if trained else texts["writer"],
        "DecodingSettings": DecodingSettings,
        "GREEDY": GREEDY,
        "usual": DecodingSettings(temperature=0.7, top_p=0.9, max_new_tokens=40),
        "MONTHS": MONTHS,
        "words_of_date": words,
        "cross_head": aligning_head(translator, german, words, trained),
    }


def first_right(look: Inspector, examples: Sequence[tuple[str, str]]) -> str:
    """Return the first source that is translated rightly. Raises PenwrightError if none is."""
    wrong = []
    for source, target in examples:
        found = look.application.translate([source])[0].text
        if found == target:
            return source
        wrong.append(f"{source} -> {found}")
    raise PenwrightError(f"the translator of the guide gets no example right: {'; '.join(wrong)}")


def first_circling(look: Inspector) -> str:
    """Return the first prompt after which greedy search repeats itself. Raises PenwrightError if it never does."""
    for prompt in PROMPTS:
        if repeats(written(look, prompt, GREEDY)):
            return prompt
    raise PenwrightError("greedy search repeats nothing after any prompt of the guide")


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


def losses(folder: Path, score: str = "nats per token") -> dict[int, float]:
    """Return a held-out score by step."""
    return {int(record["step"]): float(record[score]) for record in _metrics(folder)}


def curves(folders: Sequence[Path], score: str = "nats per token") -> View:
    """Return the curves of a held-out score by step."""
    found = {folder.name: losses(folder, score) for folder in folders}
    runs = [{"name": name, "x": list(by_step), "y": list(by_step.values())} for name, by_step in found.items()]
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


def statistic(look: Inspector, name: str, head: str, text: str) -> float:
    """Return a statistic of one head of a writer on a text."""
    _, layer, number = head.split(".")
    return float(getattr(look.head_statistics(text)[0], name)[int(layer), int(number)])


def matrix(look: Inspector, head: str, text: str) -> View:
    """Return the view of one head as a matrix."""
    chosen = parse_head(head, look.model)
    return one_head(look.attention(text, layers=[chosen.layer]), chosen)


def reshaped(look: Inspector, text: str, settings: DecodingSettings, k: int = 8) -> View:
    """Return a view of the most likely next tokens before and after the sampling settings."""
    found = look.token_scores(text, k=len(look.words)).next
    logits = torch.from_numpy(np.log(found.probabilities))[None]
    after = Sampling(settings=settings).process(logits).softmax(-1)[0].tolist()
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


def count(word: str, n: int) -> str:
    """Return a number with a noun, which gets an s unless there is one: 1 token, 2 tokens."""
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def nll(probability: float) -> float:
    """Return -ln p, the loss of a target with this probability."""
    return float(-np.log(probability))


def repeats(text: str, n: int = 3) -> bool:
    """Return whether some sequence of n words occurs more than once in a text."""
    words = text.split()
    found = [tuple(words[at : at + n]) for at in range(len(words) - n + 1)]
    return len(set(found)) < len(found)


def beam_tree(look: Inspector, text: str, beam_size: int) -> Any:
    """Return the tree of a beam search. If a reader's translator needs several searches, return its token scores."""
    try:
        return look.beams(text, beam_size)
    except UsageError:
        return look.token_scores(text)


def aligning_head(look: Inspector, text: str, words: Sequence[tuple[str, str]], must: bool) -> str:
    """Return a cross-attention head that attends most to the right source token while it chooses each target word.

    `words` are pairs of target and source. Raises PenwrightError if such a head must exist and does not.
    """
    maps = look.attention(text)
    cross = maps.part("cross")
    sources = [token.text.strip() for token in cross.source_tokens]
    rows = {token.text.strip(): row for row, token in enumerate(maps.answers)}
    most = cross.weights.argmax(-1)  # [layer, head, target]
    for layer, number in np.ndindex(most.shape[:2]):
        seen = {word: sources[most[layer, number, rows[word]]] for word, _ in words if word in rows}
        if seen == dict(words):
            return f"cross.{cross.layers[layer]}.{number}"
    if must:
        raise PenwrightError(
            f"no head of the guide's translator looks from each word to its source in {text!r}: {words}"
        )
    return f"cross.{cross.layers[0]}.0"


def followed(look: Inspector, text: str) -> int:
    """Return at how many positions the first row of the lens names the token that was just read."""
    found = look.lens(text, k=1)
    read = look.read(text).target
    return sum(row[0] == token.text for row, token in zip(found.top_tokens[0], read, strict=True))


HELPERS = (
    *(beam_tree, count, curves, cut, followed, labels, losses, matrix, nll, parameters),
    *(reshaped, schedule, score, statistic, strongest, written),
)
