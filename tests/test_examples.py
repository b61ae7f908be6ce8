"""The examples run from beginning to end, with a few training steps. The quality of their models is not tested."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = ("sort_messages", "translate_a_file", "write_a_story")
STEPS = 4
MAX_STORED_BYTES = 100_000  # bytes of the notebook with its outputs


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep caches out of the home folder."""
    for name in ("PENWRIGHT_CACHE", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run an example with a tiny budget; fail if it fails."""
    command = [sys.executable, str(EXAMPLES / f"{script}.py"), "--folder", str(folder), "--steps", str(STEPS)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_every_example_is_tested_and_listed_in_the_readme() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SCRIPTS)
    listed = re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text("utf-8"))
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))


def test_story_example_writes_the_required_form(tmp_path: Path) -> None:
    done = run("write_a_story", tmp_path)
    lines = done.stdout.splitlines()
    assert sum(line.startswith("  Anna wanted") for line in lines) >= 3
    assert re.search(r"^  Bruno wanted [^.]+\. So he went to the market and asked the captain\. ", done.stdout, re.M)
    assert "nats per token: " in done.stdout


def test_translation_example_keeps_the_layout(tmp_path: Path) -> None:
    done = run("translate_a_file", tmp_path)
    source, target = (tmp_path / f"diary.{language}.txt" for language in ("de", "en"))
    paragraphs = [path.read_text("utf-8").split("\n\n") for path in (source, target)]
    assert [len(each) for each in paragraphs] == [3, 3]
    assert paragraphs[1][1].startswith("  ")
    assert "BLEU: " in done.stdout


def test_sorting_example_loads_its_model_the_second_time(tmp_path: Path) -> None:
    first, second = run("sort_messages", tmp_path), run("sort_messages", tmp_path)
    labels = re.findall(r"^  (complaint|praise|question) +\d+%  \S", first.stdout, re.M)
    assert len(labels) == 4 and labels == sorted(labels)
    assert "step " in first.stderr
    assert "step " not in second.stderr
    assert second.stdout == first.stdout


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
