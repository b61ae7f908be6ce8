"""Conversion tables for language models: GPT-2, Llama, Mistral, Qwen2 and Qwen3."""

from dataclasses import replace
from functools import partial

from penwright.config import Table
from penwright.formats.architectures import (
    Architecture,
    Config,
    Tensors,
    first_of,
    layer_modules,
    rename,
)


def _add_prefix(prefix: str, tensors: Tensors) -> Tensors:
    """Add the prefix, such as "transformer.", if it is missing: some models were saved without it."""
    if any(name.startswith(prefix) for name in tensors):
        return tensors
    return {name if name.startswith("lm_head.") else prefix + name: tensor for name, tensor in tensors.items()}


def _prepare_llama(tensors: Tensors) -> Tensors:
    return first_of("model.embed_tokens.weight", "lm_head.weight")(_add_prefix("model.", tensors))


GPT2 = Architecture(
    task="generate",
    model_type="gpt2",
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
        rename("transformer.wte", "embedding.tokens"),
        rename("transformer.wpe", "embedding.positions"),
        *layer_modules(
            "transformer.h.{i}",
            "decoder.blocks.{i}",
            rename("ln_1", "attention_residual.norm"),
            rename("attn.c_attn", "attention.query", "attention.key", "attention.value", transposed=True),
            rename("attn.c_proj", "attention.output", transposed=True),
            rename("ln_2", "feed_forward_residual.norm"),
            rename("mlp.c_fc", "feed_forward.up", transposed=True),
            rename("mlp.c_proj", "feed_forward.down", transposed=True),
        ),
        rename("transformer.ln_f", "decoder.norm"),
        rename("lm_head", "output"),
    ),
    block={"positions": {"type": "learned"}, "norm": {"type": "layer"}, "bias": True},
    supported={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    defaults={"n_inner": None, "tie_word_embeddings": True, "resid_pdrop": 0.1, "attn_pdrop": 0.1},
    prepare=partial(_add_prefix, "transformer."),
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
    ("rope_scaling", "positions.scaling"),
    ("tie_word_embeddings", "tie_embeddings"),
    ("attention_dropout", "attention_dropout"),
)
_LLAMA_BLOCK: Table = {"positions": {"type": "rotary"}, "norm": {"type": "rms"}, "feed_forward": "swiglu"}
_LLAMA_SUPPORTED: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),
    "rope_type": ("default", "linear", "llama3", "yarn"),
    "partial_rotary_factor": (1.0,),
}
_LLAMA_DEFAULTS: Config = {
    "num_key_value_heads": None,
    "head_dim": None,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
    "attention_bias": False,
    "mlp_bias": False,
}
_LLAMA_MODULES = (
    rename("model.embed_tokens", "embedding.tokens"),
    *layer_modules(
        "model.layers.{i}",
        "decoder.blocks.{i}",
        rename("input_layernorm", "attention_residual.norm"),
        rename("self_attn.q_proj", "attention.query"),
        rename("self_attn.k_proj", "attention.key"),
        rename("self_attn.v_proj", "attention.value"),
        rename("self_attn.o_proj", "attention.output"),
        rename("post_attention_layernorm", "feed_forward_residual.norm"),
        rename("mlp.gate_proj", "feed_forward.gate"),
        rename("mlp.up_proj", "feed_forward.up"),
        rename("mlp.down_proj", "feed_forward.down"),
    ),
    rename("model.norm", "decoder.norm"),
    rename("lm_head", "output"),
)
_LLAMA = Architecture(
    task="generate",
    model_type="llama",
    keys=_LLAMA_KEYS,
    modules=_LLAMA_MODULES,
    block=_LLAMA_BLOCK,
    supported=_LLAMA_SUPPORTED,
    defaults=_LLAMA_DEFAULTS,
    prepare=_prepare_llama,
)
LLAMA = replace(_LLAMA, keys=(*_LLAMA_KEYS, ("attention_bias", "bias"), ("mlp_bias", "bias")))
MISTRAL = replace(
    _LLAMA,
    model_type="mistral",
    keys=(*_LLAMA_KEYS, ("sliding_window", "window")),
    defaults={**_LLAMA_DEFAULTS, "rms_norm_eps": 1e-6, "sliding_window": 4096},
)
QWEN2 = replace(
    _LLAMA,
    model_type="qwen2",
    block={**_LLAMA_BLOCK, "qkv_bias": True},
    supported={**_LLAMA_SUPPORTED, "use_sliding_window": (False,)},
)
QWEN3 = replace(
    _LLAMA,
    model_type="qwen3",
    modules=(
        *_LLAMA_MODULES,
        rename("model.layers.{i}.self_attn.q_norm", "decoder.blocks.{i}.attention.query_norm"),
        rename("model.layers.{i}.self_attn.k_norm", "decoder.blocks.{i}.attention.key_norm"),
    ),
    block={**_LLAMA_BLOCK, "qk_norm": True},
    supported={**_LLAMA_SUPPORTED, "attention_bias": (False,), "use_sliding_window": (False,)},
    defaults={**_LLAMA_DEFAULTS, "head_dim": 128},
)

WRITERS = {
    "LlamaForCausalLM": LLAMA,
    "Qwen3ForCausalLM": QWEN3,
    "GPT2LMHeadModel": GPT2,
    "MistralForCausalLM": MISTRAL,
    "Qwen2ForCausalLM": QWEN2,
}
