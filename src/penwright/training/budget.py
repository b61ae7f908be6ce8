"""The budget of a run: the counters, the number of steps, and the learning rate, which depends on the budget."""

from dataclasses import asdict, dataclass, fields
from math import ceil

from pydantic import TypeAdapter

from penwright.config import EndShift, Schedule, TrainingSettings, WarmupStableDecay
from penwright.data.bucketing import AnyBatches
from penwright.run.checkpoints import Record


@dataclass
class TrainState:
    """The counters of a run, saved with every checkpoint."""

    step: int = 0
    total_steps: int | None = None  # total number of steps; None until a budget in minutes is converted into steps
    ends_by_the_clock: bool = False  # whether `total_steps` is corrected when the throughput changes
    ends_early: bool = False  # whether an early cooldown has begun; from then on, the last step is never postponed
    turn_step: int = 0  # step (of the current budget) at which `total_steps` was last corrected
    turn_progress: float = 0.0  # progress of the schedule at `turn_step`, from 0 to 1
    targets: int = 0
    seconds: float = 0.0  # training time so far in seconds, evaluations included
    reserved_seconds: float = 0.0  # seconds reserved for the last evaluation: the duration of the previous one
    first_step: int = 0  # step at which the current budget began: 0 or the last step of the previous budget
    first_second: float = 0.0
    skipped: int = 0
    skipped_in_a_row: int = 0
    best: float | None = None  # best value so far of the score that ranks checkpoints
    best_step: int | None = None  # step with the best score so far
    nats_of_best: float | None = None  # held-out loss at `best_step`, in nats
    evaluations_since_best: int = 0
    best_nats: float | None = None  # lowest held-out loss in the current budget, in nats
    evaluations_over_fitted: int = 0  # number of consecutive evaluations that are clearly worse than `best_nats`
    stopped_early: bool = False
    is_consistent: bool = False  # whether `training.consistency` has begun in the current budget
    processes: int | None = None  # number of training processes; None in runs that did not record it


def count_steps(settings: TrainingSettings, batches: AnyBatches) -> int | None:
    """Return the number of optimizer steps, or None for a budget in minutes (see `Clock`)."""
    if settings.steps is not None:
        return settings.steps
    if settings.epochs is not None:
        return max(1, ceil(settings.epochs * batches.per_epoch / settings.accumulate))
    if settings.tokens is not None:
        epochs = settings.tokens / max(1, batches.tokens_per_epoch)
        return max(1, ceil(epochs * batches.per_epoch / settings.accumulate))
    return None


MEASURED_STEPS = 8  # minimum number of steps for measuring throughput
MARK_AT_LATEST = 200  # latest step at which the measurement of throughput starts
MIN_CHANGE = 0.1  # `total_steps` is corrected only if the remaining steps change by more than this fraction


@dataclass
class Clock:
    """A clock that converts a budget in minutes into a number of steps, as late as the schedule allows.

    Throughput is measured after the first steps, so that warm-up and compilation do not count. If the throughput
    changes later, the end is moved to keep to the budget.
    """

    seconds: float  # budget in seconds
    settles_at: float  # fraction of the budget after which the number of steps must be known
    mark: tuple[int, float] | None = None  # step, and elapsed seconds, at which the measurement of throughput began

    @property
    def least_left(self) -> float:
        """Minimum ratio of remaining steps to completed steps at the moment when the total number of steps is fixed."""
        return min(0.25, (1 - self.settles_at) / self.settles_at)

    @classmethod
    def of(cls, minutes: float, schedule: Schedule) -> "Clock":
        """Create the clock for a budget and a schedule. WSD needs the number of steps when its cooldown begins."""
        stable = 1 - schedule.cooldown_fraction if schedule.type == "wsd" else schedule.settles_at
        return cls(60 * minutes, max(0.05, stable))

    def settle(self, step: int, elapsed: float, reserved: float = 0.0) -> int | None:
        """Return the number of steps of the whole run, or None if it is too early to determine it.

        `elapsed` is the time since the budget began, and `reserved` the time kept for the last evaluation, in seconds.
        """
        if self.mark is None and (elapsed >= self.seconds * self.settles_at / 5 or step >= MARK_AT_LATEST):
            self.mark = (step, elapsed)
        if elapsed >= self.seconds:
            return step
        if self.mark is None or step < self.mark[0] + MEASURED_STEPS or elapsed < self.seconds * self.settles_at:
            return None
        first, since = self.mark
        steps_per_second = (step - first) / (elapsed - since)
        return step + max(0, int((self.seconds - elapsed - reserved) * steps_per_second))

    def adjust(self, step: int, elapsed: float, reserved: float, total: int, since: int) -> int | None:
        """Return a corrected number of steps, or None if `total` needs no correction yet.

        `since` is the step of the last correction. The next correction comes after at least an eighth of the steps
        from `since` to the end. A correction at most halves or doubles the remaining steps. Otherwise, a
        cooldown might end at once after the machine has slept.
        """
        left = total - step
        target = self.settle(step, elapsed, reserved)
        if target is None or left < MEASURED_STEPS or step < since + (total - since) / 8:
            return None
        new = min(max(target - step, left // 2), 2 * left)
        return step + new if abs(new - left) > MIN_CHANGE * left else None


_MARK = TypeAdapter(tuple[int, float] | None)


class Budget:
    """The budget of a run: the spent part, the remaining part and the learning-rate schedule."""

    def __init__(self, settings: TrainingSettings, schedule: Schedule, batches: AnyBatches, n_processes: int = 1):
        self._settings, self._schedule, self._batches = settings, schedule, batches
        self.state = TrainState(total_steps=count_steps(settings, batches), processes=n_processes)
        self.clock = Clock.of(settings.minutes, schedule) if settings.minutes is not None else None

    def save(self) -> Record:
        """Return the counters to save in a checkpoint."""
        mark = list(self.clock.mark) if self.clock and self.clock.mark else None
        return {**asdict(self.state), "clock_mark": mark}

    def load(self, record: Record) -> None:
        """Continue from the counters of a checkpoint. Raise ValidationError if the record is not valid."""
        known = {field.name for field in fields(TrainState)}
        state = TypeAdapter(TrainState).validate_python({key: value for key, value in record.items() if key in known})
        mark = _MARK.validate_python(record.get("clock_mark"))
        state.processes = self.state.processes
        self.state = state
        if self.clock is not None and mark is not None:
            self.clock.mark = mark

    @property
    def epoch(self) -> float:
        """Number of passes over the training set so far."""
        return self.state.step * self._settings.accumulate / self._batches.per_epoch

    def epochs_until(self, step: int) -> float:
        """Return the number of passes over the training set from the start of the current budget to this step."""
        return (step - self.state.first_step) * self._settings.accumulate / self._batches.per_epoch

    @property
    def progress(self) -> float:
        """Fraction of the budget spent so far, between 0 and 1."""
        state = self.state
        if state.total_steps is not None:
            n_steps = state.total_steps - state.first_step
            return (state.step - state.first_step) / n_steps if n_steps else 1.0
        return min(1.0, (state.seconds - state.first_second) / self.clock.seconds) if self.clock else 0.0

    def settle(self) -> None:
        """Convert a budget in minutes into a number of steps, and correct this number when the throughput changes."""
        state, clock = self.state, self.clock
        if clock is None or (state.total_steps is not None and not state.ends_by_the_clock):
            return
        step, elapsed, shift = state.step - state.first_step, state.seconds - state.first_second, self._end_shift
        if state.total_steps is None:
            total = clock.settle(step, elapsed, state.reserved_seconds)
            # evaluations may have used up time that was meant for the cooldown
            if total is not None and state.reserved_seconds:
                total = max(total, step + int(step * clock.least_left))
        else:
            settled = state.total_steps - state.first_step
            total = clock.adjust(step, elapsed, state.reserved_seconds, settled, shift.step)
            if state.ends_early and total is not None and total > settled:
                return
            shift = EndShift(step, self._schedule.progress(step, settled, shift))
        if total is not None:
            state.ends_by_the_clock, state.total_steps = True, state.first_step + total
            state.turn_step, state.turn_progress = shift

    def measure_again(self) -> None:
        """Restart the measurement of throughput, because the duration of a step has changed."""
        if self.clock is not None:
            self.clock.mark = None

    @property
    def rate_factor(self) -> float:
        """Learning rate of the next step, as a fraction of the peak learning rate."""
        return self._schedule.factor(self.state.step - self.state.first_step, self._total, self._end_shift)

    def rate_falls_below(self, share: float) -> bool:
        """Return whether the learning rate has yet to fall below this fraction of its peak."""
        total = self._total
        falls = total is None or self._schedule.factor(total - 1, total, self._end_shift) < share
        return falls and self.rate_factor >= share

    @property
    def _total(self) -> int | None:
        """Number of steps of the current budget, or None while it is not yet known."""
        state = self.state
        return None if state.total_steps is None else state.total_steps - state.first_step

    @property
    def _end_shift(self) -> EndShift:
        return EndShift(self.state.turn_step, self.state.turn_progress)

    def cool_down(self) -> bool:
        """Start the cooldown unless it has begun or the schedule has none. Return whether it was started."""
        state, schedule = self.state, self._schedule
        if not isinstance(schedule, WarmupStableDecay) or not 0 < schedule.cooldown_fraction < 1:
            return False
        if self.progress >= 1 - schedule.cooldown_fraction:
            return False
        state.total_steps = state.first_step + schedule.total_if_cooled_from(state.step - state.first_step)
        state.ends_by_the_clock = state.ends_early = self.clock is not None
        return True

    def extend(self) -> None:
        """Begin a new budget, with a new schedule, at the current step of a resumed run."""
        state = self.state
        state.first_step, state.first_second = state.step, state.seconds
        state.evaluations_since_best = state.evaluations_over_fitted = 0
        state.best_nats, state.stopped_early = None, False  # a high learning rate raises the held-out loss at first
        state.ends_by_the_clock = state.ends_early = False
        state.turn_step, state.turn_progress, state.is_consistent = 0, 0.0, False
        steps = count_steps(self._settings, self._batches)
        state.total_steps = None if steps is None else state.step + steps
        self.measure_again()
