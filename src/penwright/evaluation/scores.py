"""Named scores of an evaluation, and samples for people to read."""

from math import isfinite
from typing import NamedTuple

from penwright.evaluation.label_report import LabelReport


class Baseline(NamedTuple):
    """The value that a simple method reaches, for comparison with a score."""

    name: str
    value: float


class Score(NamedTuple):
    """One score of an evaluation."""

    name: str
    value: float
    higher_is_better: bool = False
    note: str = ""  # what a comparison depends on: a signature, a unit
    standard_error: float | None = None  # if known; smaller differences may be chance
    baselines: tuple[Baseline, ...] = ()  # values that any model must beat; only in the evaluation of a finished run
    report: LabelReport | None = None  # of a classifier's accuracy, when all held-out texts were evaluated

    def beats(self, other: float | None) -> bool:
        """Return whether this is a better value than `other`. A value that is not finite beats nothing."""
        if not isfinite(self.value):
            return False
        return other is None or (self.value > other if self.higher_is_better else self.value < other)


class Sample(NamedTuple):
    """The output of the model for a fixed prompt, with the reference from the held-out text if there is one."""

    prompt: str
    completion: str
    reference: str = ""
