"""transformers computes the same from an export, and exports can be imported again."""

from pathlib import Path

import pytest
import torch
import transformers

from penwright.classification.classifier import Classifier
from penwright.config import Table
from penwright.errors import PenwrightError
from penwright.formats.export import ModelMetadata
from penwright.formats.huggingface_export import save_huggingface
from penwright.tokenizers import Tokenizer

from .huggingface_models import load_huggingface

GPT2 = {"positions": {"type": "learned"}, "norm": {"type": "layer"}, "bias": True}
YARN = {"yarn": True, "factor": 4.0, "original_context": 16, "high_freq_factor": 3.0, "attention_factor": 1.14}
VARIANTS: dict[str, Table] = {
    "llama": {},
    "llama-untied": {"tie_embeddings": "none"},
    "llama-biases": {"bias": True},
    "llama-grouped": {"n_kv_heads": 2, "d_head": 16, "positions": {"type": "rotary", "base": 100.0}},
    "qwen3": {"qk_norm": True, "norm": {"type": "rms", "eps": 0.01}},
    "llama-3": {"positions": {"type": "rotary", "scaling": {"factor": 8.0, "original_context": 16}}},
    "llama-linear": {"positions": {"type": "rotary", "scaling": {"factor": 2.0}}},
    "llama-yarn": {"positions": {"type": "rotary", "base": 8.0, "scaling": YARN}},
    "qwen2-yarn": {"qkv_bias": True, "positions": {"type": "rotary", "scaling": YARN}},
    "mistral": {"window": 5},
    "qwen2": {"qkv_bias": True},
    "gpt2": GPT2 | {"feed_forward": "gelu_tanh"},
    "gpt2-relu": GPT2 | {"feed_forward": "relu", "dropout": 0.2},
}


@pytest.fixture(params=list(VARIANTS.values()), ids=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> Table:
    return request.param


def test_exported_writer_has_the_same_logits(variant, random_model, bpe, tmp_path):
    model = random_model("generate", bpe, **variant)
    save_huggingface(model, bpe, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.randint(bpe.vocab_size, (3, 20))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens), atol=1e-4, rtol=1e-4)


def test_exported_writer_round_trips(variant, random_model, bpe, tmp_path):
    model = random_model("generate", bpe, **variant)
    save_huggingface(model, bpe, tmp_path)
    again = load_huggingface(tmp_path)
    tokens = torch.randint(bpe.vocab_size, (3, 20))
    with torch.no_grad():
        assert torch.equal(again(tokens), model(tokens))


def test_exported_tokenizer_adds_the_start_token(random_model, tokenizer, awkward, tmp_path):
    save_huggingface(random_model("generate", tokenizer), tokenizer, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*awkward, "", " "]:
        assert theirs(text)["input_ids"] == [tokenizer.start_id, *tokenizer.encode(text)]
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode(awkward[0]) == tokenizer.encode(awkward[0])


def test_bfloat16_export_is_about_half_as_large(random_model, bpe, tmp_path):
    model = random_model("generate", bpe)
    sizes: list[int] = []
    for precision in ("float32", "bfloat16"):
        folder = Path(tmp_path / precision)
        folder.mkdir()
        save_huggingface(model, bpe, folder, precision)
        sizes.append((folder / "model.safetensors").stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"norm_position": "post"}, "model.norm_position = 'post'"),
        ({"scale_embeddings": True}, "model.scale_embeddings = True"),
        ({"window": 5, "qk_norm": True}, "model.window = 5|model.qk_norm = True"),
        ({"feed_forward": "relu_squared"}, "feed_forward"),
        ({"positions": {"type": "none"}}, "positions"),
    ],
)
def test_settings_without_a_class_in_transformers_are_refused(changes, named, random_model, bpe, tmp_path):
    with pytest.raises(PenwrightError, match=named):
        save_huggingface(random_model("generate", bpe, **changes), bpe, tmp_path)
    assert not list(tmp_path.iterdir())


CLASSIC = {
    "norm": {"type": "layer"},
    "norm_position": "post",
    "bias": True,
    "feed_forward": "gelu",
}
MARIAN = CLASSIC | {"norm": {"type": "layer", "eps": 1e-5}, "output_bias": True, "scale_embeddings": True}
TRANSLATORS: dict[str, Table] = {
    "marian": MARIAN | {"positions": {"type": "sinusoidal", "layout": "halves"}},
    "m2m100": MARIAN
    | {"positions": {"type": "sinusoidal", "layout": "tensor2tensor", "offset": 2}}
    | {"norm_position": "pre", "output_bias": False, "feed_forward": "relu", "n_decoder_layers": 3},
}
ENCODER = CLASSIC | {
    "norm": {"type": "layer", "eps": 1e-12},
    "positions": {"type": "learned"},
    "embedding_norm": True,
    "pooling": "first",
    "pooler": True,
}


@pytest.mark.parametrize("name", TRANSLATORS)
def test_exported_translator_has_the_same_logits(name, random_model, padded_first, tmp_path):
    model = random_model("translate", padded_first, **TRANSLATORS[name])
    save_huggingface(model, padded_first, tmp_path)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    source, target = torch.randint(3, 60, (2, 9)), torch.randint(3, 60, (2, 6))
    padding = torch.ones_like(source, dtype=torch.bool)
    again = load_huggingface(tmp_path)
    with torch.no_grad():
        ours = model(source, padding, target)
        torch.testing.assert_close(theirs(source, decoder_input_ids=target).logits, ours, atol=1e-4, rtol=1e-4)
        assert torch.equal(again(source, padding, target), ours)


@pytest.mark.parametrize("labels", [("yes", "no"), ()])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_exported_encoder_has_the_same_outputs(activation, labels, random_model, bpe, tmp_path):
    model = random_model("classify", bpe, len(labels), **ENCODER, pooler_activation=activation)
    save_huggingface(model, bpe, tmp_path, metadata=ModelMetadata(labels))
    auto = transformers.AutoModelForSequenceClassification if labels else transformers.AutoModel
    theirs = auto.from_pretrained(tmp_path).eval()
    tokens = torch.randint(3, 60, (3, 9))
    padding = torch.ones_like(tokens, dtype=torch.bool)
    with torch.no_grad():
        found, expected = theirs(tokens, attention_mask=padding.long()), model(tokens, padding)
        logits = found.logits if labels else found.last_hidden_state
        expected = expected if labels else model.hidden(tokens, padding)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        again = load_huggingface(tmp_path)
        if labels or activation == "tanh":
            assert torch.equal(again(tokens, padding), model(tokens, padding))
    assert not labels or list(theirs.config.id2label.values()) == list(labels)


def test_exported_classifier_keeps_the_balance_of_its_labels(random_model, bpe, tmp_path):
    labels = ("yes", "no")
    ours = Classifier(random_model("classify", bpe, **ENCODER, balanced=True), bpe, labels)
    ours.model.log_prior.data = torch.tensor([0.95, 0.05]).log()
    save_huggingface(ours.model, bpe, tmp_path, metadata=ModelMetadata(labels))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokens = torch.randint(3, 60, (3, 9))
    with torch.no_grad():
        found = theirs(tokens, attention_mask=torch.ones_like(tokens)).logits.softmax(-1)
        expected = ours.balance(ours.model(tokens, tokens >= 0).log_softmax(-1)).exp()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_exported_regression_model_predicts_on_the_scale_of_its_training(random_model, bpe, tmp_path):
    model = random_model("classify", bpe, 1, **ENCODER, problem_type="regression")
    model.scale.data = torch.tensor([3.0, 2.0])
    save_huggingface(model, bpe, tmp_path, metadata=ModelMetadata(("stars",)))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokens = torch.randint(3, 60, (3, 9))
    with torch.no_grad():
        found = theirs(tokens, attention_mask=torch.ones_like(tokens)).logits
        torch.testing.assert_close(found, 3 + 2 * model(tokens, tokens >= 0), atol=1e-4, rtol=1e-4)


def test_scores_that_bfloat16_would_round_are_not_exported_in_it(random_model, bpe, tmp_path):
    model = random_model("classify", bpe, 1, **ENCODER, problem_type="regression")
    model.scale.data = torch.tensor([2014.0, 2.5])
    with pytest.raises(PenwrightError, match=r"2014.*float32"):
        save_huggingface(model, bpe, tmp_path, "bfloat16", ModelMetadata(("year",)))


def test_exported_classifier_of_several_labels_has_the_same_probabilities(random_model, bpe, tmp_path):
    labels = ("war", "action", "comedy")
    model = random_model("classify", bpe, 3, **ENCODER, problem_type="multi_label_classification")
    save_huggingface(model, bpe, tmp_path, metadata=ModelMetadata(labels))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    text = "some words"
    (found,) = transformers.pipeline(
        "text-classification", theirs, tokenizer=transformers.AutoTokenizer.from_pretrained(tmp_path), top_k=None
    )([text])
    (expected,) = Classifier(model, bpe, labels).classify([text])
    assert {each["label"]: each["score"] for each in found} == pytest.approx(expected.scores, abs=1e-5)
    assert load_huggingface(tmp_path).settings.problem_type == "multi_label_classification"


def test_classifier_with_mean_pooling_is_refused_by_name(random_model, bpe, tmp_path):
    model = random_model("classify", bpe, **ENCODER | {"pooling": "mean", "pooler": False})
    with pytest.raises(PenwrightError, match=r"model\.pooling = 'mean', model\.pooler = False\. .*onnx"):
        save_huggingface(model, bpe, tmp_path, metadata=ModelMetadata(("yes", "no")))


def test_translator_without_a_class_in_transformers_is_refused(random_model, bpe, tmp_path):
    with pytest.raises(PenwrightError, match="ctranslate2"):
        save_huggingface(random_model("translate", bpe), bpe, tmp_path)


def test_int8_export_is_refused(random_model, bpe, tmp_path):
    with pytest.raises(PenwrightError, match="int8"):
        save_huggingface(random_model("generate", bpe), bpe, tmp_path, "int8")
