"""The documentation builds without a warning. Its guide draws without a network and shows commands that exist."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penwright.cli.main import app

DOCS = Path(__file__).parents[1] / "docs"
GUIDE = DOCS / "guide"
PAGES = sorted(page.stem for page in GUIDE.glob("*.md"))
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*\b(?:src|data)="(?:https?:)?//"""
    r"""|<link\b[^>]*\bhref="(?:https?:)?//|url\(["']?(?:https?:)?//|@import""",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as a reader has it, about models of a few steps."""
    pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install --group docs")
    pytest.importorskip("myst_parser", reason="myst-parser is not installed: pip install --group docs")
    pytest.importorskip("furo", reason="furo is not installed: pip install --group docs")
    folder = tmp_path_factory.mktemp("guide")
    for command in (
        [GUIDE / "make_run.py", folder / "runs", "--steps", 2],
        ["-m", "sphinx", "-q", "-W", "-E", "-D", f"runs={folder / 'runs'}", DOCS, folder / "html"],
    ):
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            env={**os.environ, "PENWRIGHT_CACHE": str(folder / "cache"), "PYTHONWARNINGS": "default"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    return folder / "html" / "guide"


def test_no_page_fetches_anything_from_elsewhere(built: Path) -> None:
    pages = [path for path in built.parent.rglob("*") if path.suffix in (".html", ".css")]
    assert len(pages) > len(PAGES)
    assert [str(page) for page in pages if FETCHED.search(page.read_text("utf-8"))] == []


@pytest.mark.parametrize("name", ["index", "attention", "training", "translation"])
def test_the_views_of_a_page_draw_without_a_network(built: Path, browse: Callable[..., Any], name: str) -> None:
    page = browse(built / f"{name}.html", height=6000)
    frames = page.query_selector_all("iframe[title=Penwright]")
    assert len(frames) == len(page.query_selector_all(".asked")) >= 1
    for frame in frames:
        frame.content_frame().wait_for_selector("main[data-ready] :is(canvas, svg, table, .pw-token)")
    assert page.query_selector("h1") is not None


def test_formulas_need_no_script(built: Path) -> None:
    page = (built / "attention.html").read_text("utf-8")
    assert "<msqrt>" in page and not re.search(r'src="[^"]*mathjax', page, re.IGNORECASE) and r"\frac" not in page


def test_exercises_name_the_runs_that_the_page_looks_into(built: Path) -> None:
    page = (built / "translation.html").read_text("utf-8")
    assert f"{built.parents[1] / 'runs' / 'translator'}" in page and "TRANSLATOR" not in page


def commands() -> list[str]:
    lines = [line for page in PAGES for line in (GUIDE / f"{page}.md").read_text("utf-8").splitlines()]
    return sorted({line for line in lines if line.startswith("penwright ")})


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_guide_is_one_that_parses(command: str) -> None:
    done = CliRunner().invoke(app, [*shlex.split(command)[1:], "--help"])
    assert done.exit_code == 0, done.output


def test_every_page_is_quoted_code_or_numbers_of_a_run_and_ends_with_an_exercise() -> None:
    for name in PAGES:
        source = (GUIDE / f"{name}.md").read_text("utf-8")
        assert "{literalinclude}" in source or "{look}" in source or "{value}" in source or name == "elsewhere", name
        assert "{try}" in source or name == "index", name
