"""README and docs/: commands parse, Python names exist, links work, and the architecture page matches the code."""

import re
import tomllib
from pathlib import Path

import pytest

from .documentation import (
    ROOT,
    Shown,
    blocks,
    broken_links,
    commands,
    defined_in,
    pages,
    problem_with,
    section,
    simple_commands,
    tree_of,
    tree_shown,
)
from .python_blocks import python_problems

PACKAGE = ROOT / "src" / "penwright"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
MAX_README_LINES = 130
each_page = pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())


@each_page
def test_every_command_parses_with_its_options_and_arguments(page: Path) -> None:
    problems = {str(each): problem_with(each) for each in commands(page.read_text("utf-8"))}
    assert {command: problem for command, problem in problems.items() if problem} == {}


def test_readme_shows_a_command_for_each_task() -> None:
    shown = [each.words for each in commands((ROOT / "README.md").read_text("utf-8"))]
    ours = {words[1] for words in shown if words[0] == "penwright"}
    assert {"train", "generate", "translate", "classify", "evaluate", "inspect", "serve"} <= ours


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.stem)
def test_every_command_in_a_recipe_parses(path: Path) -> None:
    text = re.sub(r"\\\n# *", "", path.read_text("utf-8"))
    lines = [line.split(", ")[0] for line in re.findall(r"^#.*?(penwright \w+ .*)", text, re.MULTILINE)]
    assert lines, "the recipe does not show how to run it"
    problems = {line: problem_with(Shown(words, False)) for line in lines for words in simple_commands(line)}
    assert {line: problem for line, problem in problems.items() if problem} == {}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("penwright fly runs/novel", "no command"),
        ("penwright train novel.txt --minuets 1", "No such option"),
        ("penwright train novel.txt --minutes one", "must be a number"),
        ("penwright train novel.txt -minutes 1", "Did you mean --minutes?"),
        ("penwright train novel.txt —minutes 1", "Write --minutes"),
        ("penwright generate runs/novel '- he said'", "write -- before it"),
        ("penwright train novel.txt --minutes", "requires an argument"),
        ("penwright train novel.txt --set model.d_modle=16", "d_model"),
        ("penwright train novel.txt --set training.threads=many", "threads"),
        ("penwright train novel.txt --size enormous", "size"),
        ("penwright train novel.txt --task write", "task"),
        ("penwright translate", "Missing"),
        ("penwright generate runs/novel It was", "in quotes"),
        ("penwright export runs/novel --to word --output out", "word"),
        ("penwright serve runs/novel --set max_cows=1", "max_rows"),
        ("make tea", "tea"),
        ("pip install 'penwright[everything]'", "everything"),
        ("python -m benchmarks.nothing", "no module"),
        ("A=1 cat lines.txt | penwright translate runs/pairs --beam x > out.txt", "must be a whole number"),
    ],
)
def test_wrong_command_is_detected(line: str, problem: str) -> None:
    (shown,) = [each for each in commands(f"```sh\n{line}\n```\n") if each.words[0] != "cat"]
    assert problem in (problem_with(shown) or "")


def test_output_below_a_command_is_not_parsed_as_commands() -> None:
    page = "```console\n$ penwright runs   # all of them\nmake what you like\n```\nand `penwright doctor`\n"
    assert commands(page) == [Shown(("penwright", "runs"), False), Shown(("penwright", "doctor"), True)]


@each_page
def test_python_compiles_and_uses_names_that_exist(page: Path) -> None:
    assert python_problems(page.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("print(1", "never closed"),
        ("print(texts)", "texts is not defined"),
        ("import penwright.nothing", "penwright.nothing"),
        ("from penwright import lode", "penwright.lode"),
        ("import penwright\npenwright.train('a', hours=1)", "hours"),
        ("import penwright\nwriter = penwright.load('runs/novel')\nwriter.write('It')", "no write"),
        ("import penwright\nfor each in penwright.load('a').translate('b'):\n    print(each.txt)", "no txt"),
        ("import penwright\nlook = penwright.inspect(penwright.load('a'))\nlook.lens('b').pixels", "no pixels"),
    ],
)
def test_wrong_python_is_detected(source: str, problem: str) -> None:
    assert problem in "\n".join(python_problems(f"```python\n{source}\n```\n"))


@each_page
def test_every_link_leads_to_an_existing_file_and_heading(page: Path) -> None:
    assert broken_links(page) == []


def test_broken_links_are_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](page.md#two) [c](gone.md) ![d](gone.png) [e](https://example.org)\n", "utf-8")
    assert broken_links(page) == ["page.md#two", "gone.md", "gone.png"]


@each_page
def test_every_named_recipe_exists(page: Path) -> None:
    named = set(re.findall(r"recipes/[\w.-]+\.toml", page.read_text("utf-8")))
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= MAX_README_LINES


def test_module_tree_on_the_architecture_page_is_complete() -> None:
    shown, existing = tree_shown(blocks(section(ARCHITECTURE.read_text("utf-8"), "Layout"))[0]), tree_of(PACKAGE)
    assert sorted(shown) == sorted(existing)
    assert {package: sorted(modules) for package, modules in shown.items()} == existing


def test_import_layers_on_the_page_equal_the_contract() -> None:
    (shown,) = blocks(section(ARCHITECTURE.read_text("utf-8"), "Imports"))
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    assert " ".join(shown.split()).split(" > ") == contract["layers"]


def test_every_path_on_the_architecture_page_exists() -> None:
    text = ARCHITECTURE.read_text("utf-8")
    named = {path.rstrip("/") for path in re.findall(r"`([a-z_]+/[\w/.]*)`", text)}
    assert len(named) > 50
    places = {name: (PACKAGE / f"{name}.py", PACKAGE / name, ROOT / name) for name in named}
    assert sorted(name for name, paths in places.items() if not any(path.exists() for path in paths)) == []


def test_every_step_of_the_call_stacks_exists() -> None:
    text = ARCHITECTURE.read_text("utf-8")
    lines = [line for block in blocks(text) for line in block.splitlines() if re.match(r"[a-z_.]+ {2,}[\w. >]+$", line)]
    assert len(lines) > 15
    for line in lines:
        module, calls = line.split(maxsplit=1)
        names = {name for call in calls.split(" > ") for name in call.split(".")}
        assert names <= defined_in(PACKAGE.joinpath(*module.split(".")).with_suffix(".py")), line
