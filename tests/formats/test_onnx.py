"""Exported classifiers and encoders compute the same in onnxruntime."""

import ast
import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import jaxtyping
import numpy as np
import pytest
import torch

from penwright.classification.classifier import Classifier, is_blank
from penwright.classification.linear import LinearClassifier
from penwright.classification.ngrams import NgramVectorizer
from penwright.classification.solver import Coefficients
from penwright.config import ModelSettings
from penwright.decoding.batches import right_padded
from penwright.errors import PenwrightError
from penwright.formats.export import ModelMetadata
from penwright.formats.onnx import _Mixture
from penwright.formats.tokenizer_files import wordpiece
from penwright.model import make_model
from penwright.text import BETWEEN_TEXTS, significant
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.checks import FOREIGN
from penwright.tokenizers.foreign import ForeignTokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.workflows.export import save_as

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install 'penwright[onnx]')")
pytest.importorskip("onnxscript", reason="onnxscript is not installed (pip install 'penwright[onnx]')")

pytestmark = pytest.mark.usefixtures("no_type_checks")  # ints are symbols while a model is traced
LABELS = ("good, really", "bad", "ünknown")
CLASSIC = {"norm": {"type": "layer"}, "positions": {"type": "learned"}, "feed_forward": "gelu", "bias": True}
KINDS: dict[str, dict[str, object]] = {
    "several labels": {"qk_norm": True, "n_kv_heads": 2, "problem_type": "multi_label_classification"},
    "a score": {**CLASSIC, "pooling": "first", "pooler": True, "problem_type": "regression"},
    "no labels": {},
}


@pytest.fixture(scope="module")
def characters() -> Tokenizer:
    return train_tokenizer("characters", ["abcdefgh "], None)


def run(folder: Path, rows: list[list[int]]) -> np.ndarray:
    padded = right_padded(rows, torch.device("cpu"))
    inputs = {"input_ids": padded.tokens.numpy(), "attention_mask": padded.is_token.long().numpy()}
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
        if name == "scale":
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
            expected = model(*right_padded(rows, torch.device("cpu"))).numpy()
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
    assert not (tmp_path / "out").exists()


NASTY = [
    "A fine film, a fine cast!",
    "",
    " \t\n\u200b",
    "SHOUTING Ünïcode İstanbul STRASSE straße ǅ",
    "12 345,67 ½ ٣ 2026-11-26",
    "日本語の文章です。 שלום עולם Привет, мир! สวัสดี हिन्दी",
    "family 👨‍👩‍👧‍👦 nul \0 separator \u2028 \x1c\x1d nbsp\u00a0 e\u0301 \ufeff",
    "lone \ud800 surrogate",
    "</s><pad><s><unk>[SEP][CLS] ▁ Ġ",
    "xyzzy",
    "a fine film number 7 " * 40,
    "word " * 15_000,
]
FITTED_ON = [text for text in NASTY[:9] if text.strip()] * 2 + ["a fine film number 3", "dull cast", "fine dull film"]
MIXED: dict[str, dict[str, object]] = {
    "balanced": {"balanced": True, "window": 4},
    "several labels": {"problem_type": "multi_label_classification"},
    "scores of pairs": {"problem_type": "regression", "text_pairs": True, "token_types": 2},
}


def mixed_classifier(tokenizer: Tokenizer, seed: int = 0, **changes: object) -> Classifier:
    """Return a classifier with random weights, mixed with a linear classifier with random weights."""
    torch.manual_seed(seed)
    table = {"d_model": 16, "n_layers": 1, "context_length": 32, "zero_init_outputs": False, "ngrams": True}
    settings = ModelSettings.model_validate({**table, **changes})
    labels = ("stars",) if settings.problem_type == "regression" else LABELS
    model = make_model("classify", tokenizer.vocab_size, settings, len(labels)).eval()
    for name, parameter in model.named_parameters():
        if name in ("log_prior", "scale", "mixture", "output.weight", "output.bias"):
            parameter.data = torch.rand_like(parameter) + 0.5
    vectorizer = NgramVectorizer.fit([BETWEEN_TEXTS.join((text, text[1:])) for text in FITTED_ON], 10_000, 10_000)
    coefficients = Coefficients(torch.randn(len(vectorizer.keys), len(labels)), torch.randn(len(labels)))
    linear = LinearClassifier(vectorizer, coefficients, problem=settings.problem_type)
    return Classifier(model, tokenizer, labels, linear)


@pytest.fixture(scope="module", params=MIXED)
def exported(request: pytest.FixtureRequest, characters: Tokenizer, tmp_path_factory: pytest.TempPathFactory):
    """A mixed classifier and its exported folder. Tests share them, since tracing takes seconds."""
    classifier = mixed_classifier(characters, **MIXED[request.param])
    folder = tmp_path_factory.mktemp("exported") / "onnx"
    metadata = ModelMetadata(classifier.labels, linear=classifier.linear)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        save_as("onnx", classifier.model, characters, folder, metadata=metadata)
    return classifier, folder


def load(folder: Path) -> ModuleType:
    """Return the exported classify.py as a module."""
    spec = spec_from_file_location("exported_classify", folder / "classify.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_exported_script_classifies_like_penwright(exported) -> None:
    classifier, folder = exported
    alone = load(folder).OnnxClassifier(folder)
    pairs = list(zip(NASTY, [*NASTY[1:], "A fine cast"], strict=True))
    texts = pairs if classifier.reads_pairs else NASTY
    for some in (texts, texts[:1], []):
        for found, expected in zip(alone.classify(some), classifier.classify(some), strict=True):
            assert found["label"] == expected.label
            assert found.get("labels") == (None if expected.labels is None else [*expected.labels])
            assert found["scores"] == pytest.approx(dict(expected.scores), abs=1e-5)
            assert found.get("score") == (None if expected.score is None else pytest.approx(expected.score, abs=1e-4))
    with pytest.raises(ValueError, match=r"accepts|expects"):
        alone.classify(["one text" if classifier.reads_pairs else ("a", "pair")])
    texts = [text for text in map(classifier.joined, texts) if not is_blank(text)]
    encoder = classifier.outputs(list(map(classifier._tokens, texts)))
    expected = classifier.combine(encoder, classifier.linear_outputs(texts))
    outputs = torch.from_numpy(alone.outputs(texts))
    outputs = outputs.log_softmax(-1) if classifier.model.settings.balanced else outputs
    if classifier.problem != "regression":  # the exported file returns scores that are not standardized
        torch.testing.assert_close(outputs, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["bytes", "bpe", "unigram", "wordpiece"])
def test_exported_tokenizer_is_read_without_penwright(exported, tmp_path: Path, kind: str) -> None:
    texts = [text.replace("\ud800", "") for text in FITTED_ON]
    if kind == "wordpiece":  # as in an imported BERT
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "film", "##s", "dull", "cast", "!", ","]
        file = wordpiece("\n".join(pieces), {})
        tokenizer: Tokenizer = ForeignTokenizer({**file, FOREIGN: {"pad": 0, "start": 2, "end": 3}})
    else:
        size = None if kind == "bytes" else 320
        tokenizer = train_tokenizer(kind, texts, size, prefix_space=kind == "bpe")
    model = make_model("classify", tokenizer.vocab_size, exported[0].model.settings, 3)
    classifier, alone = Classifier(model, tokenizer, LABELS), load(exported[1]).OnnxClassifier(exported[1])
    alone.tokenizer = alone.tokenizer.from_str(tokenizer.plain_content.decode())
    alone.tokenizer.encode_special_tokens = True
    alone.config |= {"bos_token_id": tokenizer.start_id, "eos_token_id": tokenizer.end_id}
    for text in NASTY:
        assert alone.windows(text) == classifier._windows(classifier._tokens(text))


def test_vocabulary_of_ngrams_may_be_empty(characters: Tokenizer) -> None:
    classifier = mixed_classifier(characters)
    empty = NgramVectorizer(np.zeros(0, np.int64), np.zeros(0, np.float32))
    linear = LinearClassifier(empty, Coefficients(torch.zeros(0, 3), torch.randn(3)))
    tokens = torch.tensor([[characters.start_id, *characters.encode("abc"), characters.end_id]])
    inputs = tokens, torch.ones_like(tokens), torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1)
    classifier.linear = linear
    found = _Mixture(classifier.model, linear)(*inputs).softmax(-1)[0]
    (expected,) = classifier.classify(["abc"])
    assert found.tolist() == pytest.approx([expected.scores[label] for label in LABELS], abs=1e-5)


def test_exported_script_runs_alone(exported) -> None:
    classifier, folder = exported
    tree = ast.parse((folder / "classify.py").read_text("utf-8"))
    names = {alias.name for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names}
    names |= {str(each.module) for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    packages = {name.split(".")[0] for name in names} - sys.stdlib_module_names
    assert packages == {"numpy", "onnxruntime", "tokenizers"}
    text = "abc\tç a" if classifier.reads_pairs else "ç a"
    command = [sys.executable, "-P", folder / "classify.py"]
    environment = {"PYTHONIOENCODING": "ascii"}  # as with a locale that cannot print the text
    done = subprocess.run(command, input=f"{text}\n".encode(), capture_output=True, check=True, env=environment)
    (result,) = classifier.classify([text])
    found = (
        [significant(result.score)] if result.score is not None else ["|".join(result.labels or [str(result.label)])]
    )
    assert done.stdout.decode().startswith("\t".join(found)) and done.stdout.decode().endswith(f"\t{text}\n")
