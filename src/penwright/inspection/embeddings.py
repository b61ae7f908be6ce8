"""Words as points: which lie close together, by the angle between their vectors, and a flat map of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int


@dataclass(frozen=True)
class Neighbours:
    """The tokens whose vectors point most nearly where a word's does, nearest first."""

    word: str
    pieces: tuple[str, ...]  # the word's own tokens; of several, the mean of their vectors stands for the word
    ids: Int[np.ndarray, " k"]
    texts: tuple[str, ...]
    cosines: Float64[np.ndarray, " k"]


@dataclass(frozen=True)
class EmbeddingMap:
    """Tokens as points of the plane in which their vectors differ most."""

    ids: Int[np.ndarray, " n"]
    texts: tuple[str, ...]
    xy: Float64[np.ndarray, "n 2"]
    explained: Float64[np.ndarray, "2"]  # the share of the variance that each axis shows


def cosines(matrix: Float[np.ndarray, "n d_model"], vector: Float[np.ndarray, " d_model"]) -> Float64[np.ndarray, " n"]:
    """x . y / (|x| |y|) of each row with the vector; 0 where either is zero."""
    rows, other = matrix.astype(np.float64), vector.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(other)
    return np.divide(rows @ other, lengths, out=np.zeros(len(rows)), where=lengths > 0)


def nearest(
    matrix: Float[np.ndarray, "n d_model"], vector: Float[np.ndarray, " d_model"], k: int, left_out: Sequence[int] = ()
) -> tuple[Int[np.ndarray, " k"], Float64[np.ndarray, " k"]]:
    """The k rows of the largest cosine with the vector, and it; rows that are left out do not count."""
    close = cosines(matrix, vector)
    close[list(left_out)] = -np.inf
    order = np.argsort(-close, kind="stable")[: max(0, min(k, len(close) - len(set(left_out))))]
    return order, close[order]


def plane(matrix: Float[np.ndarray, "n d_model"]) -> tuple[Float64[np.ndarray, "n 2"], Float64[np.ndarray, "2"]]:
    """The first two principal components (Pearson 1901), and the share of the variance of each.

    Each axis points where its largest coordinate of the model is positive, so that the same model gives the same map.
    """
    centred = matrix.astype(np.float64) - matrix.mean(0)
    variances, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, :-3:-1]
    axes = axes * np.sign(axes[abs(axes).argmax(0), range(axes.shape[1])])
    xy, share = np.zeros((len(matrix), 2)), np.zeros(2)
    xy[:, : axes.shape[1]] = centred @ axes
    total = variances.clip(0).sum()
    share[: axes.shape[1]] = variances[:-3:-1].clip(0) / total if total > 0 else 0.0
    return xy, share
