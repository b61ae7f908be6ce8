"""Export of language models to llama.cpp: GGUF files of architecture "llama", "qwen2", "qwen3" or "gpt2"."""

from collections.abc import Iterator
from math import log, sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penwright.config import ModelSettings, Precision, RotaryScaling, Table, flatten
from penwright.errors import PenwrightError, import_extra
from penwright.formats.export import NO_METADATA, ModelMetadata, check_limits, cpu_copy, rope_factors
from penwright.formats.gguf_tokenizer import describe_tokenizer
from penwright.model import Model
from penwright.model.transformer import DecoderOnly
from penwright.model.weights import weights_of
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.chat_template import template_of

FILE_NAME = "model.gguf"
GGUF_NAMES = {  # our names, mapped to those of llama.cpp; names inside a block are relative to the block
    "embedding.tokens": "token_embd",
    "embedding.positions": "position_embd",
    "decoder.norm": "output_norm",
    "output": "output",
    "attention_residual.norm": "attn_norm",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.output": "attn_output",
    "attention.query_norm": "attn_q_norm",
    "attention.key_norm": "attn_k_norm",
    "feed_forward_residual.norm": "ffn_norm",
    "feed_forward.gate": "ffn_gate",
    "feed_forward.up": "ffn_up",
    "feed_forward.down": "ffn_down",
}
KEYS = {  # our settings, mapped to GGUF keys without the architecture prefix
    "context_length": "context_length",
    "d_model": "embedding_length",
    "n_layers": "block_count",
    "d_ff": "feed_forward_length",
    "n_heads": "attention.head_count",
    "n_kv_heads": "attention.head_count_kv",
    "d_head": "attention.key_length",
    "norm.eps": "attention.layer_norm_rms_epsilon",
    "positions.base": "rope.freq_base",
}
LAYER_NORM_EPS = "attention.layer_norm_epsilon"  # the key of norm.eps for GPT-2
ROPE_FACTORS = "rope_freqs.weight"  # RoPE frequency factors: each RoPE frequency is divided by its factor
ROTARY: Table = {"positions": {"type": "rotary"}, "norm": {"type": "rms"}, "bias": False, "feed_forward": "swiglu"}
VARIANTS: dict[str, Table] = {  # architectures of llama.cpp, with our settings for them
    "llama": ROTARY,
    "qwen2": ROTARY | {"qkv_bias": True},
    "qwen3": ROTARY | {"qk_norm": True},
    "gpt2": {"positions": {"type": "learned"}, "norm": {"type": "layer"}, "bias": True, "feed_forward": "gelu_tanh"},
}
LIMITS: dict[str, tuple[object, ...]] = {
    "norm_position": ("pre",),
    "embedding_norm": (False,),
    "output_bias": (False,),
    "window": (None,),
}
REMEDY = ". If llama.cpp supports it: export it with --to huggingface, and convert it with its convert_hf_to_gguf.py"
QUANTIZATIONS: dict[Precision, str] = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}
FILE_TYPES: dict[Precision, str] = {"float32": "ALL_F32", "bfloat16": "MOSTLY_BF16", "int8": "MOSTLY_Q8_0"}


def save_gguf(
    model: Model,
    tokenizer: Tokenizer,
    folder: Path,
    precision: Precision = "float32",
    metadata: ModelMetadata = NO_METADATA,
) -> None:
    """Write model.gguf and tokenizer.json; int8 becomes Q8_0, which has one scale per 32 weights.

    Raises PenwrightError if llama.cpp does not support the model or its tokenizer, or if the gguf package is missing.
    """
    if not isinstance(model, DecoderOnly):
        raise PenwrightError(
            "gguf is for language models. Export translators to ctranslate2, and classifiers and encoders to onnx"
        )
    check_limits(model.settings, _limits(model.settings), "Penwright cannot write this model as GGUF", REMEDY)
    gguf = import_extra("gguf", "gguf", "GGUF files")
    writer = gguf.GGUFWriter(folder / FILE_NAME, variant_of(model.settings))
    writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[precision]])
    _describe_model(writer, model.settings, tokenizer.vocab_size)
    describe_tokenizer(writer, tokenizer, template_of(metadata.chat).end_of_answer(tokenizer))
    if metadata.licence is not None:
        writer.add_license(metadata.licence)
    if metadata.chat is not None:
        writer.add_chat_template(metadata.chat.template)
    if _has_llama_3_scaling(model.settings) and (factors := rope_factors(model.settings)) is not None:
        writer.add_tensor(ROPE_FACTORS, factors.numpy())
    for name, tensor in _tensors(model):
        kind = _quantization(gguf, tensor, precision)
        writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "tokenizer.json").write_bytes(tokenizer.plain_content)


def _limits(settings: ModelSettings) -> dict[str, tuple[object, ...]]:
    """Return the values that llama.cpp supports for this model's architecture, by the names of our settings."""
    variant, limits = variant_of(settings), dict(LIMITS)
    limits |= {name: (value,) for name, value in flatten(VARIANTS[variant]).items()}
    limits["qkv_bias"] = {"qwen3": (None, False), "gpt2": (None, True)}.get(variant, (None, False, True))
    if variant == "gpt2":
        limits |= {"qk_norm": (False,), "n_kv_heads": (settings.n_heads,)}
        limits["d_head"] = (settings.d_model // settings.n_heads,)
    elif variant != "llama" and _has_llama_3_scaling(settings):
        limits["positions.scaling"] = (None,)
    return limits


def _has_llama_3_scaling(settings: ModelSettings) -> bool:
    scaling = settings.positions.scaling if settings.positions.type == "rotary" else None
    return scaling is not None and scaling.original_context is not None and not scaling.yarn


def _describe_model(writer: Any, settings: ModelSettings, vocab_size: int) -> None:
    variant, table = variant_of(settings), flatten(settings.model_dump())
    writer.add_vocab_size(vocab_size)
    for ours, theirs in (KEYS | ({"norm.eps": LAYER_NORM_EPS} if variant == "gpt2" else {})).items():
        if ours in table:
            _add_number(writer, f"{variant}.{theirs}", table[ours])
    writer.add_value_length(settings.d_head)
    if settings.positions.type == "rotary":
        writer.add_rope_dimension_count(settings.d_head)
        if settings.positions.scaling is not None and not _has_llama_3_scaling(settings):
            _describe_scaling(writer, variant, settings.positions.scaling)


def _describe_scaling(writer: Any, variant: str, scaling: RotaryScaling) -> None:
    """Write linear scaling or YaRN. llama.cpp multiplies its usual attention factor of YaRN by `attn_factor`."""
    table: Table = {"factor": scaling.factor}
    if scaling.yarn:
        table |= {"original_context_length": scaling.original_context}
        table |= {"yarn_beta_slow": scaling.low_freq_factor, "yarn_beta_fast": scaling.high_freq_factor}
        table |= {"attn_factor": scaling.attention_factor / usual_attention_factor(scaling.factor)}
    writer.add_string(f"{variant}.rope.scaling.type", "yarn" if scaling.yarn else "linear")
    for name, value in table.items():
        _add_number(writer, f"{variant}.rope.scaling.{name}", value)


def usual_attention_factor(factor: float) -> float:
    """Return the attention factor of YaRN that llama.cpp computes from the scaling factor."""
    return 1.0 + 0.1 * log(factor)


def _add_number(writer: Any, key: str, value: int | float) -> None:
    (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)


def variant_of(settings: ModelSettings) -> str:
    """Return the name of the architecture in llama.cpp that is closest to the model."""
    if settings.positions.type == "learned":
        return "gpt2"
    return "qwen3" if settings.qk_norm else "qwen2" if settings.qkv_bias else "llama"


def _tensors(model: DecoderOnly) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors with their names in llama.cpp."""
    settings, weights = model.settings, weights_of(model)
    variant = variant_of(settings)
    for name, weight in weights.items():
        module, tensor = name.rpartition(".")[0], cpu_copy(weight)
        if module == "embedding.tokens" and settings.scale_embeddings:  # llama.cpp does not scale embeddings
            if settings.tie_embeddings != "none":
                yield "output.weight", tensor
            tensor = tensor * sqrt(settings.d_model)
        if module.endswith(("attention.query", "attention.key")) and variant == "llama":
            tensor = _interleaved(tensor, settings.d_head)
        if variant == "gpt2" and module.endswith(("attention.key", "attention.value")):
            continue
        if variant == "gpt2" and module.endswith("attention.query"):  # one tensor holds Q, K and V
            rest = [cpu_copy(weights[name.replace("query", part)]) for part in ("key", "value")]
            yield their_name(name).replace("attn_q", "attn_qkv"), torch.cat([tensor, *rest])
            continue
        yield their_name(name), tensor


def their_name(name: str) -> str:
    """Return the llama.cpp name of one of our parameters."""
    module, _, kind = name.rpartition(".")
    prefix, _, rest = module.partition("decoder.blocks.")
    layer, _, part = rest.partition(".")
    return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}" if rest else f"{GGUF_NAMES[prefix]}.{kind}"


def _interleaved(rows: Tensor, d_head: int) -> Tensor:
    """Reorder the rows of each head for RoPE in the architecture "llama" of llama.cpp.

    This architecture rotates adjacent pairs of dimensions. Our models, and the architecture "qwen3", rotate pairs of
    dimensions that are half a head apart.
    """
    return rows.unflatten(0, (-1, 2, d_head // 2)).transpose(1, 2).flatten(0, 2).contiguous()


def _quantization(gguf: Any, tensor: Tensor, precision: Precision) -> Any:
    """Return the GGUF type in which to store a tensor.

    Norms stay in float32. With int8, so do matrices whose row length is not a multiple of 32: Q8_0 cannot store them.
    """
    exact = tensor.dim() == 1 or (precision == "int8" and tensor.shape[1] % 32)
    return gguf.GGMLQuantizationType[QUANTIZATIONS["float32" if exact else precision]]
