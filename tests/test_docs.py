"""The documentation builds without a warning.

Its guide checks its statements and needs no network. Its reference covers every command, setting and public Python
name. Broken links are found.
"""

import importlib
import inspect
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from html import unescape
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer.main

import penwright
from penwright.classification.classifier import Classifier
from penwright.cli.main import app
from penwright.config import Recipe
from penwright.config.descriptions import describe
from penwright.errors import PenwrightError
from penwright.generation.generator import Generator
from penwright.inspection import Inspector
from penwright.serving.settings import ServingSettings
from penwright.translation.translator import Translator
from penwright.workflows import plan

DOCS = Path(__file__).parents[1] / "docs"
GUIDE = DOCS / "guide"
PAGES = sorted(page.stem for page in GUIDE.glob("*.md"))
REFERENCE = ("commands", "settings", "python", "server", "run-folder")
TABLE = re.compile(r"<table.*?</table>", re.DOTALL)
REMOTE_RESOURCE = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*\b(?:src|data)="(?:https?:)?//"""
    r"""|<link\b[^>]*\bhref="(?:https?:)?//|url\(["']?(?:https?:)?//|@import""",
    re.IGNORECASE,
)
# Terms that the guide must explain.
TERMS = """
token | tokenizer | vocabulary | byte pair encoding | WordPiece | characters | start token
end token | padding token | embedding | d_model | cosine similarity | sinusoidal | unit circle
learned positions | rotary | sqrt{d_{model}} | query | key | value | score
softmax | masked attention | causal mask | look-ahead mask | padding mask | self-attention | linear layer
multi-head attention | grouped-query attention | cross-attention | encoder-decoder attention
feed-forward | position-wise | ReLU
GELU | SwiGLU | dropout | residual connection | LayerNorm | RMSNorm | add & norm
pre-norm | post-norm | block | encoder layer | decoder layer | encoder | decoder
decoder-only | encoder-only | GPT | BERT | Llama | logit | un-embedding
cross-entropy | perplexity | bits per byte | label smoothing | teacher forcing | padding | batch
target vocabulary | gradient | back-propagation | learning rate | warm-up | gradient clipping | Adam
AdamW | weight decay | epoch | step | validation | held-out | overfitting
GPU | greedy search | sampling | temperature | top-k | top-p | KV cache
beam search | BLEU | glossary | pooling | parameters | logit lens
"""


def run_python(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONWARNINGS": "default", **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture(scope="module")
def import_from_guide() -> Callable[[str], ModuleType]:
    """A function that imports a module of the guide by name."""

    def load(name: str) -> ModuleType:
        sys.path.insert(0, str(GUIDE))
        try:
            return importlib.import_module(name)
        finally:
            sys.path.remove(str(GUIDE))

    return load


@pytest.fixture(scope="module")
def built_guide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide of the built site, with models of a few training steps."""
    pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install --group docs")
    pytest.importorskip("myst_parser", reason="myst-parser is not installed: pip install --group docs")
    pytest.importorskip("furo", reason="furo is not installed: pip install --group docs")
    folder = tmp_path_factory.mktemp("guide")
    options = [f"runs={folder / 'runs'}", "trained=0"]  # after two steps, models do not behave as the text says
    for command in (
        [GUIDE / "make_run.py", folder / "runs", "--steps", 2],
        ["-m", "sphinx", "-q", "-W", "-E", *(f"-D{option}" for option in options), DOCS, folder / "html"],
    ):
        done = run_python(*command, PENWRIGHT_CACHE=str(folder / "cache"))
        assert done.returncode == 0, done.stderr[-3000:]
    return folder / "html" / "guide"


def test_pages_load_no_remote_resources(built_guide: Path) -> None:
    pages = [path for path in built_guide.parent.rglob("*") if path.suffix in (".html", ".css")]
    assert len(pages) > len(PAGES)
    assert [str(page) for page in pages if REMOTE_RESOURCE.search(page.read_text("utf-8"))] == []


@pytest.mark.parametrize("name", ["index", "attention", "training", "translation"])
def test_views_are_drawn_without_a_network(built_guide: Path, browse: Callable[..., Any], name: str) -> None:
    page = browse(built_guide / f"{name}.html", height=6000)
    frames = page.query_selector_all("iframe[title=Penwright]")
    assert len(frames) == len(page.query_selector_all(".asked")) >= 1
    for frame in frames:
        frame.content_frame().wait_for_selector("main[data-ready] :is(canvas, svg, table, .pw-token)")
    assert page.query_selector("h1") is not None


def test_formulas_are_mathml_without_scripts(built_guide: Path) -> None:
    page = (built_guide / "attention.html").read_text("utf-8")
    assert "<msqrt>" in page and not re.search(r'src="[^"]*mathjax', page, re.IGNORECASE) and r"\frac" not in page


def test_exercises_name_the_run_of_their_page(built_guide: Path) -> None:
    page = (built_guide / "translation.html").read_text("utf-8")
    assert f"{built_guide.parents[1] / 'runs' / 'translator'}" in page and "TRANSLATOR" not in page


def build_page_with(check: str, folder: Path, runs: Path, trained: int) -> subprocess.CompletedProcess[str]:
    """Build a site of one page with a checked statement."""
    folder.mkdir()
    conf = f"import sys; sys.path.insert(0, {str(GUIDE)!r}); extensions = ['myst_parser', 'guide_directives']"
    (folder / "conf.py").write_text(conf, "utf-8")
    (folder / "index.md").write_text(f"# A page\n\n{check}\n", "utf-8")
    options = (f"-Druns={runs}", f"-Dtrained={trained}")
    return run_python("-m", "sphinx", "-q", "-b", "text", *options, folder, folder / "out")


def test_false_statement_fails_the_build_unless_it_is_about_other_models(built_guide: Path, tmp_path: Path) -> None:
    runs = built_guide.parents[1] / "runs"
    check = "```{{check}}{}\nyear = {}\nassert '1991' in str(year), f'the year is {{year}}, not 1991'\n```"
    page = f"{check.format(' trained', 1918)}\n\n{check.format('', 1945)}"
    done = build_page_with(page, tmp_path / "page", runs, trained=0)
    assert done.returncode != 0
    assert re.search(r"index\.md:\d+: the page states what does not hold: the year is 1945, not 1991", done.stderr)
    page = check.format(" ours", 1945)
    assert build_page_with(page, tmp_path / "ours", runs, trained=0).returncode != 0, (
        "it is about untrained models, too"
    )


def test_first_right_example_is_shown_or_the_build_fails(import_from_guide: Callable[[str], ModuleType]) -> None:
    first_right = import_from_guide("on_your_run").first_right

    class Translator:
        def translate(self, texts: list[str]) -> list[SimpleNamespace]:
            return [SimpleNamespace(text={"eins": "two", "zwei": "two"}[text]) for text in texts]

    inspector = SimpleNamespace(application=Translator())
    assert first_right(inspector, [("eins", "one"), ("zwei", "two")]) == "zwei"
    with pytest.raises(PenwrightError, match="no example right: eins -> two"):
        first_right(inspector, [("eins", "one")])


def test_settings_do_not_depend_on_the_machines_speed(
    built_guide: Path, import_from_guide: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run = import_from_guide("make_run")

    def fail(*arguments: object) -> float:
        raise AssertionError("a setting depends on the speed of the machine")

    monkeypatch.setattr(plan, "throughput_meter", lambda *arguments: fail)
    for name, (text, steps, settings) in make_run.RUNS.items():
        table = make_run.settings_of(steps, settings)
        given = {
            **table,
            "data": {**table.get("data", {}), "train": [str(built_guide.parents[1] / "runs" / "texts" / text)]},
        }
        training = plan.prepare(given).plan.recipe.training
        fixed = (training.device, training.precision, training.compile, training.threads, training.minutes)
        assert fixed == ("cpu", "float32", "off", 1, None), name
        assert training.steps == steps


@pytest.fixture
def make_runs(
    import_from_guide: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], str]:
    """A function that calls make_run.py, with its workers in this process, and returns what it printed."""
    make_run = import_from_guide("make_run")
    pool = SimpleNamespace(submit=lambda work, *given: SimpleNamespace(result=partial(work, *given)))
    monkeypatch.setattr(make_run, "ProcessPoolExecutor", lambda n, mp_context: nullcontext(pool))

    def make(folder: Path) -> str:
        monkeypatch.setattr(sys, "argv", ["make_run.py", str(folder), "--steps", "2"])
        make_run.main()
        return capsys.readouterr().out

    return make


def test_finished_run_is_reused_until_its_settings_change(built_guide: Path, make_runs: Callable[[Path], str]) -> None:
    runs = built_guide.parents[1] / "runs"
    assert make_runs(runs) == ""
    (runs / "classifier.json").write_text("{}", "utf-8")  # other settings, as of an earlier version
    assert make_runs(runs).splitlines() == [f"{runs / 'classifier'}: training for 2 steps"]


def test_diagrams_stay_inside_their_frames(import_from_guide: Callable[[str], ModuleType]) -> None:
    diagrams = import_from_guide("diagrams")
    words = ["The", "sky", "is", "blue"]
    drawn = [
        *(draw() for draw in (diagrams.transformer, diagrams.block, diagrams.head, diagrams.masks)),
        *(diagrams.writer(3), diagrams.heads(4), diagrams.teacher_forcing(words), diagrams.padding([9, 3, 8, 4])),
        diagrams.bars(words, [0.7, 0.1, 0.1, 0.1], 1),
    ]
    for svg in drawn:
        root = ET.fromstring(svg)
        *_, width, height = map(float, root.attrib["viewBox"].split())
        assert root.find("title") is not None
        for each in root.iter():
            points = [pair.split(",") for pair in each.get("points", "").split()]
            points += [[each.attrib["x"], each.attrib["y"]]] if "x" in each.attrib else []
            if each.tag == "rect":
                points.append(
                    [float(each.attrib[a]) + float(each.attrib[b]) for a, b in (("x", "width"), ("y", "height"))]
                )
            for x, y in points:
                assert 0 <= float(x) <= width and 0 <= float(y) <= height, (root.find("title").text, each.attrib)  # type: ignore[union-attr]


def test_chapters_have_code_a_worksheet_and_a_final_exercise() -> None:
    for name in set(PAGES) - {"index", "elsewhere"}:
        source = (GUIDE / f"{name}.md").read_text("utf-8")
        assert "```{execute}" in source, name
        questions = re.findall(r"^\*\*\d\.\*\*", source.partition("## Worksheet")[2], re.MULTILINE)
        assert len(questions) >= 2 and len(questions) == source.count(":::{answer}"), name
        assert source.rstrip().endswith(":::") and ":::{try}" in source, name


def test_answers_are_collapsed(built_guide: Path) -> None:
    page = (built_guide / "attention.html").read_text("utf-8")
    assert page.count("<details><summary>Answer</summary>") == page.count("</details>") == 4


def test_guide_explains_the_terms_of_the_field() -> None:
    text = " ".join((GUIDE / f"{page}.md").read_text("utf-8") for page in PAGES).replace("*", "").casefold()
    terms = [term.strip() for line in TERMS.strip().splitlines() for term in line.split("|")]
    assert [term for term in terms if term.casefold() not in " ".join(text.split())] == []


@pytest.fixture(scope="module")
def reference(built_guide: Path) -> dict[str, str]:
    """The HTML of the reference pages."""
    folder = built_guide.parent / "reference"
    return {page: (folder / f"{page}.html").read_text("utf-8") for page in REFERENCE}


@pytest.fixture
def import_from_docs(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A function that imports a module of docs/."""
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module


def rows(table: str) -> list[list[str]]:
    """Return the cells of the body of a table, as text."""
    cells = [re.findall(r"<td.*?</td>", row, re.DOTALL) for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)]
    return [[unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in cells if row]


def test_every_command_has_its_arguments_and_options(reference: dict[str, str]) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    sections = dict(re.findall(r'<section id="penwright-(\w+)">(.*?)</section>', reference["commands"], re.DOTALL))
    assert set(sections) == {name for name, command in commands.items() if not command.hidden}
    for name, section in sections.items():
        (table,) = TABLE.findall(section)
        shown = {row[0] for row in rows(table)}
        for parameter in commands[name].params:
            names = parameter.opts if parameter.opts[0].startswith("-") else [parameter.metavar or parameter.name]
            assert any(each in cell for each in names for cell in shown), (name, names)
        flags = {parameter.opts[-1] for parameter in commands[name].params if getattr(parameter, "is_flag", False)}
        assert {row[0].split(" ")[0] for row in rows(table) if row[1] == "flag"} <= flags, name
        assert [row for row in rows(table) if not (row[1] and row[3])] == [], name


@pytest.mark.parametrize(("page", "kind"), [("settings", Recipe), ("server", ServingSettings)])
def test_every_setting_has_a_type_a_default_and_a_meaning(
    reference: dict[str, str], page: str, kind: type[Recipe | ServingSettings]
) -> None:
    found = [row for table in TABLE.findall(reference[page]) for row in rows(table)]
    described = [setting for table in describe(kind) for setting in table.settings]
    assert len(described) > 15
    for setting in described:
        named = [row for row in found if row[0] == setting.name]
        assert any(len(row) == 4 and all(row) for row in named), setting.name


def test_every_public_python_name_is_described(reference: dict[str, str]) -> None:
    page = unescape(reference["python"])
    assert [name for name in penwright.__all__ if f"penwright.{name}" not in page] == []
    for kind in (Generator, Translator, Classifier, Inspector):
        members = inspect.getmembers(kind, lambda each: callable(each) or isinstance(each, property))
        public = {name for name, _ in members if not name.startswith("_")}
        ids = set(re.findall(rf'id="penwright\.[\w.]*\b{kind.__name__}\.(\w+)"', page))
        assert public <= ids | {"share_out", "use_processes"}, kind


@pytest.mark.parametrize("name", ["Completion", "Translation", "Candidate", "Classification", "Score", "Tuning"])
def test_every_result_class_is_described(reference: dict[str, str], name: str) -> None:
    assert re.search(rf'id="penwright\.[\w.]+\.{name}"', reference["python"])
    assert "most likely label" in reference["python"]  # from the comment of a field


@pytest.mark.parametrize("route", ["POST /v1/completions", "POST /translate", "POST /classify", "GET /health"])
def test_main_routes_are_described(reference: dict[str, str], route: str) -> None:
    assert re.search(rf"<h3>{re.escape(route)}", reference["server"])


def test_no_generated_table_is_empty(reference: dict[str, str], import_from_docs: Callable[[str], ModuleType]) -> None:
    tables = [table for page in REFERENCE for table in TABLE.findall(reference[page])]
    assert len(tables) > 100
    assert [table[:200] for table in tables if not rows(table)] == []
    with pytest.raises(ValueError, match="empty"):
        import_from_docs("markdown_parts").table(("Setting", "Type"), [])


def test_links_to_missing_pages_and_anchors_are_found(
    tmp_path: Path, import_from_docs: Callable[[str], ModuleType]
) -> None:
    links = ["#here", "#gone", "other.html", "other.html#there", "other.html#gone", "gone.html", "https://gone.invalid"]
    body = "".join(f'<a href="{link}">x</a>' for link in links)
    (tmp_path / "page.html").write_text(f'<h1 id="here">x</h1>{body}<img src="gone.png">', "utf-8")
    (tmp_path / "other.html").write_text('<h1 id="there">x</h1>', "utf-8")
    found = list(import_from_docs("link_check").broken_links(tmp_path))
    assert [problem.split(" leads")[0].rpartition(" ")[2] for problem in found] == [
        "#gone",
        "gone.html",
        "gone.png",
        "other.html#gone",
    ]


def test_links_outside_the_site_are_rewritten_or_removed(import_from_docs: Callable[[str], ModuleType]) -> None:
    relink = import_from_docs("reference").relink
    text = "[a](../CONTRIBUTING.md) [b](../README.md#x) [c](../recipes) [d](glossary.md#x) [e](../Makefile) [f](https://x.org)"
    found = relink(text, DOCS, DOCS)
    assert found == "[a](contributing.md) b c [d](glossary.md#x) [e](../Makefile) [f](https://x.org)"
