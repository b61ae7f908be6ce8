"""The table for classifiers: BERT."""

from penwright.errors import PenwrightError
from penwright.formats.architectures.architecture import Architecture, Tensors, layer_modules, rename


def _fold_token_types(tensors: Tensors) -> Tensors:
    """Add the vector of token type 0 to every position.

    A text of one part has type 0 throughout, so our model needs no token types.
    """
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
        rename("bert.embeddings.word_embeddings", "embedding.tokens"),
        rename("bert.embeddings.position_embeddings", "embedding.positions"),
        rename("bert.embeddings.LayerNorm", "embedding.norm"),
        *layer_modules(
            "bert.encoder.layer.{i}",
            "encoder.blocks.{i}",
            rename("attention.self.query", "attention.query"),
            rename("attention.self.key", "attention.key"),
            rename("attention.self.value", "attention.value"),
            rename("attention.output.dense", "attention.output"),
            rename("attention.output.LayerNorm", "attention_residual.norm"),
            rename("intermediate.dense", "feed_forward.up"),
            rename("output.dense", "feed_forward.down"),
            rename("output.LayerNorm", "feed_forward_residual.norm"),
        ),
        rename("bert.pooler.dense", "pooler"),
        rename("classifier", "output"),
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
