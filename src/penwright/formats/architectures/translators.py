"""The tables for translators: Marian (OPUS-MT) and M2M100 (also for NLLB)."""

from penwright.config import Table, merge
from penwright.formats.architectures import (
    Architecture,
    Config,
    Tensors,
    first_of,
    layer_modules,
    rename,
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
    rename("self_attn.q_proj", "attention.query"),
    rename("self_attn.k_proj", "attention.key"),
    rename("self_attn.v_proj", "attention.value"),
    rename("self_attn.out_proj", "attention.output"),
    rename("self_attn_layer_norm", "attention_residual.norm"),
)
_CROSS_ATTENTION = (
    rename("encoder_attn.q_proj", "cross_attention.query"),
    rename("encoder_attn.k_proj", "cross_attention.key"),
    rename("encoder_attn.v_proj", "cross_attention.value"),
    rename("encoder_attn.out_proj", "cross_attention.output"),
    rename("encoder_attn_layer_norm", "cross_residual.norm"),
)
_FEED_FORWARD = (
    rename("fc1", "feed_forward.up"),
    rename("fc2", "feed_forward.down"),
    rename("final_layer_norm", "feed_forward_residual.norm"),
)
_TRANSLATOR_MODULES = (
    rename("model.shared", "source_embedding.tokens"),
    *layer_modules("model.encoder.layers.{i}", "encoder.blocks.{i}", *_SELF_ATTENTION, *_FEED_FORWARD),
    *layer_modules(
        "model.decoder.layers.{i}", "decoder.blocks.{i}", *_SELF_ATTENTION, *_CROSS_ATTENTION, *_FEED_FORWARD
    ),
)


_find_shared = first_of(
    "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
)


def _name_output_bias(tensors: Tensors) -> Tensors:
    """Rename and flatten the bias of the output layer.

    Marian stores the bias as a matrix with one row, outside of any module.
    """
    bias = tensors.pop("final_logits_bias", None)
    return _find_shared(tensors if bias is None else {**tensors, "final_logits.bias": bias.flatten()})


def _restore_output_bias(tensors: Tensors) -> Tensors:
    """Undo _name_output_bias()."""
    bias = tensors.pop("final_logits.bias")
    return {**tensors, "final_logits_bias": bias[None]}


MARIAN = Architecture(
    task="translate",
    model_type="marian",
    keys=_TRANSLATOR_KEYS,
    modules=(*_TRANSLATOR_MODULES, rename("final_logits", "output")),
    block=merge(
        _TRANSLATOR_BLOCK,
        {"positions": {"type": "sinusoidal", "layout": "halves"}, "norm_position": "post", "output_bias": True},
    ),
    supported={
        "tie_word_embeddings": (True,),
        "share_encoder_decoder_embeddings": (True,),
        "normalize_before": (False,),
        "normalize_embedding": (False,),
    },
    defaults=_TRANSLATOR_DEFAULTS,
    prepare=_name_output_bias,
    restore=_restore_output_bias,
)
M2M100 = Architecture(
    task="translate",
    model_type="m2m_100",
    keys=_TRANSLATOR_KEYS,
    modules=(
        *_TRANSLATOR_MODULES,
        rename("model.encoder.layer_norm", "encoder.norm"),
        rename("model.decoder.layer_norm", "decoder.norm"),
    ),
    block=merge(_TRANSLATOR_BLOCK, {"positions": {"type": "sinusoidal", "layout": "tensor2tensor", "offset": 2}}),
    supported={"tie_word_embeddings": (True,), "pad_token_id": (1,)},  # positions are numbered from pad_token_id + 1
    defaults={**_TRANSLATOR_DEFAULTS, "scale_embedding": True, "attention_dropout": 0.1},
    prepare=_find_shared,
)

TRANSLATORS = {"MarianMTModel": MARIAN, "M2M100ForConditionalGeneration": M2M100}
