"""The reference covers every command, setting and public Python name, and broken links are found."""

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

import penwright
from penwright.classification.classifier import Classifier
from penwright.cli.main import app
from penwright.config import Recipe
from penwright.config.descriptions import describe
from penwright.generation.generator import Generator
from penwright.inspection import Inspector
from penwright.serving.settings import ServingSettings
from penwright.translation.translator import Translator

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("commands", "settings", "python", "server", "run-folder")
TABLE = re.compile(r"<table.*?</table>", re.DOTALL)

for package in ("sphinx", "myst_parser", "furo"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install --group docs")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The HTML of the reference pages, built alone, so that links to other pages are broken."""
    folder = tmp_path_factory.mktemp("reference")
    command = [sys.executable, "-m", "sphinx", "-Q", "-E", "-c", DOCS, DOCS / "reference", folder]
    done = subprocess.run(list(map(str, command)), capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {page: (folder / f"{page}.html").read_text("utf-8") for page in PAGES}


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
    tables = [table for page in PAGES for table in TABLE.findall(reference[page])]
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
