"""The choice of the regularization strength of a linear model by cross-validation."""

from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from penwright.classification.mixture import Weights, fit_mixture
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
LEAST_WEIGHT = 1e-3  # minimum label weight of an n-gram, so that no row of values is divided by 0
FEWEST_CHECKED = 500  # minimum number of given validation texts that replace cross-validation
VARIANCE = 1.0  # added to the variance of the number of texts that have both an n-gram and a label


class NgramRows(NamedTuple):
    """The TF-IDF rows of some texts, and how to weight their n-grams by the labels of the texts."""

    rows: SparseRows
    is_word: Bool[Tensor, " ngrams"]  # whether each n-gram consists of words, not of characters
    is_weighted: bool = True  # if False, all label weights are 1

    @property
    def n_ngrams(self) -> int:
        """The number of n-grams."""
        return len(self.is_word)

    def take(self, rows: NDArray[np.int64]) -> "NgramRows":
        """Return only these rows."""
        return self._replace(rows=self.rows.take(rows))

    def label_weights(self, labels: Targets, n_labels: int) -> Float[Tensor, " ngrams"]:
        """Return a weight for each n-gram. It is small if the n-gram says little about the label of a text.

        The weight is the root of the chi-squared statistic of the n-gram and the labels, divided by the number of
        texts that contain the n-gram. Its variances are smoothed, so that rare n-grams get smaller weights.
        """
        if not self.is_weighted:
            return torch.ones(self.n_ngrams)
        n_texts, total = torch.bincount(self.rows.columns, minlength=self.n_ngrams), torch.zeros(self.n_ngrams)
        for label in range(n_labels):
            has_label = labels == label if labels.ndim == 1 else labels[:, label] > 0
            share = float(has_label.sum()) / max(1, len(has_label))
            columns = self.rows.take(has_label.numpy().nonzero()[0]).columns
            excess = torch.bincount(columns, minlength=self.n_ngrams) - share * n_texts
            total += excess.square_().div_(share * (1 - share) * n_texts + VARIANCE)
        return (total / n_texts.clamp(min=1)).sqrt().clamp(min=LEAST_WEIGHT)

    def weighted(self, weights: Float[Tensor, " ngrams"]) -> SparseRows:
        """Multiply the values by these weights. Normalize the words and the characters of each text again."""
        if not self.is_weighted:
            return self.rows
        columns, values, offsets = self.rows
        values = values * weights[columns]
        groups = 2 * torch.repeat_interleave(torch.arange(self.rows.n_rows), offsets.diff().long())
        groups += self.is_word[columns]
        squares = torch.bincount(groups, values.square(), 2 * self.rows.n_rows)
        return SparseRows(columns, values / squares.sqrt().float()[groups], offsets)

    def split(
        self, labels: Targets, n_labels: int, train: NDArray[np.int64], check: NDArray[np.int64]
    ) -> tuple[SparseRows, SparseRows]:
        """Return the rows of two parts. The labels of the first part weight the n-grams of both."""
        part = self.take(train)
        weights = part.label_weights(labels[train], n_labels)
        return part.weighted(weights), self.take(check).weighted(weights)


class HeldOut(NamedTuple):
    """The texts that are held out to choose the regularization strength.

    At least FEWEST_CHECKED validation texts, with their targets, are used instead of cross-validation, except for a
    balanced classifier. In cross-validation, the texts of a group are held out together.
    """

    groups: Groups = None
    validation: tuple[Sequence[str], Targets] | None = None


CROSS_VALIDATION = HeldOut()


class ChosenStrength(NamedTuple):
    """A regularization strength, chosen by cross-validation."""

    strength: float
    ngrams: NgramRows  # with or without label weights, whichever has the lower loss
    start: Start  # result of the last fit of the cross-validation; the factors of the fold that it left out are 0
    logits: Float[Tensor, "texts n_labels"]  # out-of-fold logits; 0 for texts in folds that were not evaluated
    checked: NDArray[np.int64]  # indices of the folds whose logits come from a fit on all other folds


def choose_strength(
    ngrams: NgramRows,
    labels: Targets,
    n_labels: int,
    folds: NDArray[np.int64],
    until: float = inf,
    problem: ProblemType = SINGLE,
) -> ChosenStrength:
    """Choose the regularization strength with the lowest loss on texts that were left out of the fit.

    Normally, only one fold is left out. If there are at most FEW_TEXTS texts, each fold is left out once, because a
    single fold would be too small for a reliable choice. A fit uses at most MANY_TEXTS texts. At the end, n-grams
    without label weights are tried with the same strength. Scores and many labels have no label weights.
    Texts of fold -1 are never left out.
    """
    n_checked = int(folds.max(initial=0)) + 1 if len(labels) <= FEW_TEXTS else 1
    parts = [(_some(np.flatnonzero(folds != fold)), np.flatnonzero(folds == fold)) for fold in range(n_checked)]
    strengths = STRENGTHS_OF_SCORES if problem == "regression" else STRENGTHS
    strengths = strengths if n_labels < MANY_LABELS else strengths[1:2]
    ngrams = ngrams._replace(is_weighted=ngrams.is_weighted and problem != "regression" and n_labels < MANY_LABELS)
    rows = [ngrams.split(labels, n_labels, *part) for part in parts]
    is_whole = len(labels) - len(parts[0][1]) <= MANY_TEXTS
    best: ChosenStrength | None = None
    least, starts, left = inf, list[Start | None]([None] * n_checked), list(strengths)
    while left and (best is None or monotonic() <= until):
        strength, end = left[0], share_of_time(until, 1 / (len(left) + ngrams.is_weighted))
        logits, loss, left = torch.zeros(len(labels), n_labels), 0.0, left[1:]
        for fold, ((others, own), (train, check)) in enumerate(zip(parts, rows, strict=True)):
            own_end, start = share_of_time(end, 1 / (n_checked - fold)), starts[fold]
            fitted = fit_coefficients(
                train, labels[others], n_labels, ngrams.n_ngrams, strength, start, own_end, problem
            )
            starts[fold], logits[own] = (fitted.factors, fitted.bias), fitted.logits(check)
            loss += len(own) * loss_and_errors(logits[own], labels[own], problem)[0] if len(own) else 0.0
        if best is not None and loss > least:
            left = []
        else:
            factors = torch.zeros(len(labels), n_labels)
            factors[others] = fitted.factors
            checked = np.arange(n_checked if is_whole else 0)
            best, least = ChosenStrength(strength, ngrams, (factors, fitted.bias), logits, checked), loss
        if not left and ngrams.is_weighted:
            ngrams, left = ngrams._replace(is_weighted=False), [best.strength]
            rows = [ngrams.split(labels, n_labels, *part) for part in parts]
    assert best is not None
    return best


def choose_strength_on(
    check: tuple[SparseRows, Int64[Tensor, " others"] | Float[Tensor, "others n_labels"]],
    ngrams: NgramRows,
    labels: Targets,
    n_labels: int,
    until: float = inf,
    problem: ProblemType = SINGLE,
) -> ChosenStrength:
    """Choose the regularization strength with the lowest loss on validation texts.

    `check` holds the rows and the targets of these texts. The result has no out-of-fold logits, because no training
    text is left out.
    """
    rows, targets = check
    n, folds = len(labels), np.concatenate([np.full(len(labels), -1), np.zeros(len(targets), np.int64)])
    both = ngrams._replace(rows=ngrams.rows.append(rows))
    chosen = choose_strength(both, torch.cat([labels, targets]), n_labels, folds, until, problem)
    factors, bias = chosen.start
    weighted = ngrams._replace(is_weighted=chosen.ngrams.is_weighted)
    return chosen._replace(ngrams=weighted, start=(factors[:n], bias), checked=chosen.checked[:0])


def logits_of_fold(
    chosen: ChosenStrength, labels: Targets, n_labels: int, folds: NDArray[np.int64], fold: int
) -> Float[Tensor, "fold n_labels"]:
    """Return the logits of the texts of a fold, from a fit on all other folds."""
    others, own = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
    train, check = chosen.ngrams.split(labels, n_labels, others, own)
    n_ngrams = chosen.ngrams.n_ngrams
    return fit_coefficients(train, labels[others], n_labels, n_ngrams, chosen.strength).logits(check)


def fit_balancing(
    labels: Targets, n_labels: int, folds: NDArray[np.int64], chosen: ChosenStrength, last: float
) -> Weights:
    """Fit the weight of the log label shares and the scale of the logits, with all labels counted equally.

    The fit uses out-of-fold logits, since classifiers quickly overfit the texts of a rare label. Folds that
    `choose_strength` has not evaluated are evaluated now, but no evaluation starts after the time `last`.
    """
    logits, checked = chosen.logits, np.isin(folds, chosen.checked)
    for fold in np.setdiff1d(folds, chosen.checked).tolist():
        if monotonic() > last and checked.any():
            break
        logits[folds == fold] = logits_of_fold(chosen, labels, n_labels, folds, fold)
        checked[folds == fold] = True
    seen, truth = torch.from_numpy(checked), labels[torch.from_numpy(checked)]
    against = -log_shares_of(labels, n_labels).expand(len(truth), -1)
    shares, scale = fit_mixture(against, logits[seen].log_softmax(-1), truth, (1.0, 1.0), balanced=True).tolist()
    return shares, scale


def log_shares_of(labels: Targets, n_labels: int) -> Float[Tensor, " n_labels"]:
    """Return the logarithm of the share of each label."""
    counts = torch.bincount(labels, minlength=n_labels).clamp(min=1).float()
    return (counts / counts.sum()).log()


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
