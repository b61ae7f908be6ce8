"""Statistics of attention heads, from their weights w[t, s] (target t attends to source s).

Each statistic is a mean over the targets of a text. Undefined statistics are NaN: distances and offsets in
cross-attention, and induction if no token occurs twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from penwright.inspection.attention_maps import AttentionPart, all_heads, attention_maps
from penwright.inspection.forward_pass import ForwardPass, PartName
from penwright.model import Model

Weights = Float[np.ndarray, "n_layers n_heads targets sources"]


@dataclass(frozen=True)
class HeadStatistics:
    """The statistics of all heads of a part. Each statistic is defined by a function of this module."""

    name: PartName
    layers: tuple[int, ...]
    entropy: Float64[np.ndarray, "n_layers n_heads"]
    confidence: Float64[np.ndarray, "n_layers n_heads"]
    distance: Float64[np.ndarray, "n_layers n_heads"]
    previous: Float64[np.ndarray, "n_layers n_heads"]
    diagonal: Float64[np.ndarray, "n_layers n_heads"]
    first: Float64[np.ndarray, "n_layers n_heads"]
    last: Float64[np.ndarray, "n_layers n_heads"]
    induction: Float64[np.ndarray, "n_layers n_heads"]


STATISTICS = tuple(HeadStatistics.__annotations__)[2:]  # names of the statistics by which heads can be sorted


def joined(parts: Sequence[HeadStatistics]) -> HeadStatistics:
    """Concatenate the statistics of several layers of the encoder, the decoder or the cross-attention."""
    layers = tuple(layer for each in parts for layer in each.layers)
    return HeadStatistics(
        parts[0].name, layers, *(np.concatenate([getattr(each, name) for each in parts]) for name in STATISTICS)
    )


def statistics_by_part(model: Model, reading: ForwardPass) -> tuple[HeadStatistics, ...]:
    """Return the statistics of every head, by part of the model. One layer is computed at a time, to save memory."""
    heads = all_heads(model)
    layers = range(max(head.layer for head in heads) + 1)
    parts = [head_statistics(part) for layer in layers for part in attention_maps(model, reading, [layer]).parts]
    names = dict.fromkeys(head.part for head in heads)
    return tuple(joined([part for part in parts if part.name == name]) for name in names)


def head_statistics(part: AttentionPart) -> HeadStatistics:
    """Compute all statistics of the heads in the encoder, the decoder or the cross-attention."""
    weights = part.weights.astype(np.float64)
    missing = np.full(weights.shape[:2], np.nan)
    across = part.name == "cross"
    ids = np.array([token.id for token in part.source_tokens], dtype=np.int64)
    return HeadStatistics(
        part.name,
        part.layers,
        entropy(weights),
        confidence(weights),
        missing if across else distance(weights),
        missing if across else offset(weights, 1),
        offset(weights, 0),
        first(weights),
        missing if part.name == "decoder" else weights[..., -1].mean(-1),
        missing if across else induction(weights, ids),
    )


def entropy(weights: Weights) -> Float[np.ndarray, "n_layers n_heads"]:
    """Return -sum_s w log w in nats: 0 for a head that attends to one token, log(sources) if it attends evenly."""
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logs).sum(-1).mean(-1)


def confidence(weights: Weights) -> Float[np.ndarray, "n_layers n_heads"]:
    """Return max_s w: 1 for a head that attends to a single token.

    Voita et al. (2019, section 4) leave the end token out of their mean.
    """
    return weights.max(-1).mean(-1)


def distance(weights: Weights) -> Float[np.ndarray, "n_layers n_heads"]:
    """Return the attention distance sum_s w |t - s|, in tokens (Vig and Belinkov 2019, section 4.3)."""
    targets, sources = np.indices(weights.shape[-2:])
    return (weights * abs(targets - sources)).sum(-1).mean(-1)


def offset(weights: Weights, back: int) -> Float[np.ndarray, "n_layers n_heads"]:
    """Return w[t, t - back], the attention to the token `back` positions earlier.

    With `back=1`, this finds heads that attend to the previous token (Voita et al. 2019). Targets without such a source
    do not count. The result is NaN if no target counts.
    """
    seen = np.diagonal(weights, -back, -2, -1)
    return seen.mean(-1) if seen.shape[-1] else np.full(weights.shape[:-2], np.nan)


def first(weights: Weights) -> Float[np.ndarray, "n_layers n_heads"]:
    """Return w[t, 0], the attention to the first token, where idle heads attend (Xiao et al. 2024, "attention sinks").

    The first target does not count: in a causal head, it can only attend to itself.
    """
    return weights[..., 1:, 0].mean(-1) if weights.shape[-2] > 1 else np.full(weights.shape[:-2], np.nan)


def induction(weights: Weights, ids: Int[np.ndarray, " length"]) -> Float[np.ndarray, "n_layers n_heads"]:
    """Return the attention to tokens that follow earlier occurrences of the target token (Olsson et al. 2022).

    This is the sum of w[t, s + 1] over the earlier positions s of token t. A target counts only if its token
    also occurs at least two positions earlier. The result is NaN if no target counts.
    """
    followers = _followers(ids)
    repeated = followers.any(-1)
    if not repeated.any():
        return np.full(weights.shape[:-2], np.nan)
    return (weights * followers).sum(-1)[..., repeated].mean(-1)


def _followers(ids: Int[np.ndarray, " length"]) -> Bool[np.ndarray, "length length"]:
    """Return a mask [t, s]: True if s precedes t and directly follows an earlier occurrence of the token at t."""
    same = ids[:, None] == ids[None, :]
    after_same = np.zeros_like(same)
    after_same[:, 1:] = same[:, :-1]
    return np.tril(after_same, -1)
