"""Scores of a model that predicts numbers: correlations, mean absolute error and nats per text."""

from math import log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from penwright.evaluation.scores import Score

Numbers = NDArray[np.float64]


def regression_scores(predicted: Numbers, truth: Numbers, deviation: float) -> tuple[Score, ...]:
    """Return Pearson's correlation, Spearman's rank correlation, the mean absolute error, and nats per text.

    The nats are those of a normal distribution around the prediction. Its standard deviation is `deviation`, that of
    the training scores.
    """
    r, n = correlation(predicted, truth), len(truth)
    error = (1 - r**2) / sqrt(max(1, n - 1))
    nats = float(np.square((predicted - truth) / deviation).mean()) / 2 + log(2 * pi) / 2
    return (
        Score("Pearson's r", r, True, f"correlation on {n:,} texts, standard error {error:.3f}", error),
        Score("Spearman's rho", correlation(ranks(predicted), ranks(truth)), True, "correlation of the ranks"),
        Score("mean absolute error", float(np.abs(predicted - truth).mean())),
        Score("nats per text", nats),
    )


def correlation(first: Numbers, second: Numbers) -> float:
    """Return Pearson's correlation, or 0 if either array is constant."""
    first, second = first - first.mean(), second - second.mean()
    norm = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / norm if norm > 0 else 0.0


def ranks(numbers: Numbers) -> Numbers:
    """Return the rank of each number. Equal numbers share the mean of their ranks."""
    _, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: Numbers = (ends - (counts - 1) / 2)[places.reshape(-1)].astype(np.float64)
    return found
