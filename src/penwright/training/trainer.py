"""The trainer: optimizer steps, budget and training state, shared by all tasks."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from math import inf, isfinite
from time import monotonic
from typing import NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from penwright.config import EndShift, Recipe, WarmupStableDecay
from penwright.data.batches import Batch
from penwright.data.bucketing import AnyBatches
from penwright.errors import PenwrightError
from penwright.losses import Teachers, summed_loss
from penwright.model import Model
from penwright.model.weights import load_weights, weights_of
from penwright.run.checkpoints import TRAINING, Checkpoint, DamagedCheckpoint, Record, Tensors, first_problem
from penwright.training.auto.machine import Machine
from penwright.training.budget import Clock, count_steps
from penwright.training.compilation import compile_blocks
from penwright.training.optimizers import Optimizers
from penwright.training.prefetch import Prefetcher
from penwright.training.weight_averaging import WeightAverage

TOO_MANY_SKIPPED = 25  # skipped steps in a row that end the training


class StepReport(NamedTuple):
    """The outcome of one step."""

    step: int  # counted from 1
    loss: float  # mean nats per target
    grad_norm: float  # not finite if the step was skipped
    factor: float  # fraction of the peak learning rate
    n_targets: int


@dataclass
class TrainState:
    """The counters of a run, saved with every checkpoint."""

    step: int = 0
    total_steps: int | None = None  # None until a budget in minutes is settled
    ends_by_the_clock: bool = False  # The end moves when throughput changes.
    ends_early: bool = False  # The end moves only closer, because an early cooldown has begun.
    turn_step: int = 0  # step of the budget at which the end was last moved
    turn_progress: float = 0.0  # progress of the schedule at that step
    targets: int = 0
    seconds: float = 0.0  # spent on training, evaluation included
    reserved_seconds: float = 0.0  # duration of an evaluation, kept free for the last one
    first_step: int = 0  # where the current budget began: 0, or the end of the budget before
    first_second: float = 0.0
    skipped: int = 0
    skipped_in_a_row: int = 0
    best: float | None = None  # best value so far of the score that ranks
    best_step: int | None = None  # step of the best value
    nats_of_best: float | None = None  # held-out nats at that step
    evaluations_since_best: int = 0
    best_nats: float | None = None  # fewest held-out nats in the current budget
    evaluations_over_fitted: int = 0  # consecutive evaluations that are clearly worse than `best_nats`
    stopped_early: bool = False
    processes: int | None = None  # number of training processes; None in runs that did not record it


class Trainer:
    """A trainer that takes optimizer steps until the budget is spent. Its caller may stop after any step."""

    def __init__(
        self, model: Model, batches: AnyBatches, recipe: Recipe, machine: Machine, teachers: Sequence[Model] = ()
    ):
        self.model, self.batches, self.machine = model.to(machine.device), batches, machine
        self.ranks, self.seed = machine.ranks, recipe.seed
        self.settings, self.schedule = recipe.training, recipe.schedule
        weight = recipe.distillation.weight if recipe.distillation else 0.0
        self.teachers = Teachers([each.eval() for each in teachers], weight) if teachers else None
        self.unit = "texts" if recipe.task == "classify" else "tokens"  # what one target is
        self.prefetcher = Prefetcher(batches, self.settings.accumulate, machine.device)
        self.optimizers = Optimizers(model, recipe.optimizer, machine.precision, machine.ranks)
        averages = self.settings.ema_decay and self.ranks.leads
        self.average = WeightAverage(model, self.settings.ema_decay) if averages else None
        self.state = TrainState(total_steps=count_steps(self.settings, batches), processes=self.ranks.size)
        minutes = self.settings.minutes
        self.clock = Clock.of(minutes, self.schedule) if minutes is not None else None
        if self.settings.compile == "on":
            compile_blocks(model, machine.device, dynamic=recipe.task != "generate")
            self.ranks.note_compilations()

    @property
    def epoch(self) -> float:
        """Passes over the training part so far."""
        return self.state.step * self.settings.accumulate / self.batches.per_epoch

    def epochs_until(self, step: int) -> float:
        """Return the passes over the training part from the start of the current budget to this step."""
        return (step - self.state.first_step) * self.settings.accumulate / self.batches.per_epoch

    @property
    def progress(self) -> float:
        """Spent fraction of the budget, between 0 and 1."""
        state = self.state
        if state.total_steps is not None:
            return (state.step - state.first_step) / max(1, state.total_steps - state.first_step)
        return min(1.0, (state.seconds - state.first_second) / self.clock.seconds) if self.clock else 0.0

    def steps(self) -> Iterator[StepReport]:
        """Yield a report after each optimizer step, until the last."""
        begin = monotonic() - self.state.seconds
        while self.state.total_steps is None or self.state.step < self.state.total_steps:
            self.ranks.tell(asdict(self.state))
            report = self._step()
            self.state.seconds = monotonic() - begin
            self._settle()
            yield report
            self.state.seconds = monotonic() - begin  # includes the time between the steps

    def follow(self) -> None:
        """Take the same steps as rank 0 until it is done. Only the other ranks call this."""
        while (record := self.ranks.receive()) is not None:
            self.state = TrainState(**record)
            self.ranks.seed_rng(self.seed, self.state.step)
            with suppress(PenwrightError):  # rank 0 raises the same error and reports it
                self._step()

    def _settle(self) -> None:
        """Settle the number of steps of a budget in minutes, and correct it when throughput changes."""
        state, clock = self.state, self.clock
        if clock is None or (state.total_steps is not None and not state.ends_by_the_clock):
            return
        step, elapsed, turn = state.step - state.first_step, state.seconds - state.first_second, self._turn
        if state.total_steps is None:
            total = clock.settle(step, elapsed, state.reserved_seconds)
            if total is not None and state.reserved_seconds:  # evaluations may have used up the time of the cooldown
                total = max(total, step + int(step * clock.least_left))
        else:
            settled = state.total_steps - state.first_step
            total = clock.moved(step, elapsed, state.reserved_seconds, settled, turn.step)
            if state.ends_early and total is not None and total > settled:
                return
            turn = EndShift(step, self.schedule.progress(step, settled, turn))
        if total is not None:
            state.ends_by_the_clock, state.total_steps = True, state.first_step + total
            state.turn_step, state.turn_progress = turn

    @property
    def rate_factor(self) -> float:
        """Factor by which the next step multiplies the peak learning rate."""
        return self.schedule.factor(self.state.step - self.state.first_step, self._total, self._turn)

    def rate_falls_below(self, share: float) -> bool:
        """Return whether the learning rate will still fall below this fraction of its peak."""
        total = self._total
        falls = total is None or self.schedule.factor(total - 1, total, self._turn) < share
        return falls and self.rate_factor >= share

    @property
    def _total(self) -> int | None:
        """Number of steps of the current budget, or None while it is not settled."""
        state = self.state
        return None if state.total_steps is None else state.total_steps - state.first_step

    @property
    def _turn(self) -> EndShift:
        return EndShift(self.state.turn_step, self.state.turn_progress)

    def _step(self) -> StepReport:
        state = self.state
        self.model.train()
        batches = self.prefetcher(state.step)
        n_targets = max(1, sum(batch.n_targets for batch in batches))  # so that every target has the same weight
        losses = torch.stack([self._forward_backward(batch, n_targets) for batch in batches])
        self._all_reduce(losses)
        limit = self.settings.max_grad_norm or inf
        norm = clip_grad_norm_(self.model.parameters(), limit)
        loss, grad_norm = torch.stack([losses.sum(), norm]).tolist()  # waits only once for a GPU
        factor = self.rate_factor
        state.step += 1
        state.targets += n_targets
        if isfinite(grad_norm):
            state.skipped_in_a_row = 0
            self.optimizers.step(factor)
            if self.average is not None:
                self.average.update(state.step)
        else:
            self._skip(grad_norm)
        return StepReport(state.step, loss, grad_norm, factor, n_targets)

    def _forward_backward(self, batch: Batch, n_targets: int) -> Tensor:
        share = self.ranks.share(batch)
        if share is None:
            return torch.zeros((), device=self.machine.device)
        with torch.autocast(self.machine.device.type, self.machine.precision, enabled=self._mixed):
            loss = summed_loss(self.model, share, self.settings.label_smoothing, self.teachers) / n_targets
        loss.backward()
        return loss.detach()

    def _all_reduce(self, losses: Tensor) -> None:
        """All-reduce losses and gradients if there are other ranks."""
        if self.ranks.size > 1:
            parameters = [each for each in self.model.parameters() if each.requires_grad]
            for each in parameters:
                if each.grad is None:  # this rank had no rows
                    each.grad = torch.zeros_like(each)
            self.ranks.all_reduce([*(each.grad for each in parameters if each.grad is not None), losses])

    @property
    def _mixed(self) -> bool:
        return self.machine.precision != torch.float32

    def _skip(self, grad_norm: float) -> None:
        """Leave the weights unchanged: one step with such a gradient would ruin them."""
        self.optimizers.zero_grad()
        self.state.skipped += 1
        self.state.skipped_in_a_row += 1
        if self.state.skipped_in_a_row >= TOO_MANY_SKIPPED:
            raise PenwrightError(
                f"training diverged: the gradient norm was {grad_norm} for {TOO_MANY_SKIPPED} steps in a row, up to "
                f"step {self.state.step}. The last checkpoint, if there is one, is intact. Try a lower "
                f"optimizer.learning_rate, a longer schedule.warmup_steps, or training.precision=float32."
            )

    def weights(self) -> Tensors:
        """Return the weights to use the model with: their average if one is kept."""
        return self.average.average if self.average is not None else weights_of(self.model)

    def save(self) -> tuple[Tensors, Record]:
        """Return what a process needs, in addition to `weights()`, to resume bit for bit: tensors and counters."""
        tensors = {f"optimizer/{name}": tensor for name, tensor in self.optimizers.state().items()}
        if self.average is not None:
            tensors |= {f"raw/{name}": tensor for name, tensor in weights_of(self.model).items()}
        tensors["random/cpu"] = torch.get_rng_state()
        if self.machine.device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(self.machine.device)
        mark = list(self.clock.mark) if self.clock and self.clock.mark else None
        return tensors, {**asdict(self.state), "clock_mark": mark}

    def load(self, checkpoint: Checkpoint) -> None:
        """Resume from this checkpoint. Raise DamagedCheckpoint if it does not hold what `save()` returns."""
        record, tensors, weights = checkpoint.state(), checkpoint.training(), checkpoint.weights()
        try:
            self.state, mark = _read_state(record), _MARK.validate_python(record.get("clock_mark"))
        except ValidationError as error:
            raise DamagedCheckpoint(f"{checkpoint.folder} cannot be resumed: {first_problem(error)}") from None
        self.state.processes = self.ranks.size
        if self.clock is not None and mark is not None:
            self.clock.mark = mark
        raw = _tensors_under("raw/", tensors)
        load_weights(self.model, raw or weights, str(checkpoint.folder))
        try:
            if self.average is not None:
                self.average.load(weights)
            self.optimizers.load_state(_tensors_under("optimizer/", tensors))
            torch.set_rng_state(tensors["random/cpu"])
            if self.machine.device.type == "cuda" and "random/cuda" in tensors:
                torch.cuda.set_rng_state(tensors["random/cuda"], self.machine.device)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise DamagedCheckpoint(f"{checkpoint.folder / TRAINING} is not a valid training state: {error}") from None

    def cool_down(self) -> bool:
        """Start the cooldown now if the schedule has one that is still ahead; return whether it started."""
        state, schedule = self.state, self.schedule
        if not isinstance(schedule, WarmupStableDecay) or not 0 < schedule.cooldown_fraction < 1:
            return False
        if self.progress >= 1 - schedule.cooldown_fraction:
            return False
        state.total_steps = state.first_step + schedule.total_if_cooled_from(state.step - state.first_step)
        state.ends_by_the_clock = state.ends_early = self.clock is not None
        return True

    def extend(self) -> None:
        """Start a new budget with a new schedule where the loaded state ends."""
        state = self.state
        state.first_step, state.first_second = state.step, state.seconds
        state.evaluations_since_best = state.evaluations_over_fitted = 0
        state.best_nats, state.stopped_early = None, False  # at a high learning rate, nats rise again for a while
        state.ends_by_the_clock = state.ends_early = False
        state.turn_step, state.turn_progress = 0, 0.0
        steps = count_steps(self.settings, self.batches)
        state.total_steps = None if steps is None else state.step + steps
        if self.clock is not None:
            self.clock.mark = None


_MARK = TypeAdapter(tuple[int, float] | None)


def _read_state(record: Record) -> TrainState:
    """Return the counters from a checkpoint's record, which holds other values as well."""
    known = {field.name for field in fields(TrainState)}
    return TypeAdapter(TrainState).validate_python({key: value for key, value in record.items() if key in known})


def _tensors_under(prefix: str, tensors: dict[str, Tensor]) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
