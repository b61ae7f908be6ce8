"""The number of steps of a run: fixed by steps, epochs or tokens, or settled while training from minutes."""

from dataclasses import dataclass
from math import ceil

from penwright.config import Schedule, TrainingSettings
from penwright.data.bucketing import AnyBatches


def count_steps(settings: TrainingSettings, batches: AnyBatches) -> int | None:
    """Return the number of optimizer steps, or None for a budget in minutes, which `Clock` settles while training."""
    if settings.steps is not None:
        return settings.steps
    if settings.epochs is not None:
        return max(1, ceil(settings.epochs * batches.per_epoch / settings.accumulate))
    if settings.tokens is not None:
        epochs = settings.tokens / max(1, batches.tokens_per_epoch)
        return max(1, ceil(epochs * batches.per_epoch / settings.accumulate))
    return None


MEASURED_STEPS = 8  # fewest steps for measuring throughput
MARK_AT_LATEST = 200  # step at which the measurement starts at the latest
MIN_CHANGE = 0.1  # The end is moved only if the number of remaining steps changes by more than this fraction.


@dataclass
class Clock:
    """A clock that converts a budget in minutes into steps, as late as the schedule allows.

    Throughput is measured from a little after the start, so that warm-up and compilation do not count. If it changes
    later (the machine slows down, another program ends), the end is moved, so that the run takes the given minutes.
    """

    seconds: float  # the whole budget
    settles_at: float  # fraction of the budget after which the schedule must know its end
    mark: tuple[int, float] | None = None  # step and second from which throughput is measured

    @property
    def least_left(self) -> float:
        """Fewest steps to take after the end is settled, as a fraction of the steps taken until then."""
        return min(0.25, (1 - self.settles_at) / self.settles_at)

    @classmethod
    def of(cls, minutes: float, schedule: Schedule) -> "Clock":
        """Make the clock for a budget and a schedule. A WSD schedule must know its end when the cooldown begins."""
        stable = 1 - schedule.cooldown_fraction if schedule.type == "wsd" else schedule.settles_at
        return cls(60 * minutes, max(0.05, stable))

    def settle(self, step: int, elapsed: float, reserved: float = 0.0) -> int | None:
        """Return the number of steps of the whole run, or None while it is too early to settle it.

        `elapsed` is the time spent, and `reserved` the time kept for a last evaluation, both in seconds.
        """
        if self.mark is None and (elapsed >= self.seconds * self.settles_at / 5 or step >= MARK_AT_LATEST):
            self.mark = (step, elapsed)
        if elapsed >= self.seconds:
            return step
        if self.mark is None or step < self.mark[0] + MEASURED_STEPS or elapsed < self.seconds * self.settles_at:
            return None
        first, since = self.mark
        pace = (step - first) / (elapsed - since)
        return step + max(0, int((self.seconds - elapsed - reserved) * pace))

    def moved(self, step: int, elapsed: float, reserved: float, total: int, since: int) -> int | None:
        """Return a corrected number of steps, or None if the settled `total` still fits the throughput so far.

        `since` is the step of the last correction. Until the next one, at least an eighth of the steps from there to
        the end are taken. A correction at most halves or doubles the remaining steps: a machine that stood still for
        a while must not end a cooldown at once.
        """
        left = total - step
        wanted = self.settle(step, elapsed, reserved)
        if wanted is None or left < MEASURED_STEPS or step < since + (total - since) / 8:
            return None
        new = min(max(wanted - step, left // 2), 2 * left)
        return step + new if abs(new - left) > MIN_CHANGE * left else None
