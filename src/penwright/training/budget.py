"""How many steps a run takes: counted at once from steps, epochs or tokens, or found out from minutes on the way."""

from dataclasses import dataclass
from math import ceil

from penwright.config import Schedule, TrainingSettings
from penwright.data.batching import AnyBatches


def steps_of(settings: TrainingSettings, batches: AnyBatches) -> int | None:
    """The number of steps; None when the budget is in minutes and must be settled while training."""
    if settings.steps is not None:
        return settings.steps
    if settings.epochs is not None:
        return max(1, ceil(settings.epochs * batches.per_epoch / settings.accumulate))
    if settings.tokens is not None:
        epochs = settings.tokens / max(1, batches.tokens_per_epoch)
        return max(1, ceil(epochs * batches.per_epoch / settings.accumulate))
    return None


MEASURED_STEPS = 8  # at least, for the pace
MARK_AT_LATEST = 200  # steps
OFF = 0.1  # of the steps that are left: an end that is further from the clock's is moved there


@dataclass
class Clock:
    """Settles the steps of a run of so many minutes at the latest moment that its schedule allows.

    The pace is measured from a little after the start, so that warming up and compiling do not count. Where it changes
    after that (a machine grows warm, another program ends), the end is moved, for the minutes are what was asked for.
    """

    seconds: float  # of the whole budget
    settles_at: float  # the fraction of it after which the schedule must know its end
    mark: tuple[int, float] | None = None  # the step and second from which the pace is measured

    @property
    def least_left(self) -> float:
        """Of the steps that were taken when the end is settled, the share that should follow in any case."""
        return min(0.25, (1 - self.settles_at) / self.settles_at)

    @classmethod
    def of(cls, minutes: float, schedule: Schedule) -> "Clock":
        """For this budget and schedule; a cooldown must know its end only when it begins."""
        stable = 1 - schedule.cooldown_fraction if schedule.type == "wsd" else schedule.settles_at
        return cls(60 * minutes, max(0.05, stable))

    def settle(self, step: int, elapsed: float, reserved: float = 0.0) -> int | None:
        """The number of steps of the whole run, when it is time to say it; `reserved` seconds are for a last look."""
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
        """The steps of the whole run by the pace so far, where a settled total, moved last at `since`, is far off.

        An eighth of the way to the end is left between moves, and each leaves at least half as many steps and at most
        twice as many: a machine that stood still for a while must not end a cooldown at once.
        """
        left = total - step
        wanted = self.settle(step, elapsed, reserved)
        if wanted is None or left < MEASURED_STEPS or step < since + (total - since) / 8:
            return None
        new = min(max(wanted - step, left // 2), 2 * left)
        return step + new if abs(new - left) > OFF * left else None
