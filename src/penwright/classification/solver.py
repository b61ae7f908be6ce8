"""Generalized linear models on sparse features: the matrix of the features, and an L-BFGS solver.

The weights of a fit with an L2 penalty are a linear combination of the rows (the representer theorem). The solver
stores the factors of this combination, one per text and label: there are usually many more n-grams than texts.
"""

from collections import deque
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
from penwright.devices import with_threads

MOST_WORK = 2e11  # maximum number of multiplications per fit; limits the number of iterations
MOST_ITERATIONS, FEWEST_ITERATIONS = 100, 5
MOST_HISTORY, MOST_UPDATES = 1 << 26, 10  # maximum number of values, and of past updates, that L-BFGS remembers
TOLERANCE = 0.05  # a fit ends when its objective is at most this fraction above the minimum
FEW_PRODUCTS = 1_000_000  # a fit with fewer products (entries x labels) runs faster on one thread
MOST_PRODUCTS = 1 << 23  # maximum number of n-gram weights to compute at a time
SLOPE, MOST_TRIALS = 0.1, 10  # a line search ends at this fraction of the initial slope, or after this many trials
LONGER, NARROWER = 4.0, 0.1  # a trial step is this many times longer, or at least this fraction inside the bracket
# Targets: the label id of each text; for multi-label texts, 0 or 1 for each label; for scores, standardized numbers.
Targets = Int64[Tensor, " texts"] | Float[Tensor, "texts n_labels"]
SINGLE: ProblemType = "single_label_classification"
Start = tuple[Float[Tensor, "texts n_labels"], Float[Tensor, " n_labels"]]
# A point or a direction of a fit, as two tables with a row per text: the dual factors and the logits without bias. The
# last row of both tables is the bias. So inner products can be computed without the weights.
Vector = Float[Tensor, "2 texts_and_one n_labels"]
_Updates = deque[tuple[Vector, Vector]]  # recent steps, and the changes of the gradient that they made


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

    def append(self, other: "SparseRows") -> "SparseRows":
        """Return a matrix with the rows of this matrix, followed by those of the other."""
        offsets = torch.cat([self.offsets, self.offsets[-1] + other.offsets[1:]])
        return SparseRows(torch.cat([self.columns, other.columns]), torch.cat([self.values, other.values]), offsets)

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
    factors: Float[Tensor, "texts n_labels"] = torch.zeros(0, 0)  # weights = transposed rows @ factors; not stored
    is_complete: bool = True  # False if the fit ran out of time
    n_iterations: int = 0  # number of iterations of the fit

    def logits(self, rows: SparseRows) -> Float[Tensor, "texts n_labels"]:
        """Return the logits of each row."""
        return rows.dot(self.weights) + self.bias

    def pruned(self, most: int) -> "Coefficients":
        """Set all weights but the `most` largest to 0. Drop the factors."""
        no_factors = self.factors[:0].clone()  # a view would keep their memory
        if (excess := self.weights.numel() - most) <= 0:
            return self._replace(factors=no_factors)
        sizes = self.weights.abs().flatten().numpy()
        sizes.partition(excess - 1)
        is_large = self.weights.abs() > float(sizes[excess - 1])
        return self._replace(weights=self.weights.where(is_large, 0.0), factors=no_factors)


def fit_coefficients(
    rows: SparseRows,
    labels: Targets,
    n_labels: int,
    n_ngrams: int,
    strength: float,
    start: Start | None = None,
    until: float = inf,
    problem: ProblemType = SINGLE,
) -> Coefficients:
    """Fit a generalized linear model (multinomial if each text has one label) with an L2 penalty, using L-BFGS.

    `start` holds the factors and the bias of a similar fit. If time runs out at `until`, the fit ends early.
    """
    few = len(rows.columns) * n_labels < FEW_PRODUCTS
    with with_threads(1 if few else torch.get_num_threads()):
        n = max(1, rows.n_rows)
        objective = _Objective(rows, rows.transpose(n_ngrams), labels, problem, 1 / (strength * n))
        factors, bias = start or (torch.zeros(rows.n_rows, n_labels), torch.zeros(n_labels))
        point = objective.vector(factors, bias)
        updates: _Updates = deque(maxlen=max(1, min(MOST_UPDATES, MOST_HISTORY // (4 * n * n_labels))))
        is_complete, n_iterations, (loss, gradient) = True, 0, objective.evaluate(point)
        iterations = int(min(MOST_ITERATIONS, MOST_WORK / (4.0 * max(1, len(rows.columns)) * n_labels)))
        for number in range(max(FEWEST_ITERATIONS, iterations)):
            if _dot(gradient, gradient) / (2 * objective.decay) <= TOLERANCE * loss:
                break
            if number >= FEWEST_ITERATIONS and monotonic() > until:
                is_complete = False
                break
            step = _direction(gradient, updates)
            slope = _dot(gradient, step)
            if slope >= 0:  # rounding errors prevent any progress
                break
            point += step.mul_(objective.line_search(point, step, slope))
            previous, (loss, gradient), n_iterations = gradient, objective.evaluate(point), number + 1
            change = gradient - previous
            if _dot(step, change) > 0:
                updates.append((step, change))
        factors, bias = point[0, :-1], point[0, -1]
        return Coefficients(objective.transposed.dot(factors), bias.clone(), factors, is_complete, n_iterations)


class _Objective(NamedTuple):
    """The mean loss of some texts plus the penalty `decay / 2` times the sum of the squared weights."""

    rows: SparseRows
    transposed: SparseRows
    targets: Targets
    problem: ProblemType
    decay: float

    def vector(self, factors: Float[Tensor, "texts n_labels"], bias: Float[Tensor, " n_labels"]) -> Vector:
        """Return the vector with these factors and this bias. To save memory, process a few labels at a time."""
        width = max(1, MOST_PRODUCTS // len(self.transposed.offsets))
        logits = [self.rows.dot(self.transposed.dot(part.contiguous())) for part in factors.split(width, dim=1)]
        return torch.stack([torch.cat([part, bias[None]]) for part in (factors, torch.cat(logits, 1))])

    def evaluate(self, point: Vector) -> tuple[float, Vector]:
        """Return the objective at a point, and its gradient."""
        loss, errors = loss_and_errors(point[1, :-1] + point[1, -1], self.targets, self.problem)
        errors /= max(1, len(errors))
        gradient = self.vector(errors.add(point[0, :-1], alpha=self.decay), errors.sum(0))
        return loss + self.decay / 2 * _dot(point[:, :-1], point[:, :-1]), gradient

    def line_search(self, point: Vector, step: Vector, slope: float) -> float:
        """Return the factor of the step at which the slope of the objective is at most SLOPE times `slope`.

        The objective is convex, so a secant method finds this factor. It needs no products with the rows.
        """
        logits, moves = (vector[1, :-1] + vector[1, -1] for vector in (point, step))
        first, second = (self.decay * _dot(vector[:, :-1], step[:, :-1]) for vector in (point, step))
        low, high, factor = (0.0, slope), (inf, inf), 1.0
        for _ in range(MOST_TRIALS):
            _, errors = loss_and_errors(logits.add(moves, alpha=factor), self.targets, self.problem)
            found = float((errors * moves).sum()) / len(errors) + first + factor * second
            if abs(found) <= -SLOPE * slope:
                break
            low, high = ((factor, found), high) if found < 0 else (low, (factor, found))
            if high[0] == inf:
                factor *= LONGER
            else:
                width = high[0] - low[0]
                share = low[1] / (low[1] - high[1])
                factor = low[0] + width * min(1 - NARROWER, max(NARROWER, share))
        return factor


def _dot(first: Vector, second: Vector) -> float:
    """Return the inner product of two vectors."""
    return float(torch.dot(first[0].flatten(), second[1].flatten()))


def _direction(gradient: Vector, updates: _Updates) -> Vector:
    """Return the direction of the next step: the negative gradient times the inverse Hessian that L-BFGS estimates."""
    direction, factors = -gradient, list[float]()
    for step, change in reversed(updates):
        factors.append(_dot(step, direction) / _dot(step, change))
        direction.sub_(change, alpha=factors[-1])
    if updates:
        step, change = updates[-1]
        direction *= _dot(step, change) / _dot(change, change)
    for (step, change), factor in zip(updates, reversed(factors), strict=True):
        direction.add_(step, alpha=factor - _dot(change, direction) / _dot(step, change))
    return direction


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
