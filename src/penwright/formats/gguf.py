"""Export of writers to llama.cpp: a GGUF file with model and tokenizer, as "llama" or (with QK-norm) as "qwen3"."""

from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import Any

from torch import Tensor

from penwright.config import ModelSettings, Precision
from penwright.errors import PenwrightError
from penwright.formats.outside import check_limits, cpu_copy, optional_package
from penwright.model import Model
from penwright.model.decoder_only import DecoderOnly
from penwright.model.weights import weights_of
from penwright.tokenizers import Tokenizer

FILE_NAME = "model.gguf"
NAMES = {  # our name: theirs; inside a block, relative to its name
    "embedding.tokens": "token_embd",
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
LIMITS: dict[str, tuple[object, ...]] = {
    "positions.type": ("rotary",),
    "norm.type": ("rms",),
    "norm_position": ("pre",),
    "embedding_norm": (False,),
    "feed_forward": ("swiglu",),
    "bias": (False,),
    "output_bias": (False,),
    "window": (None,),
}
QUANTISATIONS: dict[Precision, str] = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}
NORMAL, CONTROL = 1, 3  # token types of llama.cpp


def save_gguf(model: Model, tokenizer: Tokenizer, folder: Path, precision: Precision = "float32") -> None:
    """Write model.gguf and tokenizer.json; int8 becomes Q8_0 of llama.cpp, with one scale per 32 weights.

    Raises PenwrightError if llama.cpp does not support the model or its tokenizer, or if the gguf package is missing.
    """
    if not isinstance(model, DecoderOnly):
        raise PenwrightError("only a writer can be exported to gguf. Export a translator to ctranslate2")
    check_limits(model.settings, LIMITS, "llama.cpp")
    if tokenizer.kind != "bpe":
        raise PenwrightError(
            f"llama.cpp does not support the tokenizer of type {tokenizer.kind}. Only models trained with "
            '--set tokenizer.type="bpe" can be exported to gguf'
        )
    if tokenizer.joins_marks:
        raise PenwrightError(
            "llama.cpp would split words at vowel signs and combining accents, unlike this model's tokenizer. "
            "The model can be exported to huggingface or ctranslate2"
        )
    gguf = optional_package("gguf", "gguf")
    writer = gguf.GGUFWriter(folder / FILE_NAME, "qwen3" if model.settings.qk_norm else "llama")
    _describe_model(writer, model.settings, tokenizer.vocab_size)
    _describe_tokenizer(writer, tokenizer)
    for name, tensor in _tensors(model):
        kind = _quantisation(gguf, tensor, precision)
        writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer.save(folder / "tokenizer.json")


def _describe_model(writer: Any, settings: ModelSettings, vocab_size: int) -> None:
    assert settings.positions.type == "rotary"
    writer.add_vocab_size(vocab_size)
    writer.add_context_length(settings.context_length)
    writer.add_embedding_length(settings.d_model)
    writer.add_block_count(settings.n_layers)
    writer.add_feed_forward_length(settings.d_ff)
    writer.add_head_count(settings.n_heads)
    writer.add_head_count_kv(settings.n_kv_heads)
    writer.add_key_length(settings.d_head)
    writer.add_value_length(settings.d_head)
    writer.add_layer_norm_rms_eps(settings.norm.eps)
    writer.add_rope_dimension_count(settings.d_head)
    writer.add_rope_freq_base(settings.positions.base)


def _describe_tokenizer(writer: Any, tokenizer: Tokenizer) -> None:
    """Describe the tokenizer as the byte-level BPE of GPT-2; a prompt begins with <s>, as in training."""
    specials = (tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokenizer.pieces)
    writer.add_token_types([CONTROL if token in specials else NORMAL for token in range(tokenizer.vocab_size)])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer.merges])
    writer.add_pad_token_id(tokenizer.pad_id)
    writer.add_bos_token_id(tokenizer.start_id)
    writer.add_eos_token_id(tokenizer.end_id)
    writer.add_add_bos_token(True)


def _tensors(model: DecoderOnly) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors with their names in llama.cpp."""
    settings = model.settings
    for name, weight in weights_of(model).items():
        module, tensor = name.removesuffix(".weight"), cpu_copy(weight)
        if module == "embedding.tokens" and settings.scale_embeddings:  # llama.cpp does not scale: scale the table
            if settings.tie_embeddings != "none":
                yield "output.weight", tensor
            tensor = tensor * sqrt(settings.d_model)
        if module.endswith(("attention.query", "attention.key")) and not settings.qk_norm:
            tensor = _interleaved(tensor, settings.d_head)
        prefix, _, rest = module.partition("decoder.blocks.")
        layer, _, part = rest.partition(".")
        yield (f"blk.{layer}.{NAMES[part]}.weight" if rest else f"{NAMES[prefix]}.weight"), tensor


def _interleaved(rows: Tensor, d_head: int) -> Tensor:
    """Reorder the rows of each head for the rotary positions of "llama".

    "llama" rotates neighbouring pairs of dimensions. Our models, and "qwen3", rotate pairs that are half a head apart.
    """
    return rows.unflatten(0, (-1, 2, d_head // 2)).transpose(1, 2).flatten(0, 2).contiguous()


def _quantisation(gguf: Any, tensor: Tensor, precision: Precision) -> Any:
    """Return the type to store a tensor in.

    Norms stay in float32, and so do matrices whose rows Q8_0 cannot divide into blocks of 32.
    """
    exact = tensor.dim() == 1 or (precision == "int8" and tensor.shape[1] % 32)
    return gguf.GGMLQuantizationType[QUANTISATIONS["float32" if exact else precision]]
