"""Accuracy, macro-F1 and surprise of predicted labels."""

import numpy as np
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from penwright.evaluation.perplexity import Surprise
from penwright.evaluation.scores import Score

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
