"""Exported classifiers and encoders compute the same in onnxruntime."""

import json
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch

from penwright.classification.classifier import Classifier
from penwright.config import ModelSettings
from penwright.decoding.batches import right_padded
from penwright.errors import PenwrightError
from penwright.formats.export import ModelMetadata
from penwright.model import make_model
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.workflows.export import save_as

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install 'penwright[onnx]')")
pytest.importorskip("onnxscript", reason="onnxscript is not installed (pip install 'penwright[onnx]')")

LABELS = ("good, really", "bad", "ünknown")
CLASSIC = {"norm": {"type": "layer"}, "positions": {"type": "learned"}, "feed_forward": "gelu", "bias": True}
KINDS: dict[str, dict[str, object]] = {
    "several labels": {"qk_norm": True, "n_kv_heads": 2, "problem_type": "multi_label_classification"},
    "a score": {**CLASSIC, "pooling": "first", "pooler": True, "problem_type": "regression"},
    "balanced": {"balanced": True, "window": 4},
    "no labels": {},
}


@pytest.fixture(scope="module")
def characters() -> Tokenizer:
    return train_tokenizer("characters", ["abcdefgh "], None)


@pytest.fixture(autouse=True)
def without_type_checks() -> Iterator[None]:
    """Disable type checks, since ints are symbols while a model is traced."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def run(folder: Path, rows: list[list[int]]) -> np.ndarray:
    padded = right_padded(rows, torch.device("cpu"))
    inputs = {"input_ids": padded.tokens.numpy(), "attention_mask": padded.padding.long().numpy()}
    found: np.ndarray = onnxruntime.InferenceSession(folder / "model.onnx").run(None, inputs)[0]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_exported_model_computes_the_same_in_onnxruntime(characters: Tokenizer, tmp_path: Path, kind: str) -> None:
    torch.manual_seed(1)
    labels = {"a score": ("stars",), "no labels": ()}.get(kind, LABELS)
    settings = ModelSettings.model_validate(
        {"d_model": 16, "n_layers": 1, "context_length": 32, "zero_init_outputs": False, **KINDS[kind]}
    )
    model = make_model("classify", characters.vocab_size, settings, len(labels)).eval()
    for name, parameter in model.named_parameters():
        if name in ("log_prior", "scale"):
            parameter.data = torch.rand_like(parameter) + 0.5
    save_as("onnx", model, characters, tmp_path / "out", metadata=ModelMetadata(labels))
    texts = ["abc", "a", "hgfedcba abc"]
    rows = [[characters.start_id, *characters.encode(text), characters.end_id] for text in texts]
    found = run(tmp_path / "out", rows)
    application = Classifier(model, characters, labels)
    if not labels:
        expected = application.embed(texts).numpy()
    elif kind == "a score":
        expected = np.array([[each.score] for each in application.classify(texts)])
    else:
        with torch.no_grad():
            expected = model(*right_padded(rows, torch.device("cpu")))
            expected = (expected - model.log_prior if kind == "balanced" else expected).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(found[1:2], run(tmp_path / "out", rows[1:2]), atol=1e-4)
    assert Tokenizer.load(tmp_path / "out" / "tokenizer.json").encode("abc") == characters.encode("abc")
    config = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert tuple(config.get("id2label", {}).values()) == labels
    properties = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx").get_modelmeta().custom_metadata_map
    assert tuple(json.loads(properties["labels"])) == labels


def test_unsupported_models_are_refused(characters: Tokenizer, tmp_path: Path) -> None:
    settings = ModelSettings(d_model=16, n_layers=1, context_length=8)
    with pytest.raises(PenwrightError, match="for classifiers and encoders"):
        save_as("onnx", make_model("generate", characters.vocab_size, settings), characters, tmp_path / "out")
    mixed = make_model("classify", characters.vocab_size, settings.model_copy(update={"ngrams": True}), 3)
    for engine in ("onnx", "huggingface"):
        with pytest.raises(PenwrightError, match=r"model\.ngrams=false"):
            save_as(engine, mixed, characters, tmp_path / "out", metadata=ModelMetadata(LABELS))
    assert not (tmp_path / "out").exists()
