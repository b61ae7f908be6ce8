"""Scores of sets of labels, for texts that can have any number of labels."""

from collections.abc import Sequence
from heapq import nlargest
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F

from penwright.evaluation.label_report import LONGEST_TEXT, N_MISTAKES, LabelScores, Mistake, label_score
from penwright.evaluation.scores import Score


class SetCounts(NamedTuple):
    """The counts of predicted and true labels."""

    right: Int64[Tensor, " n_labels"]  # number of texts for which a label is both predicted and true
    predicted: Int64[Tensor, " n_labels"]
    true: Int64[Tensor, " n_labels"]
    exact: int  # number of texts whose predicted set of labels is the true one
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
    micro = 200 * int(counts.right.sum()) / max(1, int((counts.predicted + counts.true).sum()))
    exact = 100 * counts.exact / max(1, counts.n_texts)
    return (
        Score("micro-F1", micro, True, f"% over all labels of {counts.n_texts:,} texts"),
        Score("macro-F1", float(f1[counts.true > 0].mean()) if counts.true.any() else 0.0, True, "%"),
        Score("exact match", exact, True, "% of the texts"),
    )


def scores_of_labels(
    counts: SetCounts, labels: Sequence[str], thresholds: Float[Tensor, " n_labels"]
) -> tuple[LabelScores, ...]:
    """Return the scores of each label, with its threshold."""
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
