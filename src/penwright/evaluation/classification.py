"""Accuracy, macro-F1 and surprise of predicted labels."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from penwright.data.batches import LabelledBatch
from penwright.evaluation.perplexity import Surprise
from penwright.evaluation.scores import Score
from penwright.models import EncoderOnly

Counts = NDArray[np.int64]


@torch.inference_mode()
def classified(
    model: EncoderOnly, batches: Iterable[LabelledBatch], n_labels: int, device: torch.device
) -> tuple[Counts, Surprise]:
    """How often each true label (row) was given each label (column), and the surprise at the true ones."""
    was_training = model.training
    model.eval()
    counts, nats = np.zeros((n_labels, n_labels), dtype=np.int64), 0.0
    for batch in batches:
        logits = model(batch.tokens.to(device), batch.padding.to(device)).float().cpu()
        np.add.at(counts, (batch.targets.numpy(), logits.argmax(-1).numpy()), 1)
        nats += float(F.cross_entropy(logits, batch.targets, reduction="sum"))
    model.train(was_training)
    return counts, Surprise(nats, int(counts.sum()))


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
