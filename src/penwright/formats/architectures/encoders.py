"""The tables for encoders: BERT, DistilBERT, RoBERTa and XLM-R, with and without a classification head."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from penwright.config import Table, merge
from penwright.errors import PenwrightError
from penwright.formats.architectures import (
    Architecture,
    Config,
    Rename,
    Tensors,
    layer_modules,
    rename,
)
from penwright.tokenizers.checks import MOST_PIECES

_BLOCK: Table = {
    "positions": {"type": "learned"},
    "norm": {"type": "layer"},
    "norm_position": "post",
    "embedding_norm": True,
    "bias": True,
    "pooling": "first",
    "pooler": True,
}
_KEYS = (
    ("hidden_size", "d_model"),
    ("num_hidden_layers", "n_layers"),
    ("num_attention_heads", "n_heads"),
    ("intermediate_size", "d_ff"),
    ("max_position_embeddings", "context_length"),
    ("hidden_act", "feed_forward"),
    ("layer_norm_eps", "norm.eps"),
    ("hidden_dropout_prob", "dropout"),
    ("attention_probs_dropout_prob", "attention_dropout"),
    ("type_vocab_size", "token_types"),
)
_DEFAULTS: Config = {
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "type_vocab_size": 2,
}
_LAYER = (
    rename("attention.self.query", "attention.query"),
    rename("attention.self.key", "attention.key"),
    rename("attention.self.value", "attention.value"),
    rename("attention.output.dense", "attention.output"),
    rename("attention.output.LayerNorm", "attention_residual.norm"),
    rename("intermediate.dense", "feed_forward.up"),
    rename("output.dense", "feed_forward.down"),
    rename("output.LayerNorm", "feed_forward_residual.norm"),
)
_DISTILBERT_LAYER = (
    rename("attention.q_lin", "attention.query"),
    rename("attention.k_lin", "attention.key"),
    rename("attention.v_lin", "attention.value"),
    rename("attention.out_lin", "attention.output"),
    rename("sa_layer_norm", "attention_residual.norm"),
    rename("ffn.lin1", "feed_forward.up"),
    rename("ffn.lin2", "feed_forward.down"),
    rename("output_layer_norm", "feed_forward_residual.norm"),
)


def _modules(prefix: str, layers: str, layer: tuple[Rename, ...], head: tuple[Rename, ...]) -> tuple[Rename, ...]:
    return (
        rename(f"{prefix}embeddings.word_embeddings", "embedding.tokens"),
        rename(f"{prefix}embeddings.position_embeddings", "embedding.positions"),
        rename(f"{prefix}embeddings.token_type_embeddings", "embedding.second"),
        rename(f"{prefix}embeddings.LayerNorm", "embedding.norm"),
        *layer_modules(f"{prefix}{layers}.{{i}}", "encoder.blocks.{i}", *layer),
        *head,
    )


def _reading(prefix: str, offset: int = 0, *, types: bool = True) -> Callable[[Tensors], Tensors]:
    """Return a `prepare` function that adds the vector of token type 0 to every position, and drops unused positions.

    Only the second text of a pair has type 1. The vector of type 0 is subtracted from that of type 1. RoBERTa numbers
    positions from 2, and has a single type.
    """

    def prepare(tensors: Tensors) -> Tensors:
        known = any(name.startswith(prefix) for name in tensors)
        tensors = {f"{'' if known else prefix}{_modern(name)}": tensor for name, tensor in tensors.items()}
        names = [f"{prefix}embeddings.{kind}_embeddings.weight" for kind in ("position", "token_type")[: 1 + types]]
        for name in names:
            if name not in tensors:
                raise PenwrightError(f"the tensor {name} is missing")
        positions = tensors[names[0]][offset:].float()
        if types:
            first, *second = tensors.pop(names[1]).float()
            positions = positions + first
            if second:
                tensors[names[1]] = (second[0] - first)[None]
        return {**tensors, names[0]: positions}

    return prepare


def _modern(name: str) -> str:
    """Return the current name of a tensor. Old checkpoints, such as bert-base-uncased, use TensorFlow's names."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _writing(prefix: str, offset: int = 0) -> Callable[[Tensors], Tensors]:
    """Return a `restore` function that zeroes the vector of token type 0, which `prepare` added to the positions."""

    def restore(tensors: Tensors) -> Tensors:
        name, types = (f"{prefix}embeddings.{kind}_embeddings.weight" for kind in ("position", "token_type"))
        positions = tensors[name]
        unused = positions.new_zeros(offset, positions.shape[1])
        second = [tensors[types]] if types in tensors else []
        vectors = torch.cat([torch.zeros_like(positions[:1]), *second])
        return {**tensors, name: torch.cat([unused, positions]), types: vectors}

    return restore


def _without_head(architecture: Architecture, prefix: str, modules: tuple[Rename, ...]) -> Architecture:
    """Return the architecture without its classification head. The tensors of all heads are ignored."""
    return replace(
        architecture, modules=modules, has_head=False, ignored=("pooler.", f"{prefix}pooler.", *_OTHER_HEADS)
    )


_OTHER_HEADS = ("cls.", "lm_head.", "vocab_", "qa_outputs.")
_POOLER, _CLASSIFIER = rename("bert.pooler.dense", "pooler"), rename("classifier", "output")
BERT = Architecture(
    task="classify",
    model_type="bert",
    keys=_KEYS,
    modules=_modules("bert.", "encoder.layer", _LAYER, (_POOLER, _CLASSIFIER)),
    block=_BLOCK,
    supported={"is_decoder": (False,), "position_embedding_type": ("absolute",), "type_vocab_size": (2, 1)},
    defaults=_DEFAULTS,
    prepare=_reading("bert."),
    restore=_writing("bert."),
    ignored=("cls.",),
)
BERT_ENCODER = _without_head(BERT, "bert.", _modules("bert.", "encoder.layer", _LAYER, (_POOLER,)))
ROBERTA = replace(
    BERT,
    model_type="roberta",
    modules=_modules(
        "roberta.",
        "encoder.layer",
        _LAYER,
        (rename("classifier.dense", "pooler"), rename("classifier.out_proj", "output")),
    ),
    supported={**BERT.supported, "pad_token_id": (1,)},  # positions are numbered from pad_token_id + 1
    prepare=_reading("roberta.", 2),
    restore=_writing("roberta.", 2),
    offset=2,
    ignored=("roberta.pooler.", "lm_head."),
)
ROBERTA_ENCODER = _without_head(
    ROBERTA, "roberta.", _modules("roberta.", "encoder.layer", _LAYER, (rename("roberta.pooler.dense", "pooler"),))
)
DISTILBERT = Architecture(
    task="classify",
    model_type="distilbert",
    keys=(
        ("dim", "d_model"),
        ("n_layers", "n_layers"),
        ("n_heads", "n_heads"),
        ("hidden_dim", "d_ff"),
        ("max_position_embeddings", "context_length"),
        ("activation", "feed_forward"),
        ("dropout", "dropout"),
        ("attention_dropout", "attention_dropout"),
    ),
    modules=_modules(
        "distilbert.", "transformer.layer", _DISTILBERT_LAYER, (rename("pre_classifier", "pooler"), _CLASSIFIER)
    ),
    block=merge(_BLOCK, {"norm": {"type": "layer", "eps": 1e-12}, "pooler_activation": "relu"}),
    supported={"sinusoidal_pos_embds": (False,)},
    defaults={"dropout": 0.1, "attention_dropout": 0.1},
    prepare=_reading("distilbert.", types=False),
    ignored=("vocab_",),
)
DISTILBERT_ENCODER = replace(
    _without_head(DISTILBERT, "distilbert.", _modules("distilbert.", "transformer.layer", _DISTILBERT_LAYER, ())),
    block=merge(DISTILBERT.block, {"pooler": False}),
)

ENCODERS = {
    "BertForSequenceClassification": BERT,
    "DistilBertForSequenceClassification": DISTILBERT,
    "RobertaForSequenceClassification": ROBERTA,
    "BertModel": BERT_ENCODER,
    "DistilBertModel": DISTILBERT_ENCODER,
    "RobertaModel": ROBERTA_ENCODER,
}
SAME_ENCODERS = {  # classes with the same encoder as a class above; language-modeling heads are not loaded
    "BertForMaskedLM": "BertModel",
    "BertForNextSentencePrediction": "BertModel",
    "BertForPreTraining": "BertModel",
    "DistilBertForMaskedLM": "DistilBertModel",
    "RobertaForMaskedLM": "RobertaModel",
    "XLMRobertaForMaskedLM": "RobertaModel",
    "XLMRobertaForSequenceClassification": "RobertaForSequenceClassification",
    "XLMRobertaModel": "RobertaModel",
}


def labels_in(config: Config) -> tuple[str, ...]:
    """Return the labels of a classifier, in the order of its outputs."""
    labels, size = config.get("id2label"), config.get("num_labels", 2)
    if labels is None and isinstance(size, int):
        labels = {number: f"LABEL_{number}" for number in range(min(size, MOST_PIECES))}
    if not isinstance(labels, Mapping) or not all(str(key).isdecimal() for key in labels):
        raise PenwrightError(f"config.json: id2label = {labels!r} must number the labels from 0")
    names = tuple(str(labels[key]) for key in sorted(labels, key=int))
    if len({*names}) < len(names):
        raise PenwrightError(f"config.json: id2label = {labels!r} has a label twice. Give each a name of its own")
    return names
