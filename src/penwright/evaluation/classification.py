"""Scores of predicted labels, and the calibration of the predicted probabilities."""

from math import erf, exp, pi, sqrt
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from penwright.evaluation.perplexity import NegativeLogLikelihood
from penwright.evaluation.scores import Score

Counts = NDArray[np.int64]


def confusion_and_nll(
    log_probs: Float[Tensor, "texts n_labels"], labels: Int64[Tensor, " texts"]
) -> tuple[Counts, NegativeLogLikelihood]:
    """Return the confusion matrix and the total negative log-likelihood of the true labels.

    The rows of the matrix are true labels, and the columns are predicted labels.
    """
    counts = np.zeros((log_probs.shape[1], log_probs.shape[1]), dtype=np.int64)
    np.add.at(counts, (labels.numpy(), log_probs.argmax(-1).numpy()), 1)
    return counts, NegativeLogLikelihood(float(F.nll_loss(log_probs, labels, reduction="sum")), len(labels))


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


N_BINS = 10  # number of bins of equal width between 0 and 1


class Bin(NamedTuple):
    """A bin: the texts whose most probable label has a probability between `low` and `high`."""

    low: float
    high: float
    n: int
    confidence: float  # mean probability of the predicted label
    accuracy: float  # share of texts whose predicted label is right


class Calibration(NamedTuple):
    """The calibration of a classifier. Only bins with texts are listed, by increasing probability."""

    bins: tuple[Bin, ...]
    n: int
    error: float  # expected calibration error: mean |accuracy - confidence|, weighted by texts (Guo et al. 2017)


def compute_calibration(confidences: NDArray[np.float64], right: NDArray[np.bool_]) -> Calibration:
    """Compute the calibration from the confidence of each prediction, and from whether the prediction is right.

    A confidence on the boundary of two bins belongs to the upper bin.
    """
    which = np.minimum((confidences * N_BINS).astype(int), N_BINS - 1)
    bins = []
    for number in np.unique(which):
        in_bin = which == number
        edges = number / N_BINS, (number + 1) / N_BINS
        bins.append(Bin(*edges, int(in_bin.sum()), float(confidences[in_bin].mean()), float(right[in_bin].mean())))
    error = sum(bin_.n * abs(bin_.accuracy - bin_.confidence) for bin_ in bins) / max(1, len(confidences))
    return Calibration(tuple(bins), len(confidences), error)


def debiased_error(calibration: Calibration) -> float:
    """Return the calibration error minus an estimate of the part that is due to chance (Kumar et al. 2019).

    Even a perfectly calibrated classifier has a positive error, because the accuracy in each bin varies by chance. The
    expected increase is estimated as if the accuracies were drawn again, from normal distributions.
    """
    redrawn = 0.0
    for each in calibration.bins:
        gap = abs(each.accuracy - each.confidence)
        deviation = sqrt(each.accuracy * (1 - each.accuracy) / each.n)
        if deviation:  # the expected gap is the mean absolute value of a normal variable
            ratio = gap / deviation
            gap = deviation * sqrt(2 / pi) * exp(-(ratio**2) / 2) + gap * erf(ratio / sqrt(2))
        redrawn += each.n * gap
    return max(0.0, 2 * calibration.error - redrawn / max(1, calibration.n))
