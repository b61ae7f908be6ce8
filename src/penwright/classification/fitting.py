"""The choice of the regularization strength of a linear model by cross-validation."""

from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from penwright.classification.solver import SINGLE, SparseRows, Start, Targets, fit_coefficients, loss_and_errors
from penwright.config import ProblemType
from penwright.data.splits import Groups

STRENGTHS: Sequence[float] = (
    3.0,
    10.0,
    30.0,
    100.0,
    300.0,
)  # inverse regularization strengths to try (C in scikit-learn)
STRENGTHS_OF_SCORES: Sequence[float] = (
    0.1,
    0.3,
    1.0,
    3.0,
    10.0,
    30.0,
)  # inverse regularization strengths to try for regression
N_FOLDS, FEW_TEXTS = 5, 1000  # all folds are evaluated if there are at most this many texts
MANY_TEXTS = 16_000  # maximum number of texts per fit while the regularization strength is chosen
MANY_LABELS = 1000  # with at least this many labels, only one regularization strength is tried, to save time


class ChosenStrength(NamedTuple):
    """A regularization strength, chosen by cross-validation."""

    strength: float
    start: Start  # result of the last fit of the cross-validation; the factors of the fold that it left out are 0
    logits: Float[Tensor, "texts n_labels"]  # out-of-fold logits; 0 for texts in folds that were not evaluated
    checked: NDArray[np.int64]  # indices of the folds whose logits come from a fit on all other folds


def choose_strength(
    rows: SparseRows,
    labels: Targets,
    n_labels: int,
    n_ngrams: int,
    folds: NDArray[np.int64],
    until: float = inf,
    problem: ProblemType = SINGLE,
) -> ChosenStrength:
    """Choose the regularization strength with the lowest loss on texts that were left out of the fit.

    Normally, only one fold is left out. If there are at most FEW_TEXTS texts, each fold is left out once, because a
    single fold would be too small for a reliable choice. A fit uses at most MANY_TEXTS texts.
    """
    n_checked = int(folds.max(initial=0)) + 1 if rows.n_rows <= FEW_TEXTS else 1
    parts = [(_some(np.flatnonzero(folds != fold)), np.flatnonzero(folds == fold)) for fold in range(n_checked)]
    is_whole = rows.n_rows - len(parts[0][1]) <= MANY_TEXTS
    checked = np.arange(n_checked if is_whole else 0)
    train, check = ([rows.take(part) for part in side] for side in zip(*parts, strict=True))
    strengths = STRENGTHS_OF_SCORES if problem == "regression" else STRENGTHS
    strengths = strengths if n_labels < MANY_LABELS else strengths[1:2]
    best: ChosenStrength | None = None
    least, starts = inf, list[Start | None]([None] * n_checked)
    for number, strength in enumerate(strengths):
        end, logits, loss = share_of_time(until, 1 / (len(strengths) - number)), torch.zeros(rows.n_rows, n_labels), 0.0
        for fold, (others, own) in enumerate(parts):
            own_end, start = share_of_time(end, 1 / (n_checked - fold)), starts[fold]
            fitted = fit_coefficients(
                train[fold], labels[others], n_labels, n_ngrams, strength, start, own_end, problem
            )
            starts[fold], logits[own] = (fitted.factors, fitted.bias), fitted.logits(check[fold])
            loss += len(own) * loss_and_errors(logits[own], labels[own], problem)[0] if len(own) else 0.0
        if best is not None and loss > least:
            break
        factors = torch.zeros(rows.n_rows, n_labels)
        factors[others] = fitted.factors
        best, least = ChosenStrength(strength, (factors, fitted.bias), logits, checked), loss
    assert best is not None
    return best


def _some(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return these indices or, if there are more than MANY_TEXTS, a fixed random sample, in ascending order."""
    return np.sort(np.random.default_rng(0).permutation(places)[:MANY_TEXTS])


def stratified_folds(labels: Targets, seed: int, n_folds: int = N_FOLDS, groups: Groups = None) -> NDArray[np.int64]:
    """Assign each text to a fold at random. If each text has one label, each fold has the same share of each label.

    All texts of a group are in the same fold, unless there is only one group.
    """
    classes = labels.numpy() if labels.ndim == 1 else np.zeros(len(labels), np.int64)
    if groups is not None and (groups != groups[:1]).any():
        return _folds_of_groups(classes, groups, seed, n_folds)
    folds = np.empty(len(labels), np.int64)
    folds[np.lexsort((np.random.default_rng(seed).random(len(labels)), classes))] = np.arange(len(labels)) % n_folds
    return folds


def _folds_of_groups(
    classes: NDArray[np.int64], groups: NDArray[np.uint64], seed: int, n_folds: int
) -> NDArray[np.int64]:
    """Assign whole groups to folds, the largest first, each to the fold that has the fewest texts of its classes."""
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    rng, totals = np.random.default_rng(seed), np.bincount(classes)
    n_folds = min(n_folds, len(sizes))
    counts, of_group = np.zeros((n_folds, len(totals))), np.empty(len(sizes), np.int64)
    rows = np.split(np.argsort(group, kind="stable"), np.cumsum(sizes)[:-1])
    for number in np.lexsort((rng.random(len(sizes)), -sizes)).tolist():
        own, n = np.unique(classes[rows[number]], return_counts=True)
        costs = ((2 * counts[:, own] + n) * n / totals[own]).sum(1)
        fold = int(np.lexsort((counts.sum(1), costs))[0])
        counts[fold, own] += n
        of_group[number] = fold
    return rng.permutation(n_folds)[of_group[group]]


def share_of_time(until: float, share: float) -> float:
    """Return the time at which the fraction `share` of the period from now to `until` will have passed."""
    now = monotonic()
    return now + share * (until - now)
