"""The report on a classifier: scores of each label, the confusion matrix, and the mistakes it was surest of."""

from collections.abc import Sequence
from heapq import nlargest
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

N_MISTAKES = 20
LONGEST_TEXT = 300  # characters of a mistake's text that are kept


class LabelScores(NamedTuple):
    """The scores of one label, in percent; None where nothing was counted."""

    label: str
    precision: float | None  # share of the texts given this label that have it
    recall: float | None  # share of the texts with this label that were given it
    f1: float | None  # harmonic mean of both
    n_texts: int  # texts with this label


class Mistake(NamedTuple):
    """A text that was given a wrong label."""

    probability: float  # of the label it was given
    predicted: str
    label: str  # the true one
    text: str  # its beginning
    row: int  # number of the text among all, from 0


class LabelReport(NamedTuple):
    """How a classifier treats each label. Rows of the confusion matrix are true labels, columns predicted ones."""

    labels: tuple[LabelScores, ...]
    confusion: list[list[int]]
    mistakes: tuple[Mistake, ...]  # with the highest probabilities, highest first

    def as_dict(self) -> dict[str, object]:
        """Return the report as it is printed in JSON."""
        return {
            "labels": [each._asdict() for each in self.labels],
            "confusion": self.confusion,
            "mistakes": [each._asdict() for each in self.mistakes],
        }


def label_scores(counts: NDArray[np.int64], labels: Sequence[str]) -> tuple[LabelScores, ...]:
    """Return the scores of each label from a confusion matrix."""
    found = []
    for index, label in enumerate(labels):
        correct, n_true, n_predicted = (
            int(n) for n in (counts[index, index], counts[index].sum(), counts[:, index].sum())
        )
        precision = 100 * correct / n_predicted if n_predicted else None
        recall = 100 * correct / n_true if n_true else None
        f1 = 200 * correct / (n_true + n_predicted) if n_true + n_predicted else None
        found.append(LabelScores(label, precision, recall, f1, n_true))
    return tuple(found)


def worst_mistakes(
    log_probs: Float[Tensor, "texts n_labels"],
    truth: Int64[Tensor, " texts"],
    texts: Sequence[str],
    labels: Sequence[str],
    first_row: int = 0,
    most: int = N_MISTAKES,
) -> list[Mistake]:
    """Return the mistakes among these texts with the highest probabilities."""
    best = log_probs.max(-1)
    wrong = (best.indices != truth).nonzero()[:, 0].tolist()
    worst = nlargest(most, wrong, key=lambda row: float(best.values[row]))
    return [
        Mistake(
            float(best.values[row].exp()),
            labels[int(best.indices[row])],
            labels[int(truth[row])],
            texts[row][:LONGEST_TEXT],
            first_row + row,
        )
        for row in worst
    ]
