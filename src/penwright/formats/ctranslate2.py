"""Export of language models and translators to CTranslate2, as a model specification filled with our weights.

CTranslate2 reads and writes tokens as strings from tokenizer.json. README.md of the export shows which special tokens
the model expects around them.
"""

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penwright.config import ModelSettings, Precision
from penwright.errors import PenwrightError, import_extra
from penwright.formats.export import NO_METADATA, ModelMetadata, check_limits, cpu_copy, rope_factors
from penwright.model import Model
from penwright.model.attention import Attention
from penwright.model.block import Block, Stack
from penwright.model.embedding import Embedding
from penwright.model.layers import GATED, FeedForward
from penwright.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly
from penwright.tokenizers import Tokenizer

ACTIVATIONS = {  # our activations, mapped to their names in CTranslate2
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "swiglu": "SWISH",
    "geglu": "GELU",
}
LIMITS: dict[str, tuple[object, ...]] = {"feed_forward": tuple(ACTIVATIONS), "window": (None,)}
NEVER = -1e4  # bias of a token that is never generated; float16 can represent it
Spec = Any  # a part of a model specification; the ctranslate2 package has no type hints


def save_ctranslate2(
    model: Model,
    tokenizer: Tokenizer,
    folder: Path,
    precision: Precision = "float32",
    metadata: ModelMetadata = NO_METADATA,
) -> None:
    """Write a model for ctranslate2.Generator or ctranslate2.Translator into an empty folder.

    On CPUs, CTranslate2 does not compute in bfloat16. Raises PenwrightError if CTranslate2 does not support the model,
    or if its package is missing.
    """
    if isinstance(model, EncoderOnly):
        raise PenwrightError(
            "ctranslate2 is for language models and translators. Export classifiers and encoders to onnx"
        )
    limits = {**LIMITS, "norm.type": ("rms",)} if model.settings.qk_norm else LIMITS
    check_limits(model.settings, limits, "CTranslate2 cannot run this model. It does not support these settings")
    specs = import_extra("ctranslate2.specs", "ctranslate2", "CTranslate2 models")
    spec = _writer(specs, model) if isinstance(model, DecoderOnly) else _translator(specs, model, tokenizer)
    pieces = tokenizer.pieces
    if isinstance(model, DecoderOnly):
        spec.register_vocabulary(pieces)
    else:
        spec.register_source_vocabulary(pieces)
        spec.register_target_vocabulary(pieces)
        spec.config.decoder_start_token = pieces[tokenizer.start_id]
        spec.config.add_source_eos = True
    unknown_id = tokenizer.pad_id if tokenizer.unknown_id is None else tokenizer.unknown_id
    spec.config.unk_token = pieces[unknown_id]  # unk_token must be in the vocabulary; otherwise, CTranslate2 adds one
    spec.config.bos_token, spec.config.eos_token = pieces[tokenizer.start_id], pieces[tokenizer.end_id]
    spec.config.layer_norm_epsilon = model.settings.norm.eps
    factors = rope_factors(model.settings)
    if factors is not None:
        _fill_rope_factors(spec, factors)
    spec.validate()
    spec.optimize(precision)
    if factors is not None:  # again in float32, because bfloat16 would change the angles of distant tokens
        _fill_rope_factors(spec, specs.model_spec.PyTorchVariable(factors))
    spec.save(str(folder))
    (folder / "tokenizer.json").write_bytes(tokenizer.plain_content)
    if tokenizer.target is not tokenizer:
        (folder / "target_tokenizer.json").write_bytes(tokenizer.target.plain_content)


def usage_of(model: Model, tokenizer: Tokenizer, end_of_answer: int | None = None) -> str:
    """Return Markdown for README.md: Python code that runs the exported model, with the special tokens it expects.

    `end_of_answer` is the token that ends the answers of a chat model.
    """
    if isinstance(model, DecoderOnly):
        before = [tokenizer.start_id] if tokenizer.begins else []
        ends = dict.fromkeys([*tokenizer.end_ids, tokenizer.end_id if end_of_answer is None else end_of_answer])
        stop = f", end_token={[tokenizer.pieces[token] for token in ends]}" if len(ends) > 1 else ""
        options = f"max_length=20, include_prompt_in_result=False{stop}"
        run = f"ctranslate2.Generator(folder).generate_batch([tokens], {options})"
        written = "found.sequences[0]"
    else:
        before, prefix = tokenizer.source(())[:-1], [tokenizer.pieces[token] for token in tokenizer.target_prefix]
        target = f", target_prefix=[{prefix}]" if prefix else ""
        run = f"ctranslate2.Translator(folder).translate_batch([tokens]{target})"
        written = f"found.hypotheses[0][{len(prefix)}:]" if prefix else "found.hypotheses[0]"
    special = "".join(f"{tokenizer.pieces[token]!r}, " for token in before)
    return f"""
To run this model with CTranslate2:

```python
import ctranslate2
from tokenizers import Tokenizer

folder = "."
tokenizer = Tokenizer.from_file(f"{{folder}}/tokenizer.json")
tokenizer.encode_special_tokens = True  # the name of a special token inside a text is text
tokens = [{special}*tokenizer.encode("It was", add_special_tokens=False).tokens]
(found,) = {run}
print(tokenizer.decoder.decode({written}))
```
"""


def _writer(specs: Any, model: DecoderOnly) -> Spec:
    settings = model.settings
    decoder = specs.TransformerDecoderSpec(
        settings.n_layers, settings.n_heads, with_encoder_attention=False, **_variant(specs, settings)
    )
    _fill_embedding(decoder, decoder.embeddings, model.embedding, settings)
    _fill_stack(decoder, model.decoder)
    _fill_linear(decoder.projection, model.output)
    return specs.TransformerDecoderModelSpec(decoder)


def _translator(specs: Any, model: EncoderDecoder, tokenizer: Tokenizer) -> Spec:
    settings, variant = model.settings, _variant(specs, model.settings)
    encoder = specs.TransformerEncoderSpec(settings.n_layers, settings.n_heads, **variant)
    decoder = specs.TransformerDecoderSpec(model.n_decoder_layers, settings.n_heads, **variant)
    _fill_embedding(encoder, encoder.embeddings[0], model.source_embedding, settings)
    _fill_stack(encoder, model.encoder)
    _fill_embedding(decoder, decoder.embeddings, model.target_embedding, settings)
    _fill_stack(decoder, model.decoder)
    _fill_linear(decoder.projection, model.output)
    if tokenizer.pad_id != tokenizer.end_id:
        bias = torch.zeros(tokenizer.vocab_size) if model.output.bias is None else decoder.projection.bias
        bias[tokenizer.pad_id] = NEVER  # Marian gives padding the logit 0, which may be the highest
        decoder.projection.bias = bias
    return specs.TransformerSpec(encoder, decoder)


def _variant(specs: Any, settings: ModelSettings) -> dict[str, Any]:
    """Return the options that the specifications of the encoder and the decoder share."""
    rotary: dict[str, Any] = {}
    if settings.positions.type == "rotary":
        rotary = {"rotary_dim": settings.d_head, "rotary_interleave": False, "rotary_base": settings.positions.base}
        if settings.positions.scaling is not None:
            rotary["rotary_scaling_type"] = specs.attention_spec.RotaryScalingType.Su
    return {
        "pre_norm": settings.norm_position == "pre",
        "activation": specs.Activation[ACTIVATIONS[settings.feed_forward]],
        "layernorm_embedding": settings.embedding_norm,
        "ffn_glu": settings.feed_forward in GATED,
        "rms_norm": settings.norm.type == "rms",
        "num_heads_kv": settings.n_kv_heads if settings.n_kv_heads < settings.n_heads else None,
        "head_dim": settings.d_head,
        "qk_norm": settings.qk_norm,
        **rotary,
    }


def _fill_embedding(spec: Spec, table: Spec, embedding: Embedding, settings: ModelSettings) -> None:
    table.weight = cpu_copy(embedding.tokens.weight)
    spec.scale_embeddings = embedding.scale != 1
    if not isinstance(embedding.norm, nn.Identity):
        _fill_norm(spec.layernorm_embedding, embedding.norm)
    if settings.positions.type != "rotary":
        spec.position_encodings.encodings = _position_table(embedding, settings)


@torch.no_grad()
def _position_table(embedding: Embedding, settings: ModelSettings) -> Tensor:
    """Return the position encodings, [context_length, d_model]; zeros for a model that has none.

    Without these zeros, CTranslate2 would add position encodings of its own.
    """
    if embedding.positions is None:
        return torch.zeros(settings.context_length, settings.d_model)
    return cpu_copy(embedding.positions(torch.arange(settings.context_length)[None])[0])


def _fill_stack(spec: Spec, stack: Stack) -> None:
    if not isinstance(stack.norm, nn.Identity):
        _fill_norm(spec.layer_norm, stack.norm)
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        assert isinstance(block, Block)
        _fill_self_attention(layer.self_attention, block.attention)
        if stack.rotary is not None and stack.rotary.factor != 1:  # YaRN scales queries and keys
            width = 2 * len(stack.rotary.frequencies)
            layer.self_attention.queries_scale = np.float32(stack.rotary.factor**2 / sqrt(width))
        _fill_norm(layer.self_attention.layer_norm, block.attention_residual.norm)
        if block.cross_attention is not None and block.cross_residual is not None:
            _fill_cross_attention(layer.attention, block.cross_attention)
            _fill_norm(layer.attention.layer_norm, block.cross_residual.norm)
        _fill_feed_forward(layer.ffn, block.feed_forward)
        _fill_norm(layer.ffn.layer_norm, block.feed_forward_residual.norm)


def _fill_self_attention(spec: Spec, attention: Attention) -> None:
    _fill_linear(spec.linear[0], attention.query, attention.key, attention.value)
    _fill_linear(spec.linear[1], attention.output)
    if not isinstance(attention.query_norm, nn.Identity):
        _fill_norm(spec.q_norm, attention.query_norm)
        _fill_norm(spec.k_norm, attention.key_norm)


def _fill_rope_factors(spec: Spec, factors: Any) -> None:
    """Store the RoPE scaling as the type "Su" of CTranslate2, which divides each frequency by a factor of its own."""
    for stack in (spec.decoder, *([spec.encoder] if hasattr(spec, "encoder") else [])):
        for layer in stack.layer:
            layer.self_attention.rotary_scaling_short_factor = factors
            layer.self_attention.rotary_scaling_long_factor = factors


def _fill_cross_attention(spec: Spec, attention: Attention) -> None:
    _fill_linear(spec.linear[0], attention.query)
    _fill_linear(spec.linear[1], attention.key, attention.value)
    _fill_linear(spec.linear[2], attention.output)
    for name in ("q_norm", "k_norm"):  # qk_norm adds norms to the specification, but our cross-attention has none
        if hasattr(spec, name):
            delattr(spec, name)


def _fill_feed_forward(spec: Spec, feed_forward: FeedForward) -> None:
    if feed_forward.gate is None:
        _fill_linear(spec.linear_0, feed_forward.up)
    else:
        _fill_linear(spec.linear_0, feed_forward.gate)
        _fill_linear(spec.linear_0_noact, feed_forward.up)
    _fill_linear(spec.linear_1, feed_forward.down)


def _fill_linear(spec: Spec, *side_by_side: nn.Linear) -> None:
    spec.weight = torch.cat([cpu_copy(layer.weight) for layer in side_by_side])
    biases = [layer.bias for layer in side_by_side if layer.bias is not None]
    if biases:
        spec.bias = torch.cat([cpu_copy(bias) for bias in biases])


def _fill_norm(spec: Spec, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    spec.gamma = cpu_copy(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = torch.zeros_like(spec.gamma) if norm.bias is None else cpu_copy(norm.bias)
