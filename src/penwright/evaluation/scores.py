"""The scores of an evaluation, the report on a classifier's labels, and sample outputs for people to read."""

from collections.abc import Sequence
from heapq import nlargest
from math import isfinite
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from penwright.text import BETWEEN_TEXTS

N_MISTAKES = 20
LONGEST_TEXT = 300  # maximum number of characters of a text to store


class LabelScores(NamedTuple):
    """The scores of one label, in percent. A score is None if no text counts towards it."""

    label: str
    precision: float | None  # share of correct predictions among the texts with this predicted label
    recall: float | None  # share of correct predictions among the texts with this true label
    f1: float | None  # harmonic mean of precision and recall
    n_texts: int  # number of texts with this true label
    threshold: float | None = None  # minimum probability for assigning the label; None if each text has one label


class Mistake(NamedTuple):
    """A text whose predicted label is wrong."""

    probability: float  # probability of the predicted label
    predicted: str
    label: str  # true label
    text: str  # first LONGEST_TEXT characters of the text
    row: int  # index of the text among all texts, from 0
    location: str = ""  # file and row of the text, if known


class Threshold(NamedTuple):
    """The decision threshold that maximizes the F1 of a label, and the scores (in percent) with this threshold.

    The same texts determine the threshold and the scores, so the scores are slightly optimistic.
    """

    label: str
    threshold: float
    precision: float
    recall: float
    f1: float


class LabelReport(NamedTuple):
    """A report on the labels of a classifier. In the confusion matrix, rows are true labels."""

    labels: tuple[LabelScores, ...]
    confusion: list[list[int]]  # empty if texts can have several labels
    mistakes: tuple[Mistake, ...]  # most confident mistakes, in descending order of probability
    threshold: Threshold | None = None  # best threshold for the label that is rarer in training; only with two labels

    def as_dict(self) -> dict[str, object]:
        """Return the report as a dictionary for JSON."""
        return {
            "labels": [
                {name: value for name, value in each._asdict().items() if name != "threshold" or value is not None}
                for each in self.labels
            ],
            "confusion": self.confusion,
            "mistakes": [
                {name: value for name, value in each._asdict().items() if name != "location" or value}
                for each in self.mistakes
            ],
            **({"threshold": self.threshold._asdict()} if self.threshold else {}),
        }


class LargeError(NamedTuple):
    """A text whose predicted number is far from the true one."""

    error: float  # predicted number minus true number
    predicted: float
    score: float  # true number
    text: str  # beginning of the text
    row: int  # index of the text among all texts, from 0


class ErrorReport(NamedTuple):
    """A report on the errors of a regression model."""

    errors: tuple[LargeError, ...]  # the largest errors, in descending order

    def as_dict(self) -> dict[str, object]:
        """Return the report as a dictionary for JSON."""
        return {"errors": [each._asdict() for each in self.errors]}


def label_scores(counts: NDArray[np.int64], labels: Sequence[str]) -> tuple[LabelScores, ...]:
    """Return the scores of each label from a confusion matrix."""
    numbers = zip(np.diag(counts).tolist(), counts.sum(1).tolist(), counts.sum(0).tolist(), strict=True)
    return tuple(label_score(label, *three) for label, three in zip(labels, numbers, strict=True))


def label_score(label: str, correct: int, n_true: int, n_predicted: int) -> LabelScores:
    """Return the scores of a label, from its numbers of true positives (`correct`), texts and predictions."""
    precision = 100 * correct / n_predicted if n_predicted else None
    recall = 100 * correct / n_true if n_true else None
    f1 = 200 * correct / (n_true + n_predicted) if n_true + n_predicted else None
    return LabelScores(label, precision, recall, f1, n_true)


def best_threshold(probabilities: NDArray[np.float64], is_label: NDArray[np.bool_], label: str) -> Threshold | None:
    """Return the threshold that maximizes F1, given the label's probability per text; None if no text has the label."""
    order = np.argsort(-probabilities, kind="stable")
    sorted_probabilities, n_right = probabilities[order], np.cumsum(is_label[order])
    lower = np.append(sorted_probabilities[1:], 0.0)
    places = np.flatnonzero(sorted_probabilities > lower)  # texts with equal probabilities get the same label
    if not len(places) or not n_right[-1]:
        return None
    f1 = 2 * n_right[places] / (places + 1 + n_right[-1])
    best = places[np.argmax(f1)]
    precision, recall = n_right[best] / (best + 1), n_right[best] / n_right[-1]
    threshold = _between(float(lower[best]), float(sorted_probabilities[best]))
    return Threshold(label, threshold, *(float(100 * each) for each in (precision, recall, f1.max())))


def _between(low: float, high: float) -> float:
    """Return the middle of an interval, rounded to the fewest digits (at least three) that keep it inside."""
    middle = (low + high) / 2
    rounded = (float(f"{middle:.{digits}g}") for digits in range(3, 17))
    return next((number for number in rounded if low < number < high), middle)


def worst_mistakes(
    log_probs: Float[Tensor, "texts n_labels"],
    truth: Int64[Tensor, " texts"],
    texts: Sequence[str],
    labels: Sequence[str],
    first_row: int = 0,
    most: int = N_MISTAKES,
) -> list[Mistake]:
    """Return the most confident mistakes among these texts."""
    best = log_probs.max(-1)
    wrong = (best.indices != truth).nonzero()[:, 0].tolist()
    worst = nlargest(most, wrong, key=lambda row: float(best.values[row]))
    return [
        Mistake(
            float(best.values[row].exp()),
            labels[int(best.indices[row])],
            labels[int(truth[row])],
            texts[row].replace(BETWEEN_TEXTS, " | ")[:LONGEST_TEXT],
            first_row + row,
        )
        for row in worst
    ]


class Baseline(NamedTuple):
    """The score of a simple method (a baseline), for comparison with the model."""

    name: str
    value: float


class Score(NamedTuple):
    """One score of an evaluation."""

    name: str
    value: float
    higher_is_better: bool = False
    note: str = ""  # details that matter in comparisons, e.g. a signature or a unit
    standard_error: float | None = None  # standard error, if known; smaller differences may be due to chance
    baselines: tuple[Baseline, ...] = ()  # scores of the baselines; empty during training
    report: LabelReport | ErrorReport | None = None  # report on labels or numbers; None unless all texts were evaluated

    def beats(self, other: float | None) -> bool:
        """Return whether the score is better than `other`. A score that is not finite is never better."""
        if not isfinite(self.value):
            return False
        return other is None or (self.value > other if self.higher_is_better else self.value < other)

    def is_level_with(self, other: float) -> bool:
        """Return whether the score differs from `other` by at most its standard error."""
        return abs(self.value - other) <= (self.standard_error or 0.0)


def nats_in(scores: Sequence[Score]) -> float | None:
    """Return the held-out loss in nats, if it is among the scores."""
    return next((score.value for score in scores if score.name.startswith("nats")), None)


class Sample(NamedTuple):
    """The output of the model for a fixed prompt, with the reference from the held-out text if there is one."""

    prompt: str
    completion: str
    reference: str = ""
