"""What architectures of transformers are in our settings and our names: tables, which can be read both ways."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from penwright.config import Table, Task, merge
from penwright.errors import PenwrightError

Config = Mapping[str, object]  # a config.json
Tensors = dict[str, Tensor]


class Rename(NamedTuple):
    """A module of theirs and the same one here; {i} is the number of its layer."""

    theirs: str
    ours: tuple[str, ...]  # several where theirs holds them side by side
    transposed: bool = False


def _unchanged(tensors: Tensors) -> Tensors:
    return tensors


@dataclass(frozen=True)
class Architecture:
    """One model class of transformers: when we can hold it, and what everything in it is called here."""

    task: Task
    keys: tuple[tuple[str, str], ...]  # of config.json and of our settings; the values of two that meet must agree
    modules: tuple[Rename, ...]
    block: Table  # our settings that make the block theirs
    supported: Mapping[str, tuple[object, ...]]  # the values we can hold of further keys, the default first
    defaults: Config = field(default_factory=dict)  # of keys that a config.json may leave out; None leaves it to us
    prepare: Callable[[Tensors], Tensors] = _unchanged  # what is more than a new name


WORDS: dict[str, dict[object, object]] = {  # values that are called differently here
    "feed_forward": {
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
        "silu": "silu",
        "swish": "silu",
    },
    "tie_embeddings": {True: "output", False: "none"},
}


def _rename(theirs: str, *ours: str, transposed: bool = False) -> Rename:
    return Rename(theirs, ours, transposed)


def _under(theirs: str, ours: str, *modules: Rename) -> tuple[Rename, ...]:
    """The modules of one layer, below their name of the layer and ours."""
    return tuple(
        Rename(f"{theirs}.{module.theirs}", tuple(f"{ours}.{name}" for name in module.ours), module.transposed)
        for module in modules
    )


def _add_prefix(tensors: Tensors) -> Tensors:
    """The first GPT-2 was saved without the name of its base model, which later ones have."""
    named = any(name.startswith("transformer.") for name in tensors)
    return tensors if named else {f"transformer.{name}": tensor for name, tensor in tensors.items()}


GPT2 = Architecture(
    task="generate",
    keys=(
        ("n_embd", "d_model"),
        ("n_layer", "n_layers"),
        ("n_head", "n_heads"),
        ("n_inner", "d_ff"),
        ("n_positions", "context_length"),
        ("activation_function", "feed_forward"),
        ("layer_norm_epsilon", "norm.eps"),
        ("tie_word_embeddings", "tie_embeddings"),
        ("resid_pdrop", "dropout"),
        ("attn_pdrop", "attention_dropout"),
    ),
    modules=(
        _rename("transformer.wte", "embedding.tokens"),
        _rename("transformer.wpe", "embedding.positions"),
        *_under(
            "transformer.h.{i}",
            "decoder.blocks.{i}",
            _rename("ln_1", "attention_residual.norm"),
            _rename("attn.c_attn", "attention.query", "attention.key", "attention.value", transposed=True),
            _rename("attn.c_proj", "attention.output", transposed=True),
            _rename("ln_2", "feed_forward_residual.norm"),
            _rename("mlp.c_fc", "feed_forward.up", transposed=True),
            _rename("mlp.c_proj", "feed_forward.down", transposed=True),
        ),
        _rename("transformer.ln_f", "decoder.norm"),
        _rename("lm_head", "output"),
    ),
    block={"positions": {"type": "learned"}, "norm": {"type": "layer"}, "bias": True},
    supported={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    defaults={"n_inner": None, "tie_word_embeddings": True, "resid_pdrop": 0.1, "attn_pdrop": 0.1},
    prepare=_add_prefix,
)

_LLAMA_KEYS = (
    ("hidden_size", "d_model"),
    ("num_hidden_layers", "n_layers"),
    ("num_attention_heads", "n_heads"),
    ("num_key_value_heads", "n_kv_heads"),
    ("head_dim", "d_head"),
    ("intermediate_size", "d_ff"),
    ("max_position_embeddings", "context_length"),
    ("rms_norm_eps", "norm.eps"),
    ("rope_theta", "positions.base"),
    ("tie_word_embeddings", "tie_embeddings"),
    ("attention_dropout", "attention_dropout"),
)
_LLAMA_BLOCK: Table = {"positions": {"type": "rotary"}, "norm": {"type": "rms"}, "feed_forward": "swiglu"}
_LLAMA_SUPPORTED: dict[str, tuple[object, ...]] = {"hidden_act": ("silu", "swish"), "rope_type": ("default",)}
_LLAMA_DEFAULTS: Config = {
    "num_key_value_heads": None,
    "head_dim": None,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
    "attention_bias": False,
    "mlp_bias": False,
}
_LLAMA_MODULES = (
    _rename("model.embed_tokens", "embedding.tokens"),
    *_under(
        "model.layers.{i}",
        "decoder.blocks.{i}",
        _rename("input_layernorm", "attention_residual.norm"),
        _rename("self_attn.q_proj", "attention.query"),
        _rename("self_attn.k_proj", "attention.key"),
        _rename("self_attn.v_proj", "attention.value"),
        _rename("self_attn.o_proj", "attention.output"),
        _rename("post_attention_layernorm", "feed_forward_residual.norm"),
        _rename("mlp.gate_proj", "feed_forward.gate"),
        _rename("mlp.up_proj", "feed_forward.up"),
        _rename("mlp.down_proj", "feed_forward.down"),
    ),
    _rename("model.norm", "decoder.norm"),
    _rename("lm_head", "output"),
)
LLAMA = Architecture(
    task="generate",
    keys=(*_LLAMA_KEYS, ("attention_bias", "bias"), ("mlp_bias", "bias")),
    modules=_LLAMA_MODULES,
    block=_LLAMA_BLOCK,
    supported=_LLAMA_SUPPORTED,
    defaults=_LLAMA_DEFAULTS,
)
QWEN3 = Architecture(
    task="generate",
    keys=_LLAMA_KEYS,
    modules=(
        *_LLAMA_MODULES,
        _rename("model.layers.{i}.self_attn.q_norm", "decoder.blocks.{i}.attention.query_norm"),
        _rename("model.layers.{i}.self_attn.k_norm", "decoder.blocks.{i}.attention.key_norm"),
    ),
    block={**_LLAMA_BLOCK, "qk_norm": True},
    supported={**_LLAMA_SUPPORTED, "attention_bias": (False,), "use_sliding_window": (False,)},
    defaults={**_LLAMA_DEFAULTS, "head_dim": 128},
)

_TRANSLATOR_KEYS = (
    ("d_model", "d_model"),
    ("encoder_layers", "n_layers"),
    ("decoder_layers", "n_decoder_layers"),
    ("encoder_attention_heads", "n_heads"),
    ("decoder_attention_heads", "n_heads"),
    ("encoder_ffn_dim", "d_ff"),
    ("decoder_ffn_dim", "d_ff"),
    ("max_position_embeddings", "context_length"),
    ("activation_function", "feed_forward"),
    ("scale_embedding", "scale_embeddings"),
    ("dropout", "dropout"),
    ("attention_dropout", "attention_dropout"),
    ("activation_dropout", "feed_forward_dropout"),
)
_TRANSLATOR_DEFAULTS: Config = {
    "scale_embedding": False,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
_TRANSLATOR_BLOCK: Table = {"norm": {"type": "layer", "eps": 1e-5}, "bias": True, "tie_embeddings": "all"}
_SELF_ATTENTION = (
    _rename("self_attn.q_proj", "attention.query"),
    _rename("self_attn.k_proj", "attention.key"),
    _rename("self_attn.v_proj", "attention.value"),
    _rename("self_attn.out_proj", "attention.output"),
    _rename("self_attn_layer_norm", "attention_residual.norm"),
)
_CROSS_ATTENTION = (
    _rename("encoder_attn.q_proj", "cross_attention.query"),
    _rename("encoder_attn.k_proj", "cross_attention.key"),
    _rename("encoder_attn.v_proj", "cross_attention.value"),
    _rename("encoder_attn.out_proj", "cross_attention.output"),
    _rename("encoder_attn_layer_norm", "cross_residual.norm"),
)
_FEED_FORWARD = (
    _rename("fc1", "feed_forward.up"),
    _rename("fc2", "feed_forward.down"),
    _rename("final_layer_norm", "feed_forward_residual.norm"),
)
_TRANSLATOR_MODULES = (
    _rename("model.shared", "source_embedding.tokens"),
    *_under("model.encoder.layers.{i}", "encoder.blocks.{i}", *_SELF_ATTENTION, *_FEED_FORWARD),
    *_under("model.decoder.layers.{i}", "decoder.blocks.{i}", *_SELF_ATTENTION, *_CROSS_ATTENTION, *_FEED_FORWARD),
)


def _name_output_bias(tensors: Tensors) -> Tensors:
    """Marian keeps the bias of its output layer as a matrix of one row, outside any module."""
    bias = tensors.pop("final_logits_bias", None)
    return tensors if bias is None else {**tensors, "final_logits.bias": bias.flatten()}


MARIAN = Architecture(
    task="translate",
    keys=_TRANSLATOR_KEYS,
    modules=(*_TRANSLATOR_MODULES, _rename("final_logits", "output")),
    block=merge(
        _TRANSLATOR_BLOCK,
        {"positions": {"type": "sinusoidal", "layout": "halves"}, "norm_position": "post", "output_bias": True},
    ),
    supported={"tie_word_embeddings": (True,), "share_encoder_decoder_embeddings": (True,)},
    defaults=_TRANSLATOR_DEFAULTS,
    prepare=_name_output_bias,
)
M2M100 = Architecture(
    task="translate",
    keys=_TRANSLATOR_KEYS,
    modules=(
        *_TRANSLATOR_MODULES,
        _rename("model.encoder.layer_norm", "encoder.norm"),
        _rename("model.decoder.layer_norm", "decoder.norm"),
    ),
    block=merge(_TRANSLATOR_BLOCK, {"positions": {"type": "sinusoidal", "layout": "tensor2tensor", "offset": 2}}),
    supported={"tie_word_embeddings": (True,), "pad_token_id": (1,)},  # positions begin after the number of padding
    defaults={**_TRANSLATOR_DEFAULTS, "scale_embedding": True, "attention_dropout": 0.1},
)


def _fold_token_types(tensors: Tensors) -> Tensors:
    """A text of one part has token type 0 everywhere, so that its vector can be added to every position beforehand."""
    positions, types = (f"bert.embeddings.{name}_embeddings.weight" for name in ("position", "token_type"))
    for name in (positions, types):
        if name not in tensors:
            raise PenwrightError(f"the tensor {name} is missing")
    first_type = tensors.pop(types)[0].float()
    return {**tensors, positions: tensors[positions].float() + first_type}


BERT = Architecture(
    task="classify",
    keys=(
        ("hidden_size", "d_model"),
        ("num_hidden_layers", "n_layers"),
        ("num_attention_heads", "n_heads"),
        ("intermediate_size", "d_ff"),
        ("max_position_embeddings", "context_length"),
        ("hidden_act", "feed_forward"),
        ("layer_norm_eps", "norm.eps"),
        ("hidden_dropout_prob", "dropout"),
        ("attention_probs_dropout_prob", "attention_dropout"),
    ),
    modules=(
        _rename("bert.embeddings.word_embeddings", "embedding.tokens"),
        _rename("bert.embeddings.position_embeddings", "embedding.positions"),
        _rename("bert.embeddings.LayerNorm", "embedding.norm"),
        *_under(
            "bert.encoder.layer.{i}",
            "encoder.blocks.{i}",
            _rename("attention.self.query", "attention.query"),
            _rename("attention.self.key", "attention.key"),
            _rename("attention.self.value", "attention.value"),
            _rename("attention.output.dense", "attention.output"),
            _rename("attention.output.LayerNorm", "attention_residual.norm"),
            _rename("intermediate.dense", "feed_forward.up"),
            _rename("output.dense", "feed_forward.down"),
            _rename("output.LayerNorm", "feed_forward_residual.norm"),
        ),
        _rename("bert.pooler.dense", "pooler"),
        _rename("classifier", "output"),
    ),
    block={
        "positions": {"type": "learned"},
        "norm": {"type": "layer"},
        "norm_position": "post",
        "embedding_norm": True,
        "bias": True,
        "pooling": "first",
        "pooler": True,
    },
    supported={"is_decoder": (False,), "position_embedding_type": ("absolute",)},
    defaults={"layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    prepare=_fold_token_types,
)

ARCHITECTURES = {
    "GPT2LMHeadModel": GPT2,
    "LlamaForCausalLM": LLAMA,
    "Qwen3ForCausalLM": QWEN3,
    "MarianMTModel": MARIAN,
    "M2M100ForConditionalGeneration": M2M100,
    "BertForSequenceClassification": BERT,
}
