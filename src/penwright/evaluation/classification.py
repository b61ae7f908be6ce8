"""Scores of predicted labels, and how far their probabilities can be trusted."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from penwright.data.batches import LabelledBatch
from penwright.decoding.batches import evaluating
from penwright.evaluation.perplexity import Surprise
from penwright.evaluation.scores import Score
from penwright.model.encoder_only import EncoderOnly

Counts = NDArray[np.int64]


def classified(log_probs: Float[Tensor, "texts n_labels"], labels: Int64[Tensor, " texts"]) -> tuple[Counts, Surprise]:
    """How often each true label (row) was given each label (column), and the surprise at the true ones."""
    counts = np.zeros((log_probs.shape[1], log_probs.shape[1]), dtype=np.int64)
    np.add.at(counts, (labels.numpy(), log_probs.argmax(-1).numpy()), 1)
    return counts, Surprise(float(F.nll_loss(log_probs, labels, reduction="sum")), len(labels))


def classification_scores(counts: Counts) -> tuple[Score, ...]:
    """Accuracy, and the mean over labels of the harmonic mean of precision and recall, both in percent."""
    correct = np.diag(counts)
    f1 = 2 * correct / np.maximum(counts.sum(0) + counts.sum(1), 1)
    present = counts.sum(1) > 0  # a label without any example says nothing
    n = max(1, counts.sum())
    accuracy = 100 * correct.sum() / n
    error = (accuracy * (100 - accuracy) / n) ** 0.5
    note = f"% of {counts.sum():,} examples, give or take {error:.1f}"
    return (
        Score("accuracy", float(accuracy), True, note, float(error)),
        Score("macro-F1", float(100 * f1[present].mean()), True, "%"),
    )


N_BINS = 10  # between 0 and 1


class Bin(NamedTuple):
    """Texts whose likeliest label has a probability from `low` to `high`."""

    low: float
    high: float
    n: int
    confidence: float  # the mean probability of that label
    accuracy: float  # the share of them whose label it is


class Calibration(NamedTuple):
    """Only bins that have texts, from the least sure."""

    bins: tuple[Bin, ...]
    n: int
    error: float  # the mean distance of accuracy and confidence, by texts (Guo et al. 2017, expected calibration error)


def calibration(model: EncoderOnly, batches: Iterable[LabelledBatch], device: torch.device) -> Calibration:
    """On labelled texts that the model has not learned from."""
    confidences, right = [np.zeros(0)], [np.zeros(0, dtype=bool)]
    with evaluating(model), torch.inference_mode():
        for batch in batches:
            logits = model(batch.tokens.to(device), batch.padding.to(device))
            best = logits.double().softmax(-1).max(-1)
            confidences.append(best.values.cpu().numpy())
            right.append((best.indices.cpu() == batch.targets).numpy())
    return calibration_of(np.concatenate(confidences), np.concatenate(right))


def calibration_of(confidences: NDArray[np.float64], right: NDArray[np.bool_]) -> Calibration:
    """Of texts by how sure the model is of each, and whether it is right; a border belongs to the bin above it."""
    which = np.minimum((confidences * N_BINS).astype(int), N_BINS - 1)
    bins = []
    for number in np.unique(which):
        mine = which == number
        edges = number / N_BINS, (number + 1) / N_BINS
        bins.append(Bin(*edges, int(mine.sum()), float(confidences[mine].mean()), float(right[mine].mean())))
    error = sum(each.n * abs(each.accuracy - each.confidence) for each in bins) / max(1, len(confidences))
    return Calibration(tuple(bins), len(confidences), error)
