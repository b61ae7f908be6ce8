"""A run is taken elsewhere by one command, or told clearly why not."""

from pathlib import Path

import pytest

from .conftest import Command


def test_a_writer_is_exported_and_can_be_opened(penwright: Command, runs: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "new" / "writer"
    done = penwright("export", runs / "writer", "--to", "huggingface", "--output", folder)
    assert done.returncode == 0, done.stderr
    assert "model.safetensors" in done.stdout and not list(folder.parent.glob("*tmp*"))
    tokens = transformers.AutoTokenizer.from_pretrained(folder)("It was", return_tensors="pt").input_ids
    assert transformers.AutoModelForCausalLM.from_pretrained(folder)(tokens).logits.isfinite().all()


def test_a_translator_is_exported_and_translates(penwright: Command, runs: Path, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra penwright[ctranslate2] is not installed")
    done = penwright("export", runs / "translator", "--to", "ctranslate2", "--output", tmp_path, "--precision", "int8")
    assert done.returncode == 0, done.stderr
    engine = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    assert engine.translate_batch([["eins"]], max_decoding_length=3)[0].hypotheses


@pytest.mark.parametrize(("name", "to"), [("translator", "gguf"), ("classifier", "ctranslate2"), ("writer", "gguf")])
def test_what_cannot_be_exported_is_said_and_leaves_nothing(
    name: str, to: str, penwright: Command, runs: Path, tmp_path: Path
) -> None:
    done = penwright("export", runs / name, "--to", to, "--output", tmp_path / "new")
    assert done.returncode == 1 and done.stderr.startswith("penwright: ") and "export" in done.stderr
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(penwright: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    done = penwright("export", runs / "writer", "--to", "huggingface", "--output", tmp_path)
    assert done.returncode == 2 and "already there" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
