"""Accuracy and macro-F1 of predicted labels."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from penwright.data.batches import LabelledBatch
from penwright.evaluation.scores import Score
from penwright.models import EncoderOnly

Counts = NDArray[np.int64]


@torch.inference_mode()
def confusion(model: EncoderOnly, batches: Iterable[LabelledBatch], n_labels: int, device: torch.device) -> Counts:
    """How often each true label (row) was given each label (column)."""
    was_training = model.training
    model.eval()
    counts = np.zeros((n_labels, n_labels), dtype=np.int64)
    for batch in batches:
        given = model(batch.tokens.to(device), batch.padding.to(device)).argmax(-1).cpu()
        np.add.at(counts, (batch.targets.numpy(), given.numpy()), 1)
    model.train(was_training)
    return counts


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
