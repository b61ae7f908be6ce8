"""The commands and the Python of the README are those that the program has."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penwright.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> list[str]:
    blocks = [block for page in PAGES for block in re.findall(r"```\w*\n(.*?)```", page.read_text("utf-8"), re.DOTALL)]
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").split("\n")]
    recipes = [line for path in (ROOT / "recipes").glob("*.toml") for line in path.read_text("utf-8").split("\n")]
    lines += [line.partition(": ")[2] for line in recipes if line.startswith("# Run") and "penwright" in line]
    found = [re.sub(r"\s+#.*| *[|<>].*", "", line) for line in lines]
    return sorted({line for line in found if line.startswith("penwright ")})


def test_the_pages_show_commands() -> None:
    assert len(commands()) > 10


@pytest.mark.parametrize("command", commands())
def test_every_command_shown_is_one_that_parses(command: str) -> None:
    done = CliRunner().invoke(app, [*shlex.split(command)[1:], "--help"])
    assert done.exit_code == 0, done.output


def test_every_recipe_named_exists() -> None:
    for page in PAGES:
        for name in re.findall(r"recipes/[\w.-]+\.toml", page.read_text("utf-8")):
            assert (ROOT / name).is_file(), name


def test_the_tree_names_every_module() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for path in (ROOT / "src" / "penwright").rglob("*.py"):
        if path.name not in ("__init__.py", "__main__.py"):
            assert path.name in readme or path.stem in readme, path
