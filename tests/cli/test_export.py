"""`penwright export`: formats, refusals, and the examples in docs/export.md."""

import ast
import json
import re
import shutil
import sys
from itertools import combinations
from math import log
from pathlib import Path

import jaxtyping
import pytest
import torch

from penwright import load
from penwright.workflows.export import _classifier_card
from penwright.workflows.load import open_run

from .conftest import QUICK, Command


def test_exported_writer_loads_in_transformers(penwright: Command, runs: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "new" / "writer"
    done = penwright("export", runs / "writer", "--to", "huggingface", "--output", folder)
    assert done.returncode == 0, done.stderr
    assert "model.safetensors" in done.stdout and not list(folder.parent.glob("*tmp*"))
    tokens = transformers.AutoTokenizer.from_pretrained(folder)("It was", return_tensors="pt").input_ids
    assert transformers.AutoModelForCausalLM.from_pretrained(folder)(tokens).logits.isfinite().all()


def test_run_made_of_a_classifier_has_its_ngrams(penwright: Command, runs: Path, tmp_path: Path) -> None:
    done = penwright("export", runs / "classifier", "--to", "penwright", "--output", tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    text = "a fine film, and not dull"
    assert load(tmp_path / "copy").classify(text) == load(runs / "classifier").classify(text)


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


def test_onnx_example_in_the_docs_labels_texts_like_penwright(
    penwright: Command, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="the extra penwright[onnx] is not installed")
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # ints are symbols while a model is traced
    made = penwright("export", runs / "classifier", "--to", "onnx", "--output", tmp_path / "onnx")
    assert made.returncode == 0, made.stderr
    assert "ngrams.npz" in made.stdout and "classify.py" in made.stdout
    card = (tmp_path / "onnx" / "README.md").read_text(encoding="utf-8")
    assert "2 labels: bad, good" in card and "Held-out scores: accuracy " in card and "classify.py" in card
    texts = ("what a wonderful film", "a dull film")
    ours = [
        json.loads(line) for line in penwright("classify", runs / "classifier", *texts, "--json").stdout.splitlines()
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(docs_example("import sys"), {})
    for line, each in zip(capsys.readouterr().out.splitlines(), ours, strict=True):
        label, scores = line.split(" ", 1)
        assert label == each["label"] and ast.literal_eval(scores) == pytest.approx(each["scores"], abs=1e-4)


BERT = {
    "norm.type": "layer",
    "norm.eps": 1e-12,
    "norm_position": "post",
    "embedding_norm": "true",
    "positions.type": "learned",
    "feed_forward": "gelu",
    "bias": "true",
    "qk_norm": "false",
    "pooling": "first",
    "pooler": "true",
}


def test_classifier_with_ngrams_is_exported_to_transformers_without_them(
    penwright: Command, corpora: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    shutil.copy(corpora / "labels.csv", tmp_path / "labels.csv")
    options = [option for name, value in BERT.items() for option in ("--set", f"model.{name}={value}")]
    made = penwright("train", tmp_path / "labels.csv", "--run", tmp_path / "run", "--steps", 5, *QUICK, *options)
    assert made.returncode == 0, made.stderr
    done = penwright("export", tmp_path / "run", "--to", "huggingface", "--output", tmp_path / "hf")
    assert done.returncode == 0, done.stderr
    scores = [line.split() for line in penwright("evaluate", tmp_path / "run").stdout.splitlines()]
    accuracy = next(float(line[1]) for line in scores if line and line[0] == "accuracy")
    (alone, mixed) = re.findall(r"accuracy on .*: (\S+) without n-grams, (\S+) with them", done.stderr)[0]
    assert float(mixed) == pytest.approx(accuracy, rel=1e-3)
    card = (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")
    assert f"| accuracy | {alone} | {mixed} |" in card

    classifier = load(tmp_path / "run")
    classifier.linear = None
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    scales = []
    for text in ("a fine film number 7", "dull"):
        with torch.no_grad():
            first, second = model(**tokenizer(text, return_tensors="pt")).logits[0].tolist()
        expected = classifier.classify(text)[0].scores
        scales.append((second - first) / log(expected[model.config.id2label[1]] / expected[model.config.id2label[0]]))
    assert scales[0] == pytest.approx(scales[1], rel=0.01) and scales[0] > 0  # calibrated by one factor

    (tmp_path / "labels.csv").unlink()
    done = penwright("export", tmp_path / "run", "--to", "huggingface", "--output", tmp_path / "again")
    assert done.returncode == 0 and "the scores without n-grams are unknown" in done.stderr
    assert "not measured" in (tmp_path / "again" / "README.md").read_text(encoding="utf-8")


def test_classifier_of_several_labels_is_exported_to_transformers_and_peft(penwright: Command, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    words = {"war": "army", "action": "chase", "comedy": "laughs"}
    sets = [names for n in range(4) for names in combinations(words, n)] * 20
    rows = [
        f"a film with {' '.join(words[each] for each in names)} {n},{'|'.join(names)}" for n, names in enumerate(sets)
    ]
    table, base, run = tmp_path / "films.csv", tmp_path / "base", tmp_path / "run"
    table.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    options = [option for name, value in BERT.items() for option in ("--set", f"model.{name}={value}")]
    options += ["--steps", "20", "--set", "model.ngrams=false", *QUICK]
    made = penwright("train", table, "--run", base, *options)
    assert made.returncode == 0, made.stderr
    options = ["--from", base, "--lora", 2, "--steps", 5, "--set", "model.ngrams=true", "--set", "training.threads=1"]
    made = penwright("train", table, "--run", run, *options)
    assert made.returncode == 0, made.stderr
    cards, logits = {}, {}
    exports = tmp_path / "exports"
    adapted = (base, "--adapter", exports / "peft", "--to", "huggingface")
    for name, arguments in (
        ("base", (base, "--to", "huggingface")),
        ("mixed", (run, "--to", "huggingface")),
        ("peft", (run, "--to", "peft")),
        ("adapted", adapted),
    ):
        done = penwright("export", *arguments, "--output", exports / name)
        assert done.returncode == 0, done.stderr
        cards[name] = (exports / name / "README.md").read_text(encoding="utf-8")
        if name != "peft":
            tokenizer = transformers.AutoTokenizer.from_pretrained(exports / name)
            model = transformers.AutoModelForSequenceClassification.from_pretrained(exports / name).eval()
            assert model.config.problem_type == "multi_label_classification"
            with torch.no_grad():
                logits[name] = model(**tokenizer("a film with army chase", return_tensors="pt")).logits[0]
    expected = load(base).classify("a film with army chase")[0].scores
    found = dict(zip(model.config.id2label.values(), logits["base"].sigmoid().tolist(), strict=True))
    assert found == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(logits["adapted"], logits["mixed"], atol=1e-5, rtol=1e-5)
    classifier = load(run)
    classifier.linear = None
    alone = classifier.classify("a film with army chase")[0].scores
    scale = logits["mixed"] / torch.tensor([alone[label] for label in model.config.id2label.values()]).logit()
    torch.testing.assert_close(scale, scale[:1].expand(3), atol=1e-4, rtol=1e-4)
    limits = r"Minimum probability at which a text gets a label: .*"
    assert (
        re.findall(limits, cards["mixed"]) == re.findall(limits, cards["peft"]) == re.findall(limits, cards["adapted"])
    )
    assert (
        re.findall(r"\| micro-F1 \| .* \|", cards["mixed"]) == re.findall(r"\| micro-F1 \| .* \|", cards["peft"]) != []
    )
    assert all(f"{label} 0." in cards["mixed"] for label in words)


def test_scores_in_the_card_are_numbers_of_the_exported_model(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "classifier", tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) | {"accuracy": 0, "of": "a stranger"} for line in metrics.read_text("utf-8").splitlines()]
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    run = open_run(tmp_path / "run")
    card = _classifier_card(run, "onnx", with_scores=True)
    assert "Held-out scores: " in card and "accuracy 0" in card and "stranger" not in card
    assert "Held-out scores" not in _classifier_card(run, "onnx", with_scores=False)


def test_classifier_without_a_class_in_transformers_is_refused(penwright: Command, runs: Path, tmp_path: Path) -> None:
    done = penwright("export", runs / "classifier", "--to", "huggingface", "--output", tmp_path / "hf")
    assert done.returncode == 1 and "Export the model to onnx" in done.stderr
    assert not (tmp_path / "hf").exists()
