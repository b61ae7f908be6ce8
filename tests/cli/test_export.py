"""`penwright export`: formats, refusals, and the examples in docs/export.md."""

import re
from pathlib import Path

import pytest

from .conftest import Command


def test_exported_writer_loads_in_transformers(penwright: Command, runs: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "new" / "writer"
    done = penwright("export", runs / "writer", "--to", "huggingface", "--output", folder)
    assert done.returncode == 0, done.stderr
    assert "model.safetensors" in done.stdout and not list(folder.parent.glob("*tmp*"))
    tokens = transformers.AutoTokenizer.from_pretrained(folder)("It was", return_tensors="pt").input_ids
    assert transformers.AutoModelForCausalLM.from_pretrained(folder)(tokens).logits.isfinite().all()


def test_exported_translator_translates_in_ctranslate2(penwright: Command, runs: Path, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra penwright[ctranslate2] is not installed")
    done = penwright("export", runs / "translator", "--to", "ctranslate2", "--output", tmp_path, "--precision", "int8")
    assert done.returncode == 0, done.stderr
    engine = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    assert engine.translate_batch([["eins"]], max_decoding_length=3)[0].hypotheses


@pytest.mark.parametrize(("name", "to"), [("translator", "gguf"), ("classifier", "ctranslate2"), ("writer", "gguf")])
def test_impossible_export_is_refused_and_leaves_no_files(
    name: str, to: str, penwright: Command, runs: Path, tmp_path: Path
) -> None:
    done = penwright("export", runs / name, "--to", to, "--output", tmp_path / "new")
    assert done.returncode == 1 and done.stderr.startswith("penwright: ") and "export" in done.stderr.lower()
    assert not list(tmp_path.iterdir())


def test_export_overwrites_nothing(penwright: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    done = penwright("export", runs / "writer", "--to", "huggingface", "--output", tmp_path)
    assert done.returncode == 2 and "already exists" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def docs_example(first_line: str) -> str:
    """Return the Python block of docs/export.md that begins with this line."""
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    (found,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if block.startswith(first_line))
    return found


def test_ctranslate2_example_in_the_docs_works(
    penwright: Command, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2", reason="the extra penwright[ctranslate2] is not installed")
    made = penwright("export", runs / "translator", "--to", "ctranslate2", "--output", tmp_path / "ct2")
    assert made.returncode == 0, made.stderr
    monkeypatch.chdir(tmp_path)
    exec(docs_example("import ctranslate2"), {})
    assert capsys.readouterr().out.strip()


def test_transformers_example_in_the_docs_generates_our_text(
    penwright: Command, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = penwright("export", runs / "writer", "--to", "huggingface", "--output", tmp_path / "hf")
    assert made.returncode == 0, made.stderr
    ours = penwright("generate", runs / "writer", "It was", "--temperature", 0, "--max-new-tokens", 20).stdout
    monkeypatch.chdir(tmp_path)
    exec(docs_example("from transformers"), {})
    assert capsys.readouterr().out.strip() == ours.strip()
