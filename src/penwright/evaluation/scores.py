"""The scores of an evaluation, and sample outputs for people to read."""

from math import isfinite
from typing import NamedTuple

from penwright.evaluation.label_report import LabelReport


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
    report: LabelReport | None = None  # report on a classifier's labels; None unless all held-out texts were evaluated

    def beats(self, other: float | None) -> bool:
        """Return whether the score is better than `other`. A score that is not finite is never better."""
        if not isfinite(self.value):
            return False
        return other is None or (self.value > other if self.higher_is_better else self.value < other)


class Sample(NamedTuple):
    """The output of the model for a fixed prompt, with the reference from the held-out text if there is one."""

    prompt: str
    completion: str
    reference: str = ""
