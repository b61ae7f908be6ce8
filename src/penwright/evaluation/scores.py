"""Scores with their names, and samples for people to read."""

from math import isfinite
from typing import NamedTuple


class Baseline(NamedTuple):
    """What a score is compared with: the value that a simple method reaches."""

    name: str
    value: float


class Score(NamedTuple):
    """One figure of an evaluation."""

    name: str
    value: float
    higher_is_better: bool = False
    note: str = ""  # what must be known to compare it: a signature, a unit
    standard_error: float | None = None  # where it is known: values this close may be the same
    baselines: tuple[Baseline, ...] = ()  # which any model must beat; of a finished run's evaluation

    def beats(self, other: float | None) -> bool:
        """Whether this is a better value; one that is not finite beats nothing."""
        if not isfinite(self.value):
            return False
        return other is None or (self.value > other if self.higher_is_better else self.value < other)


class Sample(NamedTuple):
    """What the model makes of a fixed prompt, beside what stands in the held-out text, where there is such a thing."""

    prompt: str
    completion: str
    reference: str = ""
