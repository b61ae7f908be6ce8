"""What kind of head each one is, in numbers of its attention weights w[t, s] (target t looks at source s).

They are means over the targets of a text. A statistic that a text or a part does not have is NaN: distances and
neighbours across two languages, induction where no token comes twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from penwright.inspection.attention_maps import AttentionPart
from penwright.inspection.forward_pass import PartName

Weights = Float[np.ndarray, "n_layers n_heads targets sources"]


@dataclass(frozen=True)
class HeadStatistics:
    """The statistics of all heads of a part; the functions of this module say what each is."""

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


STATISTICS = tuple(HeadStatistics.__annotations__)[2:]  # their names, to sort by


def joined(some: Sequence[HeadStatistics]) -> HeadStatistics:
    """Those of several layers of one part, one above the other."""
    layers = tuple(layer for each in some for layer in each.layers)
    return HeadStatistics(
        some[0].name, layers, *(np.concatenate([getattr(each, name) for each in some]) for name in STATISTICS)
    )


def head_statistics(part: AttentionPart) -> HeadStatistics:
    """All statistics of a part."""
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
    """-sum_s w log w, in nats: 0 for a head that looks at one token, log(sources) for one that looks everywhere."""
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logs).sum(-1).mean(-1)


def confidence(weights: Weights) -> Float[np.ndarray, "n_layers n_heads"]:
    """max_s w (Voita et al. 2019, section 4, whose mean leaves the end token out): 1 for a head sure where to look."""
    return weights.max(-1).mean(-1)


def distance(weights: Weights) -> Float[np.ndarray, "n_layers n_heads"]:
    """sum_s w |t - s|, in tokens (Vig and Belinkov 2019, section 4.3)."""
    targets, sources = np.indices(weights.shape[-2:])
    return (weights * abs(targets - sources)).sum(-1).mean(-1)


def offset(weights: Weights, back: int) -> Float[np.ndarray, "n_layers n_heads"]:
    """w[t, t - back]: with 1 a head that looks at the previous token (Voita et al. 2019), with 0 one at the same place.

    Over the targets that have such a source; NaN where none has.
    """
    seen = np.diagonal(weights, -back, -2, -1)
    return seen.mean(-1) if seen.shape[-1] else np.full(weights.shape[:-2], np.nan)


def first(weights: Weights) -> Float[np.ndarray, "n_layers n_heads"]:
    """w[t, 0], where heads look that have nothing to do (Xiao et al. 2024, "attention sinks").

    Over the targets after the first, since in a causal head the first can look nowhere else.
    """
    return weights[..., 1:, 0].mean(-1) if weights.shape[-2] > 1 else np.full(weights.shape[:-2], np.nan)


def induction(weights: Weights, ids: Int[np.ndarray, " length"]) -> Float[np.ndarray, "n_layers n_heads"]:
    """sum of w[t, s + 1] over the earlier places s of token t: what followed it before (Olsson et al. 2022).

    Over the targets whose token came before, but for those followed only by the target itself; NaN if there are none.
    """
    followers = _followers(ids)
    repeated = followers.any(-1)
    if not repeated.any():
        return np.full(weights.shape[:-2], np.nan)
    return (weights * followers).sum(-1)[..., repeated].mean(-1)


def _followers(ids: Int[np.ndarray, " length"]) -> Bool[np.ndarray, "length length"]:
    """[t, s]: whether s comes before t, and right after an earlier place of t's token."""
    same = ids[:, None] == ids[None, :]
    after_same = np.zeros_like(same)
    after_same[:, 1:] = same[:, :-1]
    return np.tril(after_same, -1)
