"""Adapters in the format of PEFT: they are read and written with the names of transformers, or refused by name."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from penwright.config import LoraSettings
from penwright.errors import PenwrightError, PenwrightWarning
from penwright.formats.export import ModelMetadata
from penwright.formats.huggingface_export import save_huggingface
from penwright.formats.peft import Adapter, load_adapter, save_adapter
from penwright.model import HEAD, Model
from penwright.model.lora import adapted_layers, merged
from penwright.model.weights import load_weights, weights_of
from penwright.tokenizers import Tokenizer

from .huggingface_models import load_huggingface
from .test_huggingface import GPT2, TRANSLATORS, randomised
from .test_huggingface_export import ENCODER

RANK, ALPHA = 2, 6.0
LABELS = ("yes", "no")


def write_adapter(folder: Path, tensors: dict[str, Tensor], **settings: object) -> None:
    """Write an adapter as PEFT does."""
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "init_lora_weights": True, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config | settings), encoding="utf-8")
    named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def adapt(theirs: transformers.PreTrainedModel, layers: list[str], base: str = "") -> dict[str, Tensor]:
    """Add random adapters to these layers of a model; return the tensors that PEFT saves for them."""
    tensors = {}
    for name in layers:
        layer = theirs.get_submodule(f"{base}{name}")
        is_transposed = isinstance(layer, transformers.pytorch_utils.Conv1D)
        rows, columns = layer.weight.T.shape if is_transposed else layer.weight.shape
        a, b = torch.randn(RANK, columns), torch.randn(rows, RANK)
        update = ALPHA / RANK * b @ a
        layer.weight.data += update.T if is_transposed else update
        tensors |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    return tensors


def apply(folder: Path, model: Model, tokenizer: Tokenizer, labels: tuple[str, ...] = ()) -> None:
    adapter = load_adapter(folder, model, tokenizer, "", labels)
    load_weights(model, merged(weights_of(model), adapter.tensors, adapter.settings), str(folder))


@torch.no_grad()
def test_adapter_of_gpt2_is_split_into_query_key_and_value(bpe: Tokenizer, tmp_path: Path) -> None:
    theirs = randomised(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)))
    theirs.save_pretrained(tmp_path)
    ours, tokens = load_huggingface(tmp_path), torch.arange(8)[None]
    layers = ["transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_fc", "transformer.h.1.attn.c_proj"]
    write_adapter(tmp_path, adapt(theirs, layers), fan_in_fan_out=True)
    apply(tmp_path, ours, bpe)
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_adapter_of_bert_replaces_its_classifier(bpe: Tokenizer, random_model, tmp_path: Path) -> None:
    ours = random_model("classify", bpe, **ENCODER)
    save_huggingface(ours, bpe, tmp_path, metadata=ModelMetadata(LABELS))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    adapter = adapt(theirs, ["bert.encoder.layer.0.attention.self.query", "bert.encoder.layer.1.output.dense"])
    theirs.classifier.weight.add_(1.0)
    head = {f"classifier.{name}": tensor.clone() for name, tensor in theirs.classifier.named_parameters()}
    write_adapter(tmp_path, adapter | head, modules_to_save=["classifier", "score"])
    apply(tmp_path, ours, bpe, LABELS)
    tokens = torch.randint(3, 60, (3, 9))
    expected = theirs(tokens, attention_mask=torch.ones_like(tokens)).logits
    torch.testing.assert_close(ours(tokens, tokens >= 0), expected, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_adapters_of_an_encoder_and_a_translator_are_read(
    padded_first: Tokenizer, random_model, tmp_path: Path
) -> None:
    encoder = random_model("classify", padded_first, 0, **ENCODER)
    save_huggingface(encoder, padded_first, tmp_path)
    theirs = transformers.AutoModel.from_pretrained(tmp_path).eval()
    write_adapter(tmp_path, adapt(theirs, ["encoder.layer.1.attention.self.value"]))  # the class has no prefix
    apply(tmp_path, encoder, padded_first)
    tokens = torch.randint(3, 60, (3, 9))
    expected = theirs(tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
    torch.testing.assert_close(encoder.hidden(tokens, tokens >= 0), expected, atol=1e-3, rtol=1e-3)

    translating = randomised(TRANSLATORS["marian"]())
    translating.save_pretrained(tmp_path)
    ours = load_huggingface(tmp_path)
    write_adapter(tmp_path, adapt(translating, ["model.decoder.layers.1.encoder_attn.q_proj"]))
    apply(tmp_path, ours, padded_first)
    expected = translating(tokens, decoder_input_ids=tokens).logits
    torch.testing.assert_close(ours(tokens, tokens >= 0, tokens), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("tensors", "settings", "named"),
    [
        ({"lm_head.lora_A.weight": (RANK, 32)}, {}, r"has lm_head\.lora_A\.weight\. .* adapts only these"),
        ({"model.embed_tokens.lora_embedding_A": (RANK, 300)}, {}, r"has model\.embed_tokens\.lora_embedding_A"),
        ({"model.norm.weight": (32,)}, {}, r"has model\.norm\.weight"),
        ({"model.layers.0.self_attn.q_proj.lora_B.bias": (32,)}, {}, r"q_proj\.lora_B\.bias"),
        ({"model.layers.0.self_attn.q_proj.lora_A.weight": (RANK, 33)}, {}, r"does not fit .*q_proj\.lora_A\.weight"),
        ({"model.layers.0.self_attn.q_proj.lora_B.weight": ()}, {}, r"does not fit .*q_proj\.lora_B\.weight"),
        ({"model.layers.0.self_attn.q_proj.lora_A.weight": (RANK, 32)}, {}, r"lacks decoder.*query\.lora_B"),
        ({}, {"alora_invocation_tokens": [1], "layer_replication": [[0, 1]]}, "alora_invocation_tokens, layer_repl"),
        ({}, {"lora_bias": True, "init_lora_weights": "pissa"}, "unsupported settings: lora_bias, init_lora_weights"),
    ],
)
def test_unsupported_adapter_is_refused_by_name(tensors, settings, named, random_model, bpe, tmp_path: Path) -> None:
    write_adapter(tmp_path, {name: torch.zeros(shape) for name, shape in tensors.items()}, **settings)
    with pytest.raises(PenwrightError, match=named):
        load_adapter(tmp_path, random_model("generate", bpe), bpe, "")


@torch.no_grad()
def test_embeddings_that_belong_to_no_token_are_removed_from_an_adapter(random_model, bpe, tmp_path: Path) -> None:
    model = random_model("generate", bpe, tie_embeddings="none")
    size, width = bpe.vocab_size, model.settings.d_model
    tables = {f"{name}.weight": torch.randn(size + 7, width) for name in ("model.embed_tokens", "lm_head")}
    layer = {f"model.layers.0.self_attn.q_proj.lora_{name}.weight": torch.zeros(RANK, 32) for name in "A"}
    layer |= {"model.layers.0.self_attn.q_proj.lora_B.weight": torch.zeros(32, RANK)}
    write_adapter(tmp_path, tables | layer, modules_to_save=["embed_tokens", "lm_head"])
    read = load_adapter(tmp_path, model, bpe, "")
    assert torch.equal(read.tensors["embedding.tokens.weight"], tables["model.embed_tokens.weight"][:size])
    assert torch.equal(read.tensors["output.weight"], tables["lm_head.weight"][:size])
    write_adapter(tmp_path, {"model.embed_tokens.weight": torch.zeros(2 * size, width)} | layer)
    with pytest.raises(PenwrightError, match=r"does not fit the model: model\.embed_tokens\.weight"):
        load_adapter(tmp_path, model, bpe, "")


def test_pickled_adapter_is_refused_unopened(random_model, bpe: Tokenizer, tmp_path: Path) -> None:
    write_adapter(tmp_path, {})
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(PenwrightError, match=r"only adapter_model\.bin\. Only safetensors .*model\.save_pretrained"):
        load_adapter(tmp_path, random_model("generate", bpe), bpe, "")


@pytest.mark.parametrize(
    "source", ["hub:own/small", "models/Small", "cache/models--own--small/snapshots/1", "small.Q8_0.gguf"]
)
def test_adapter_that_names_another_base_is_warned_of(source: str, random_model, bpe, tmp_path: Path, recwarn) -> None:
    module = "model.layers.0.self_attn.q_proj"
    tensors = {f"{module}.lora_A.weight": torch.ones(RANK, 32), f"{module}.lora_B.weight": torch.ones(32, RANK)}
    write_adapter(tmp_path, tensors, base_model_name_or_path="own/small")
    load_adapter(tmp_path, random_model("generate", bpe), bpe, "", (), source)
    assert not recwarn
    with pytest.warns(PenwrightWarning, match=r"was trained on own/small, and .* imported from hub:own/small-chat"):
        load_adapter(tmp_path, random_model("generate", bpe), bpe, "", (), "hub:own/small-chat")


def random_adapter(model: Model) -> Adapter:
    """Return an adapter of all layers, with a head as LoRA trains it."""
    settings, weights = LoraSettings(rank=RANK), weights_of(model)
    tensors = {name: tensor + 0.1 for name, tensor in weights.items() if name.split(".")[0] in (*HEAD, "log_prior")}
    for name, layer in adapted_layers(model, settings).items():
        tensors[f"{name}.lora_A"] = torch.randn(RANK, layer.in_features)
        tensors[f"{name}.lora_B"] = torch.randn(layer.out_features, RANK)
    return Adapter(settings, tensors)


@torch.no_grad()
def test_adapter_of_a_classifier_has_the_names_of_transformers(random_model, bpe: Tokenizer, tmp_path: Path) -> None:
    model, base = random_model("classify", bpe, **ENCODER, balanced=True), random_model("classify", bpe, **ENCODER)
    adapter = random_adapter(model)
    save_adapter(adapter, "bert", "classify", model, bpe, tmp_path, ModelMetadata(LABELS))
    names = load_file(tmp_path / "adapter_model.safetensors").keys()
    assert "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight" in names
    assert {"base_model.model.classifier.bias", "base_model.model.bert.pooler.dense.weight"} < names
    assert not any("prior" in name for name in names)
    config = json.loads((tmp_path / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["modules_to_save"] == ["classifier", "pooler"]
    assert "bert.encoder.layer.1.output.dense" in config["target_modules"]  # "dense" would also match the pooler
    read = load_adapter(tmp_path, base, bpe, "", LABELS)
    prior = adapter.tensors.pop("log_prior")
    adapter.tensors["output.bias"] = adapter.tensors["output.bias"] - prior
    assert read.tensors.keys() == adapter.tensors.keys()
    assert all(torch.equal(read.tensors[name], tensor) for name, tensor in adapter.tensors.items())
    of_balanced = load_adapter(tmp_path, model, bpe, "", LABELS)  # a base with a prior, which the bias contains already
    assert not of_balanced.tensors["log_prior"].any()


@torch.no_grad()
def test_adapter_of_a_classifier_of_several_labels_keeps_its_thresholds(random_model, bpe, tmp_path: Path) -> None:
    model = random_model("classify", bpe, **ENCODER, problem_type="multi_label_classification")
    adapter = random_adapter(model)
    adapter.tensors["thresholds"] = torch.tensor([0.25, 0.75])
    save_adapter(adapter, "bert", "classify", model, bpe, tmp_path, ModelMetadata(LABELS))
    config = json.loads((tmp_path / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["modules_to_save"] == ["classifier", "pooler"], "transformers has no thresholds"
    read = load_adapter(tmp_path, model, bpe, "", LABELS)
    assert torch.equal(read.tensors["thresholds"], adapter.tensors["thresholds"])


def test_adapter_that_peft_cannot_represent_is_refused_or_warned_of(random_model, bpe, tmp_path: Path) -> None:
    gpt2 = random_model(
        "generate",
        bpe,
        positions={"type": "learned"},
        norm={"type": "layer"},
        bias=True,
        feed_forward="gelu",
    )
    with pytest.raises(PenwrightError, match=r"PEFT has one adapter for transformer\.h\.0\.attn\.c_attn"):
        save_adapter(random_adapter(gpt2), "gpt2", "generate", gpt2, bpe, tmp_path)
    other = random_model("generate", bpe, norm_position="post")
    with pytest.warns(PenwrightWarning, match="only Penwright can read"):
        save_adapter(random_adapter(other), "own", "generate", other, bpe, tmp_path)
    assert load_adapter(tmp_path, other, bpe, "").tensors
