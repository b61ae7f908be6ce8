"""Models loaded from files of transformers compute the same as transformers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from penwright.errors import PenwrightError
from penwright.formats.architectures.encoders import labels_in
from penwright.formats.huggingface import architecture_of, settings_from_huggingface
from penwright.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly

from .huggingface_models import load_huggingface, model_from_huggingface

VOCABULARY = 60
WRITER = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
GPT2 = WRITER | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
LLAMA = WRITER | {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
MSCALE = {"mscale": 0.7, "mscale_all_dim": 0.4, "beta_slow": 0.5}
TRANSLATOR = WRITER | {
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "decoder_start_token_id": 2,
    "max_position_embeddings": 32,
    "scale_embedding": True,
}
BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
DISTILBERT = {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
DISTILBERT |= {"max_position_embeddings": 32, "pad_token_id": 1}
ROBERTA = BERT | {"max_position_embeddings": 34, "pad_token_id": 1, "type_vocab_size": 1}
CLASSIFIERS = {
    "bert": lambda n: transformers.BertForSequenceClassification(transformers.BertConfig(**BERT, num_labels=n)),
    "distilbert": lambda n: transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(**DISTILBERT, num_labels=n)
    ),
    "roberta": lambda n: transformers.RobertaForSequenceClassification(
        transformers.RobertaConfig(**ROBERTA, num_labels=n)
    ),
}
ENCODERS = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**BERT)),
    "bert-without-pooler": lambda: transformers.BertModel(transformers.BertConfig(**BERT), add_pooling_layer=False),
    "bert-masked": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**BERT)),
    "distilbert": lambda: transformers.DistilBertModel(transformers.DistilBertConfig(**DISTILBERT)),
    "roberta": lambda: transformers.RobertaModel(transformers.RobertaConfig(**ROBERTA)),
    "xlm-roberta": lambda: transformers.XLMRobertaModel(transformers.XLMRobertaConfig(**ROBERTA)),
}
WRITERS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)),
    "gpt2-untied": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, tie_word_embeddings=False)),
    "gpt2-inner": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, n_inner=40)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)),
    "llama-tied": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True, rms_norm_eps=1e-3)
    ),
    "llama-base": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**LLAMA, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    ),
    "llama-biased": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True)
    ),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LLAMA, head_dim=16)),
    "llama-3": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**LLAMA, rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3})
    ),
    "llama-linear": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**LLAMA, rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0})
    ),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**LLAMA, sliding_window=4)),
    "mistral-whole": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**LLAMA, sliding_window=None)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LLAMA)),
    "qwen2-yarn": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LLAMA, rope_parameters=YARN)),
    "llama-yarn": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **{**LLAMA, "max_position_embeddings": 16},
            rope_parameters={"rope_type": "yarn", "rope_theta": 8.0, "factor": 2.0, "beta_fast": 3.0, **MSCALE},
        )
    ),
    "qwen2-unused-window": lambda: transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**LLAMA, use_sliding_window=True, sliding_window=4, max_window_layers=2)
    ),
    "qwen3-tied": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**LLAMA, head_dim=8, tie_word_embeddings=True)
    ),
}
TRANSLATORS = {
    "marian": lambda: transformers.MarianMTModel(transformers.MarianConfig(**TRANSLATOR)),
    "marian-swish": lambda: transformers.MarianMTModel(
        transformers.MarianConfig(**TRANSLATOR, activation_function="swish")
    ),
    "m2m100": lambda: transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**TRANSLATOR)),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    yield
    transformers.utils.logging.enable_progress_bar()


def randomised(model: nn.Module) -> nn.Module:
    """Perturb all weights, so that no bias is zero and no norm is one."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # skips the fixed sinusoids
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.add_(torch.randn(buffer.shape, generator=generator))
    return model.eval()


def tokens_of_length(*lengths: int) -> tuple[Tensor, Tensor]:
    """Return rows of random tokens, padded on the right with 1, and their padding masks."""
    generator = torch.Generator().manual_seed(3)
    padding = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(3, VOCABULARY, padding.shape, generator=generator)
    return tokens.where(padding, torch.tensor(1)), padding


@pytest.mark.parametrize("name", WRITERS)
def test_writer_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    theirs = randomised(WRITERS[name]())
    theirs.save_pretrained(tmp_path)
    ours = load_huggingface(tmp_path)
    assert isinstance(ours, DecoderOnly)
    tokens, _ = tokens_of_length(9, 9, 9)
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scaling", [YARN, {"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3}])
@pytest.mark.parametrize("inner", [{}, {"original_max_position_embeddings": 8}])
def test_original_context_beside_the_rope_settings_has_precedence(scaling, inner, tmp_path: Path) -> None:
    theirs = randomised(transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, rope_parameters=scaling)))
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    original = config["rope_parameters"].pop("original_max_position_embeddings")
    config |= {"original_max_position_embeddings": original, "rope_parameters": config["rope_parameters"] | inner}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours, same = load_huggingface(tmp_path), transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens, _ = tokens_of_length(24)
    with torch.no_grad():
        torch.testing.assert_close(same(tokens).logits, theirs(tokens).logits)
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_cached_writer_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    theirs = randomised(WRITERS[name]())
    theirs.save_pretrained(tmp_path)
    ours = load_huggingface(tmp_path)
    assert isinstance(ours, DecoderOnly)
    tokens, _ = tokens_of_length(9, 9)
    cache, steps = ours.new_cache(batch=2, capacity=9), []
    with torch.no_grad():
        for part in tokens.split([4, 1, 1, 3], dim=1):
            steps.append(ours(part, cache=cache))
            cache.advance(part.shape[1])
        torch.testing.assert_close(torch.cat(steps, 1), theirs(tokens).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translator_logits_equal_transformers_on_padded_sources(name: str, tmp_path: Path) -> None:
    theirs = randomised(TRANSLATORS[name]())
    theirs.save_pretrained(tmp_path)
    ours = load_huggingface(tmp_path)
    assert isinstance(ours, EncoderDecoder)
    source, source_padding = tokens_of_length(9, 4, 7)
    target, target_padding = tokens_of_length(5, 8, 6)
    with torch.no_grad():
        expected = theirs(source, attention_mask=source_padding.long(), decoder_input_ids=target).logits
        found = ours(source, source_padding, target)
    torch.testing.assert_close(found[target_padding], expected[target_padding], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_cached_translator_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    theirs = randomised(TRANSLATORS[name]())
    theirs.save_pretrained(tmp_path)
    ours = load_huggingface(tmp_path)
    assert isinstance(ours, EncoderDecoder)
    source, source_padding = tokens_of_length(9, 4)
    target, _ = tokens_of_length(6, 6)
    cache, steps = ours.new_cache(batch=2, capacity=6), []
    with torch.no_grad():
        encoded = ours.encode(source, source_padding)
        for part in target.split(1, dim=1):
            steps.append(ours.output(ours.hidden(part, encoded, cache)))
            cache.advance(1)
        expected = theirs(source, attention_mask=source_padding.long(), decoder_input_ids=target).logits
    torch.testing.assert_close(torch.cat(steps, 1), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("n_labels", [2, 5])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifier_logits_equal_transformers_on_padded_texts(name, n_labels: int, tmp_path: Path) -> None:
    theirs = randomised(CLASSIFIERS[name](n_labels))
    theirs.save_pretrained(tmp_path)
    ours = load_huggingface(tmp_path)
    assert isinstance(ours, EncoderOnly)
    tokens, padding = tokens_of_length(9, 4, 7)
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=padding.long()).logits
        torch.testing.assert_close(ours(tokens, padding), expected, atol=1e-4, rtol=1e-4)


def test_text_pair_logits_equal_bert_with_token_types(tmp_path: Path) -> None:
    theirs = randomised(CLASSIFIERS["bert"](3))
    theirs.save_pretrained(tmp_path)
    ours = load_huggingface(tmp_path)
    assert isinstance(ours, EncoderOnly) and ours.settings.token_types == 2
    ours.settings = ours.settings.model_copy(update={"text_pairs": True})
    tokens = torch.tensor([[5, 8, 9, 2, 7, 8, 2], [5, 9, 2, 7, 2, 1, 1]])  # 2 ends each text, 1 is padding
    padding, types = tokens != 1, torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0]])
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=padding.long(), token_type_ids=types).logits
        torch.testing.assert_close(ours(tokens, padding), expected, atol=1e-4, rtol=1e-4)
        assert (theirs(tokens, attention_mask=padding.long()).logits - expected).abs().max() > 1e-2


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_hidden_states_equal_transformers(name: str, tmp_path: Path) -> None:
    theirs = randomised(ENCODERS[name]())
    theirs.save_pretrained(tmp_path)
    ours = load_huggingface(tmp_path)
    assert isinstance(ours, EncoderOnly)
    tokens, padding = tokens_of_length(9, 4, 7)
    with torch.no_grad():
        found = theirs(tokens, attention_mask=padding.long(), output_hidden_states=True)
        hidden = ours.hidden(tokens, padding)
        torch.testing.assert_close(hidden[padding], found.hidden_states[-1][padding], atol=1e-4, rtol=1e-4)
        pooled = getattr(found, "pooler_output", None)
        expected = hidden[:, 0] if pooled is None else pooled
        torch.testing.assert_close(ours(tokens, padding), expected, atol=1e-4, rtol=1e-4)


def test_sharded_weights_are_read(tmp_path: Path) -> None:
    theirs = randomised(WRITERS["llama"]())
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert not (tmp_path / "model.safetensors").exists()
    tokens, _ = tokens_of_length(5)
    with torch.no_grad():
        torch.testing.assert_close(load_huggingface(tmp_path)(tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)


def test_half_precision_weights_are_read_as_float32(tmp_path: Path) -> None:
    theirs = randomised(WRITERS["gpt2"]()).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    ours = load_huggingface(tmp_path)
    assert all(parameter.dtype == torch.float32 for parameter in ours.parameters())


def test_original_gpt2_weights_without_prefix_are_read(tmp_path: Path) -> None:
    theirs = randomised(WRITERS["gpt2"]())
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    save_file(tensors | {"h.0.attn.bias": torch.ones(1, 1, 32, 32)}, path)
    tokens, _ = tokens_of_length(5)
    with torch.no_grad():
        torch.testing.assert_close(load_huggingface(tmp_path)(tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama-tied"])
def test_own_output_layer_is_kept_although_embeddings_are_tied(name: str, tmp_path: Path) -> None:
    theirs = randomised(WRITERS[name]())
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    head = torch.randn(VOCABULARY, 32, generator=torch.Generator().manual_seed(5))
    save_file(load_file(path) | {"lm_head.weight": head}, path, metadata={"format": "pt"})
    ours, tokens = load_huggingface(tmp_path), tokens_of_length(5)[0]
    assert ours.settings.tie_embeddings == "none"
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), again(tokens).logits, atol=1e-4, rtol=1e-4)


def test_translator_with_an_output_layer_of_its_own_is_refused(tmp_path: Path) -> None:
    TRANSLATORS["m2m100"]().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {"lm_head.weight": torch.ones(VOCABULARY, 32)}, path)
    with pytest.raises(PenwrightError, match=r"lm_head\.weight differs from the embedding"):
        load_huggingface(tmp_path)


def llama_config(**changes: object) -> dict[str, object]:
    return LLAMA | {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-5} | changes


def test_rotary_settings_of_older_configs_are_read() -> None:
    settings = settings_from_huggingface(llama_config(rope_theta=500_000.0, rope_scaling=None)).settings
    assert settings.positions.type == "rotary" and settings.positions.base == 500_000.0


def test_missing_head_settings_have_their_defaults() -> None:
    config = llama_config()
    del config["num_key_value_heads"]
    settings = settings_from_huggingface(config).settings
    assert (settings.n_kv_heads, settings.d_head) == (4, 8)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type = 'dynamic'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": False}}, "rope_scaling = .*'truncate': False"),
        ({"rope_scaling": {"type": "yarn", "factor": None}}, "rope_scaling = .*'factor': None"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "has no low_freq_factor"),
        ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        ({"rope_parameters": "linear"}, "RoPE settings 'linear' are not supported. They must be a single flat table"),
        ({"rope_parameters": {"full_attention": YARN}}, "RoPE settings .*full_attention.* are not supported"),
        ({"rms_norm_eps": float("nan")}, "eps: must be a finite number"),
        ({"architectures": ["BertModel"], "type_vocab_size": 3}, "type_vocab_size = 3 is not supported, only 2, 1"),
        ({"attention_bias": True}, "attention_bias = True and mlp_bias = False"),
        ({"num_attention_heads": 3}, "n_heads"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"hidden_size": "wide"}, "d_model"),
        ({"rope_scaling": {"rope_type": ["x"]}}, r"rope_type = .*x.* is not supported"),
        ({"tie_word_embeddings": ["x"]}, r"tie_word_embeddings = \['x'\] is not supported"),
        ({"architectures": [["x"]]}, "is not supported, only Llama"),
    ],
)
def test_unsupported_config_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(PenwrightError, match=named):
        settings_from_huggingface(llama_config(**change))


def test_architectures_may_be_a_string() -> None:
    assert settings_from_huggingface(llama_config(architectures="LlamaForCausalLM")) == settings_from_huggingface(
        llama_config()
    )


def test_null_flags_mean_their_defaults() -> None:
    flags = dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"))
    assert settings_from_huggingface(llama_config(**flags)) == settings_from_huggingface(llama_config())


def classifier_config(**changes: object) -> dict[str, object]:
    return BERT | {"architectures": ["BertForSequenceClassification"], "hidden_act": "gelu"} | changes


def test_labels_without_names_are_numbered() -> None:
    assert settings_from_huggingface(classifier_config(num_labels=3)).n_labels == 3
    assert labels_in({"num_labels": 3}) == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert labels_in({"num_labels": 3, "id2label": {"1": "b", "0": "a"}}) == ("a", "b")
    with pytest.raises(PenwrightError, match="has a label twice"):
        labels_in({"id2label": {"0": "a", "1": "a"}})


def test_xlm_r_without_architectures_is_an_encoder() -> None:
    config = ROBERTA | {"model_type": "xlm-roberta", "hidden_act": "gelu"}
    assert settings_from_huggingface(config).settings.context_length == 32
    assert not architecture_of(config).has_head


def test_config_without_a_required_key_is_refused_by_name() -> None:
    config = llama_config()
    del config["hidden_size"]
    with pytest.raises(PenwrightError, match="has no hidden_size"):
        settings_from_huggingface(config)


def test_different_heads_in_encoder_and_decoder_are_refused() -> None:
    config = TRANSLATOR | {"architectures": ["MarianMTModel"], "activation_function": "gelu"}
    with pytest.raises(PenwrightError, match="encoder_attention_heads = 4 and decoder_attention_heads = 2"):
        settings_from_huggingface(config | {"decoder_attention_heads": 2})


def test_missing_and_unexpected_tensors_are_named() -> None:
    tensors = WRITERS["llama"]().state_dict()
    tensors["model.layers.0.extra"] = tensors.pop("model.norm.weight")
    with pytest.raises(PenwrightError, match=r"missing .*model\.norm\.weight; superfluous .*layers\.0\.extra"):
        model_from_huggingface(llama_config(), tensors)


def test_tensor_of_the_wrong_shape_is_refused_with_both_shapes() -> None:
    with pytest.raises(PenwrightError, match=r"down_proj\.weight has shape \(32, 48\), .* \(32, 64\)"):
        model_from_huggingface(llama_config(intermediate_size=64), WRITERS["llama"]().state_dict() | wide_gates())


def wide_gates() -> dict[str, Tensor]:
    names = [f"model.layers.{layer}.mlp.{kind}_proj.weight" for layer in range(2) for kind in ("gate", "up")]
    return {name: torch.zeros(64, 32) for name in names}


def test_pickled_weights_are_never_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama_config()), encoding="utf-8")
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(PenwrightError, match=r"there is no model\.safetensors"):
        load_huggingface(tmp_path)


@pytest.mark.parametrize("content", [None, "{", "[1]", "7"])
def test_folder_without_a_readable_config_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"(config\.json cannot be read|there is no config\.json)"):
        load_huggingface(tmp_path)


def test_damaged_weights_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama_config()), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(PenwrightError, match=r"the weights in model\.safetensors cannot be read"):
        load_huggingface(tmp_path)
