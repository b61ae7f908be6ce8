"""Scores of predicted labels, sets of labels and numbers, and the calibration of predicted probabilities."""

from collections.abc import Sequence
from heapq import nlargest
from math import erf, exp, log, pi, sqrt
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray
from pydantic import FiniteFloat, NonNegativeInt
from torch import Tensor
from torch.nn import functional as F

from penwright.evaluation.perplexity import NegativeLogLikelihood
from penwright.evaluation.scores import (
    LONGEST_TEXT,
    N_MISTAKES,
    ErrorReport,
    LabelScores,
    LargeError,
    Mistake,
    Score,
    label_score,
)
from penwright.text import BETWEEN_TEXTS

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]


def confusion_and_nll(
    log_probs: Float[Tensor, "texts n_labels"],
    labels: Int64[Tensor, " texts"],
    label_weights: Float[Tensor, " n_labels"] | None = None,
) -> tuple[Counts, NegativeLogLikelihood]:
    """Return the confusion matrix and the total negative log-likelihood of the true labels.

    The rows of the matrix are true labels, and the columns are predicted labels. `label_weights` weight the negative
    log-likelihoods, but not the matrix.
    """
    counts = np.zeros((log_probs.shape[1], log_probs.shape[1]), dtype=np.int64)
    np.add.at(counts, (labels.numpy(), log_probs.argmax(-1).numpy()), 1)
    weights = None if label_weights is None else label_weights.to(log_probs)
    return counts, NegativeLogLikelihood(float(F.nll_loss(log_probs, labels, weights, reduction="sum")), len(labels))


def classification_scores(counts: Counts) -> tuple[Score, ...]:
    """Return the accuracy and the macro-F1 score, both in percent.

    Macro-F1 is the unweighted mean of the F1 scores of all labels that have examples.
    """
    correct = np.diag(counts)
    f1 = 2 * correct / np.maximum(counts.sum(0) + counts.sum(1), 1)
    present = counts.sum(1) > 0  # a label without examples has no recall
    n = max(1, counts.sum())
    accuracy = 100 * correct.sum() / n
    error = (accuracy * (100 - accuracy) / n) ** 0.5
    note = f"% of {counts.sum():,} examples, standard error {error:.1f}"
    return (
        Score("accuracy", float(accuracy), True, note, float(error)),
        Score("macro-F1", float(100 * f1[present].mean()), True, "%"),
    )


def balanced_accuracy(counts: Counts) -> Score:
    """Return the balanced accuracy in percent: the unweighted mean of the recalls of all labels that have examples."""
    n = counts.sum(1)[counts.sum(1) > 0]
    recall = np.diag(counts)[counts.sum(1) > 0] / n
    error = 100 * float((recall * (1 - recall) / n).sum() ** 0.5) / max(1, len(n))
    note = f"% mean recall of all labels, standard error {error:.1f}"
    return Score("balanced accuracy", 100 * float(recall.mean()) if len(n) else 0.0, True, note, error)


def with_group_errors(
    scores: Sequence[Score], right: NDArray[np.bool_], truth: NDArray[np.int64], groups: NDArray[np.uint64]
) -> list[Score]:
    """Return the scores with standard errors of accuracy and balanced accuracy that allow for groups of texts.

    Texts of a group are not independent of each other, so the errors are summed by group (Liang and Zeger 1986). With
    a single group, they stay as they are.
    """
    group = np.unique(groups, return_inverse=True)[1].reshape(-1)
    n_groups, n_texts = 1 + int(group.max()), np.bincount(truth)[truth]
    recall = np.bincount(truth, right)[truth] / n_texts
    contributions = {
        "accuracy": (right - right.mean()) / len(right),
        "balanced accuracy": (right - recall) / (n_texts * len(np.unique(truth))),
    }

    def with_error(score: Score) -> Score:
        if score.name not in contributions or n_groups < 2:
            return score
        sums = np.bincount(group, contributions[score.name])
        error = 100 * sqrt(n_groups / (n_groups - 1) * float(sums @ sums))
        note = f"{score.note.partition(', standard error')[0]}, standard error {error:.1f} ({n_groups:,} groups)"
        return score._replace(note=note, standard_error=error)

    return [with_error(score) for score in scores]


N_BINS = 10  # number of bins of equal width between 0 and 1


class Bin(NamedTuple):
    """A bin: the texts whose most probable label has a probability between `low` and `high`."""

    low: FiniteFloat
    high: FiniteFloat
    n: NonNegativeInt
    confidence: FiniteFloat  # mean probability of the predicted label
    accuracy: FiniteFloat  # share of texts whose predicted label is right


class Calibration(NamedTuple):
    """The calibration of a classifier. Bins are in order of increasing probability; empty bins are omitted."""

    bins: tuple[Bin, ...]
    n: NonNegativeInt
    error: FiniteFloat  # expected calibration error: mean |accuracy - confidence|, weighted by texts (Guo et al. 2017)


def compute_calibration(confidences: NDArray[np.float64], right: NDArray[np.bool_]) -> Calibration:
    """Compute the calibration from the confidence of each prediction, and from whether the prediction is right.

    A confidence on the boundary of two bins belongs to the upper bin.
    """
    bin_indices = np.minimum((confidences * N_BINS).astype(int), N_BINS - 1)
    bins = []
    for number in np.unique(bin_indices):
        in_bin = bin_indices == number
        edges = number / N_BINS, (number + 1) / N_BINS
        bins.append(Bin(*edges, int(in_bin.sum()), float(confidences[in_bin].mean()), float(right[in_bin].mean())))
    error = sum(bin_.n * abs(bin_.accuracy - bin_.confidence) for bin_ in bins) / max(1, len(confidences))
    return Calibration(tuple(bins), len(confidences), error)


def debiased_error(calibration: Calibration) -> float:
    """Return the calibration error minus an estimate of the part that is due to chance (Kumar et al. 2019).

    Even a perfectly calibrated classifier has a positive error, because the accuracy in each bin varies by chance. The
    expected increase is estimated as if each accuracy were redrawn from a normal distribution.
    """
    redrawn = 0.0
    for each in calibration.bins:
        gap = abs(each.accuracy - each.confidence)
        deviation = sqrt(each.accuracy * (1 - each.accuracy) / each.n)
        if deviation:  # the expected gap is the mean of a folded normal distribution
            ratio = gap / deviation
            gap = deviation * sqrt(2 / pi) * exp(-(ratio**2) / 2) + gap * erf(ratio / sqrt(2))
        redrawn += each.n * gap
    return max(0.0, 2 * calibration.error - redrawn / max(1, calibration.n))


class SetCounts(NamedTuple):
    """The counts of predicted and true labels."""

    right: Int64[Tensor, " n_labels"]  # number of texts for which a label is both predicted and true
    predicted: Int64[Tensor, " n_labels"]
    true: Int64[Tensor, " n_labels"]
    exact: int  # number of texts whose predicted set of labels equals the true set
    n_texts: int

    def plus(self, other: "SetCounts") -> "SetCounts":
        """Return the sum of these counts and `other`, field by field."""
        return SetCounts(
            self.right + other.right,
            self.predicted + other.predicted,
            self.true + other.true,
            self.exact + other.exact,
            self.n_texts + other.n_texts,
        )


def count_sets(predicted: Bool[Tensor, "texts n_labels"], truth: Float[Tensor, "texts n_labels"]) -> SetCounts:
    """Count the predicted and the true labels of some texts."""
    true = truth.bool()
    exact = int((predicted == true).all(-1).sum())
    return SetCounts((predicted & true).sum(0), predicted.sum(0), true.sum(0), exact, len(true))


def set_scores(counts: SetCounts) -> tuple[Score, ...]:
    """Return micro-F1, macro-F1 and the exact match, in percent.

    Micro-F1 counts all labels of all texts together. Macro-F1 is the unweighted mean of the F1 scores of all labels
    that have examples. The exact match is the share of texts whose set of labels is right.
    """
    f1 = 200 * counts.right / (counts.predicted + counts.true).clamp(min=1)
    n_labels = int((counts.predicted + counts.true).sum()) / 2  # mean of the numbers of predicted and of true labels
    micro, exact = (
        100 * right / max(1, n) for right, n in ((int(counts.right.sum()), n_labels), (counts.exact, counts.n_texts))
    )
    errors = [sqrt(value * (100 - value) / max(1, n)) for value, n in ((micro, n_labels), (exact, counts.n_texts))]
    note = f"% over all labels of {counts.n_texts:,} texts, standard error {errors[0]:.1f}"
    return (
        Score("micro-F1", micro, True, note, errors[0]),
        Score("macro-F1", float(f1[counts.true > 0].mean()) if counts.true.any() else 0.0, True, "%"),
        Score("exact match", exact, True, f"% of the texts, standard error {errors[1]:.1f}", errors[1]),
    )


def scores_of_labels(
    counts: SetCounts, labels: Sequence[str], thresholds: Float[Tensor, " n_labels"]
) -> tuple[LabelScores, ...]:
    """Return the scores and the threshold of each label."""
    numbers = zip(counts.right.tolist(), counts.true.tolist(), counts.predicted.tolist(), strict=True)
    rows = zip(labels, numbers, thresholds.tolist(), strict=True)
    return tuple(label_score(label, *three)._replace(threshold=threshold) for label, three, threshold in rows)


def nats_of_sets(logits: Float[Tensor, "texts n_labels"], truth: Float[Tensor, "texts n_labels"]) -> float:
    """Return the negative log-likelihood of the true labels, summed over labels and texts."""
    return float(F.binary_cross_entropy_with_logits(logits, truth.to(logits), reduction="sum"))


def worst_sets(
    logits: Float[Tensor, "texts n_labels"],
    truth: Float[Tensor, "texts n_labels"],
    thresholds: Float[Tensor, " n_labels"],
    texts: Sequence[str],
    labels: Sequence[str],
    first_row: int = 0,
) -> list[Mistake]:
    """Return the texts in which a label is wrongly predicted or missed with the most confidence.

    In each Mistake, `predicted` lists all predicted labels of the text, and `label` lists all true labels.
    """
    probabilities = logits.sigmoid()
    predicted = probabilities >= thresholds.to(probabilities)
    confidence = torch.where(predicted, probabilities, 1 - probabilities) * (predicted != truth.bool())
    best = confidence.max(-1).values
    names = np.array(labels, dtype=object)
    return [
        Mistake(
            float(best[row]),
            ", ".join(names[predicted[row].numpy()]),
            ", ".join(names[truth[row].bool().numpy()]),
            texts[row][:LONGEST_TEXT],
            first_row + row,
        )
        for row in nlargest(N_MISTAKES, best.nonzero()[:, 0].tolist(), key=lambda row: float(best[row]))
    ]


def regression_scores(predicted: Numbers, truth: Numbers, deviation: float) -> tuple[Score, ...]:
    """Return Pearson's correlation, Spearman's rank correlation, the mean absolute error, and nats per text.

    The nats are the negative log-likelihood under a normal distribution around the prediction. Its standard deviation,
    `deviation`, is that of the training scores.
    """
    r, n = correlation(predicted, truth), len(truth)
    error = (1 - r**2) / sqrt(max(1, n - 1))
    nats = float(np.square((predicted - truth) / deviation).mean()) / 2 + log(2 * pi) / 2
    return (
        Score("Pearson's r", r, True, f"correlation on {n:,} texts, standard error {error:.3f}", error),
        Score("Spearman's rho", correlation(ranks(predicted), ranks(truth)), True, "rank correlation"),
        Score("mean absolute error", float(np.abs(predicted - truth).mean())),
        Score("nats per text", nats),
    )


def largest_errors(predicted: Numbers, truth: Numbers, texts: Sequence[str]) -> ErrorReport:
    """Return a report on the texts whose predicted number is farthest from the true number."""
    errors = predicted - truth
    rows = np.argsort(-np.abs(errors), kind="stable")[:N_MISTAKES].tolist()
    return ErrorReport(
        tuple(
            LargeError(
                float(errors[row]),
                float(predicted[row]),
                float(truth[row]),
                texts[row].replace(BETWEEN_TEXTS, " | ")[:LONGEST_TEXT],
                row,
            )
            for row in rows
            if errors[row]
        )
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
    mean_ranks: Numbers = (ends - (counts - 1) / 2)[places.reshape(-1)].astype(np.float64)
    return mean_ranks
