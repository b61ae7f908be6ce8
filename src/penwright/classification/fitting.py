"""An L-BFGS solver for generalized linear models on sparse features, and the sparse matrices of these features."""

from collections.abc import Callable, Sequence
from math import inf
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int32, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

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
MOST_WORK = 1e11  # maximum number of multiplications per fit; limits the number of iterations
MOST_ITERATIONS, FEWEST_ITERATIONS = 100, 5
MEMORY = 6  # number of past updates that L-BFGS remembers
TOLERANCE = 1e-5  # a fit ends when no entry of the gradient of the mean loss exceeds this value
# Targets: the label id of each text; for multi-label texts, 0 or 1 for each label; for scores, standardized numbers.
Targets = Int64[Tensor, " texts"] | Float[Tensor, "texts n_labels"]
SINGLE: ProblemType = "single_label_classification"


class SparseRows(NamedTuple):
    """A sparse matrix by rows (CSR): row i holds the `columns` and `values` from offsets[i] to offsets[i + 1]."""

    columns: Int32[Tensor, " entries"]
    values: Float32[Tensor, " entries"]
    offsets: Int32[Tensor, " rows_and_one"]

    @classmethod
    def of_numpy(
        cls, columns: NDArray[np.int32], values: NDArray[np.float32], offsets: NDArray[np.int32]
    ) -> "SparseRows":
        """Return a matrix that shares the memory of these arrays."""
        return cls(torch.from_numpy(columns), torch.from_numpy(values), torch.from_numpy(offsets))

    @classmethod
    def of_dense(cls, matrix: Float[Tensor, "rows width"]) -> "SparseRows":
        """Convert a dense matrix to this sparse format. Zeros are stored, too."""
        n, width = matrix.shape
        offsets = torch.arange(0, n * width + 1, width, dtype=torch.int32)
        return cls(torch.arange(width, dtype=torch.int32).repeat(n), matrix.float().flatten(), offsets)

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.offsets) - 1

    def dot(self, matrix: Float[Tensor, "columns width"]) -> Float[Tensor, "rows width"]:
        """Multiply these rows by a dense matrix.

        This uses a weighted embedding bag, which runs on all cores on every platform. PyTorch's sparse matrices use
        several cores only with MKL.
        """
        return F.embedding_bag(
            self.columns,
            matrix,
            self.offsets,
            mode="sum",
            per_sample_weights=self.values,
            include_last_offset=True,
        )

    def transpose(self, n_columns: int) -> "SparseRows":
        """Return the transposed matrix."""
        order = torch.argsort(self.columns, stable=True)
        rows = torch.repeat_interleave(torch.arange(self.n_rows, dtype=torch.int32), self.offsets.diff().long())
        counts = torch.bincount(self.columns, minlength=n_columns)
        return SparseRows(rows[order], self.values[order], _offsets(counts))

    def take(self, rows: NDArray[np.int64]) -> "SparseRows":
        """Return a matrix with only these rows."""
        begins, lengths = self.offsets[:-1].long()[rows], self.offsets.diff().long()[rows]
        offsets = _offsets(lengths)
        places = torch.arange(int(offsets[-1])) + torch.repeat_interleave(begins - offsets[:-1], lengths)
        return SparseRows(self.columns[places], self.values[places], offsets)


def _offsets(counts: Tensor) -> Int32[Tensor, " rows_and_one"]:
    return F.pad(counts.cumsum(0), (1, 0)).to(torch.int32)


class Coefficients(NamedTuple):
    """The weights of a linear model."""

    weights: Float[Tensor, "ngrams n_labels"]
    bias: Float[Tensor, " n_labels"]
    is_complete: bool = True  # False if the fit ran out of time

    def logits(self, rows: SparseRows) -> Float[Tensor, "texts n_labels"]:
        """Return the logits of each row."""
        return rows.dot(self.weights) + self.bias


class ChosenStrength(NamedTuple):
    """A regularization strength, chosen by cross-validation."""

    strength: float
    coefficients: Coefficients  # weights of the last fit of the cross-validation, which left out one fold
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
    fits: list[tuple[float, ChosenStrength]] = []
    strengths = STRENGTHS_OF_SCORES if problem == "regression" else STRENGTHS
    strengths = strengths if n_labels < MANY_LABELS else strengths[1:2]
    starts: list[Coefficients | None] = [None] * n_checked
    for number, strength in enumerate(strengths):
        end, logits, loss = share_of_time(until, 1 / (len(strengths) - number)), torch.zeros(rows.n_rows, n_labels), 0.0
        for fold, (others, own) in enumerate(parts):
            own_end, start = share_of_time(end, 1 / (n_checked - fold)), starts[fold]
            fitted = fit_coefficients(
                train[fold], labels[others], n_labels, n_ngrams, strength, start, own_end, problem
            )
            starts[fold], logits[own] = fitted, fitted.logits(check[fold])
            loss += len(own) * loss_and_errors(logits[own], labels[own], problem)[0] if len(own) else 0.0
        fits.append((loss, ChosenStrength(strength, fitted, logits, checked)))
        if loss > min(each[0] for each in fits):
            break
    return min(fits, key=lambda each: each[0])[1]


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


def fit_coefficients(
    rows: SparseRows,
    labels: Targets,
    n_labels: int,
    n_ngrams: int,
    strength: float,
    start: Coefficients | None = None,
    until: float = inf,
    problem: ProblemType = SINGLE,
) -> Coefficients:
    """Fit a generalized linear model (multinomial if each text has one label) with an L2 penalty, using L-BFGS."""
    n, transposed = max(1, rows.n_rows), rows.transpose(n_ngrams)
    weights, bias = (
        (t.clone() for t in start[:2]) if start else (torch.zeros(n_ngrams, n_labels), torch.zeros(n_labels))
    )
    iterations = MOST_WORK / (4.0 * max(1, len(rows.columns)) * n_labels)
    optimizer = torch.optim.LBFGS(
        [weights, bias],
        max_iter=int(min(MOST_ITERATIONS, max(FEWEST_ITERATIONS, iterations))),
        tolerance_grad=TOLERANCE,
        history_size=MEMORY,
        line_search_fn="strong_wolfe",
    )

    def loss_and_gradient() -> float:
        loss, errors = loss_and_errors(rows.dot(weights) + bias, labels, problem)
        errors /= n
        weights.grad = transposed.dot(errors).add_(weights, alpha=1 / (strength * n))
        bias.grad = errors.sum(0)
        return loss + float(weights.square().sum()) / (2 * strength * n)

    with torch.no_grad():
        limit = inf if until == inf else _affordable_evaluations(loss_and_gradient, until)
        group = optimizer.param_groups[0]
        group["max_eval"] = min(limit, group["max_eval"])
        optimizer.step(loss_and_gradient)
    is_complete = optimizer.state[weights]["func_evals"] < limit
    return Coefficients(weights, bias, is_complete)


def loss_and_errors(
    logits: Float[Tensor, "texts n_labels"], targets: Targets, problem: ProblemType
) -> tuple[float, Float[Tensor, "texts n_labels"]]:
    """Return the mean loss of the texts, and the derivative of each text's loss with respect to its logits."""
    if problem == SINGLE:
        log_probs = logits.log_softmax(-1)
        errors = log_probs.exp()
        errors[torch.arange(len(errors)), targets] -= 1
        return float(F.nll_loss(log_probs, targets)), errors
    if problem == "regression":
        return float((logits - targets).square().sum(-1).mean() / 2), logits - targets
    loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(-1).mean()
    return float(loss), logits.sigmoid() - targets


def _affordable_evaluations(evaluate: Callable[[], float], until: float) -> int:
    """Return how many loss evaluations can be completed before `until`, but at least FEWEST_ITERATIONS."""
    begin = monotonic()
    evaluate()
    end = monotonic()
    return max(FEWEST_ITERATIONS, int((until - end) / max(1e-6, end - begin)))


def share_of_time(until: float, share: float) -> float:
    """Return the time at which the fraction `share` of the period from now to `until` will have passed."""
    now = monotonic()
    return now + share * (until - now)
