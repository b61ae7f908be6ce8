"""The examples run from beginning to end, with a few training steps. The quality of their models is not tested."""

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penwright.tasks import translation

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = ("sort_messages", "translate_a_file", "write_a_story")
STEPS = 2
MAX_STORED_BYTES = 100_000  # bytes of the notebook with its outputs


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep caches out of the home folder."""
    for name in ("PENWRIGHT_CACHE", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


RunExample = Callable[[str], tuple[str, str]]


@pytest.fixture
def run_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunExample:
    """A function that runs an example with a tiny budget, and returns its standard output and standard error."""

    def run(script: str) -> tuple[str, str]:
        path = str(EXAMPLES / f"{script}.py")
        monkeypatch.setattr(translation, "MOST_EVALUATED", 10)
        monkeypatch.setattr(sys, "argv", [path, "--folder", str(tmp_path), "--steps", str(STEPS)])
        runpy.run_path(path, run_name="__main__")
        return capsys.readouterr()

    return run


def test_every_example_is_tested_and_listed_in_the_readme() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SCRIPTS)
    listed = re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text("utf-8"))
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))


def test_story_example_writes_the_required_form(run_example: RunExample) -> None:
    output, _ = run_example("write_a_story")
    assert sum(line.startswith("  Anna wanted") for line in output.splitlines()) >= 3
    assert re.search(r"^  Bruno wanted [^.]+\. So he went to the market and asked the captain\. ", output, re.M)
    assert "nats per token: " in output


@pytest.mark.filterwarnings("ignore::penwright.errors.PenwrightWarning")  # a few steps teach it little
def test_translation_example_keeps_the_layout(run_example: RunExample, tmp_path: Path) -> None:
    output, _ = run_example("translate_a_file")
    source, target = (tmp_path / f"diary.{language}.txt" for language in ("de", "en"))
    paragraphs = [path.read_text("utf-8").split("\n\n") for path in (source, target)]
    assert [len(each) for each in paragraphs] == [3, 3]
    assert paragraphs[1][1].startswith("  ")
    assert "BLEU: " in output


def test_sorting_example_loads_its_model_the_second_time(run_example: RunExample) -> None:
    (first, progress), (second, no_progress) = run_example("sort_messages"), run_example("sort_messages")
    labels = re.findall(r"^  (complaint|praise|question) +\d+%  \S", first, re.M)
    assert len(labels) == 4 and labels == sorted(labels)
    assert "step " in progress and "step " not in no_progress
    assert second == first


def test_notebook_runs(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat, which reads notebooks, is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient, which runs notebooks, is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel, in which notebooks run, is not installed")
    book = nbformat.read(EXAMPLES / "look_inside.ipynb", as_version=4)
    (parameters,) = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", ())]
    parameters.source = f"FOLDER = {str(tmp_path)!r}\nSTEPS = {STEPS}"
    client = nbclient.NotebookClient(
        book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(EXAMPLES)}}
    )
    client.execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    views = [output for output in outputs if "text/html" in output.get("data", {})]
    assert len(views) == sum("view(" in cell.source for cell in book.cells if cell.cell_type == "code")
    assert "is near" in "".join(output.text for output in outputs if output.get("name") == "stdout")


def test_stored_notebook_is_small_and_has_no_local_paths() -> None:
    text = (EXAMPLES / "look_inside.ipynb").read_text("utf-8")
    assert len(text.encode()) < MAX_STORED_BYTES
    assert not re.search(r"/(home|Users|tmp|root|work)/", text)
    assert all(cell["cell_type"] in ("code", "markdown") for cell in json.loads(text)["cells"])
