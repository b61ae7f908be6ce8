"""The trainer of all tasks: it takes optimizer steps, and holds the state that checkpoints save."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from math import inf, isfinite
from time import monotonic
from typing import NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from penwright.config import Recipe
from penwright.data.batches import Batch, Prefetcher
from penwright.data.bucketing import AnyBatches
from penwright.errors import Interrupted, PenwrightError
from penwright.losses import LossModule, Teachers
from penwright.model import Model
from penwright.model.block import Stack
from penwright.model.lora import narrow, widened
from penwright.model.weights import load_weights, weights_of
from penwright.run.checkpoints import Checkpoint, DamagedCheckpoint, Record, Tensors, first_problem
from penwright.training.auto.machine import (
    Machine,
    compile_blocks,
    is_failed_compilation,
    memory_of_rank,
    undo_compilation,
)
from penwright.training.budget import Budget, TrainState
from penwright.training.cuda_graphs import training_graphs
from penwright.training.distributed.parallel import Parallelism, ShardedSaver, full, gathered, like, parallelize
from penwright.training.distributed.ranks import is_lost_connection, synchronized
from penwright.training.optimizers import Optimizers, make_average

# fraction of the budget after which `training.consistency` applies: before, more steps are worth more
CONSISTENT_FROM = 0.5
TOO_MANY_SKIPPED = 25  # number of consecutive skipped steps that ends the training
# maximum share of a rank's memory for an unsharded gradient; FSDP2 accumulates larger gradients in shards
GRADIENTS = 0.1


class StepReport(NamedTuple):
    """The outcome of one optimizer step."""

    step: int  # number of the step, counted from 1
    loss: float  # mean nats per target
    grad_norm: float  # norm of the gradient; not finite if the step was skipped
    factor: float  # learning rate as a fraction of the peak
    n_targets: int


class Trainer:
    """A trainer that takes optimizer steps until the budget is spent. Its caller may stop after any step."""

    def __init__(
        self,
        model: Model,
        batches: AnyBatches,
        recipe: Recipe,
        machine: Machine,
        teachers: Sequence[Model] = (),
        compiles_later: bool = False,  # whether the caller calls `compile()` after the first steps
    ):
        self.model, self.batches, self.machine = model, batches, machine
        self.ranks, self.seed = machine.ranks, recipe.seed
        self.settings = recipe.training
        self.should_stop: Callable[[], bool] = lambda: False  # whether this process was asked to stop
        self.began = 0.0  # time of the monotonic clock when training began, in seconds
        self.stops, self.seconds = False, 0.0  # updated at each step: whether to stop, and seconds elapsed on rank 0
        self.saver: ShardedSaver | None = None  # writes checkpoints of sharded weights if ranks share a disk
        self.is_sharded = self.ranks.size > 1 and self.settings.parallelism == "fsdp"
        self.unsharded: Model | None = None  # with FSDP2, rank 0's unsharded copy of the model, for evaluation
        kind: Parallelism = "fsdp" if self.is_sharded else "ddp"
        # until FSDP2 reduces a gradient, each rank holds all of it in float32
        n_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
        fits = n_bytes <= GRADIENTS * memory_of_rank(machine.device)
        self.keeps_gradients = not self.is_sharded or self.ranks.all_agree(fits)
        if not self.is_sharded:
            self.model.to(machine.device)
        elif self.ranks.is_main:  # FSDP2 moves one block after another to the GPU, which need not hold them all
            self.model, self.unsharded = deepcopy(model), model
        if recipe.lora and recipe.tokenizer.is_pretrained and self._mixed:  # bfloat16 saves time and memory
            narrow(self.model)
        weight = recipe.distillation.weight if recipe.distillation else 0.0
        taught = Teachers([teacher.eval() for teacher in teachers], weight) if teachers else None
        self.unit = "texts" if recipe.task == "classify" else "tokens"  # unit of the throughput in messages
        self.prefetcher = Prefetcher(batches, self.settings.accumulate, machine.device)
        self.has_fixed_shapes = recipe.task == "generate"
        self.awaits_compilation = compiles_later and self.settings.compile == "on"
        if self.settings.compile == "on" and not compiles_later:
            self.compile()
        recomputes = self.settings.activation_checkpointing
        for module in self.model.modules():
            if isinstance(module, Stack):
                module.recomputes = recomputes
        self._loss = LossModule(self.model, self.settings.label_smoothing, taught)
        self.loss = parallelize(self._loss, kind, self.ranks, machine.device, machine.precision)
        self._graphs = training_graphs(
            self._backward, self.model, machine.device, self.ranks, recipe.task, recomputes=recomputes
        )
        self.optimizers = Optimizers(self.model, recipe.optimizer, machine.precision, machine.ranks)
        self.average = make_average(self.model, recipe) if self.ranks.is_main or self.is_sharded else None
        self.budget = Budget(self.settings, recipe.schedule, batches, self.ranks.size)

    def compile(self) -> None:
        """Compile the blocks at the next step."""
        compile_blocks(self.model, dynamic=not self.has_fixed_shapes)
        self.awaits_compilation = False

    @property
    def state(self) -> TrainState:
        """The counters of the run."""
        return self.budget.state

    @property
    def is_consistent(self) -> bool:
        """Whether each batch passes through the model twice, with different dropout: see `consistent_loss`."""
        return self._loss.consistency > 0

    def steps(self) -> Iterator[StepReport]:
        """Take all optimizer steps, and yield a report after each step."""
        self.began = monotonic() - self.state.seconds
        while self.state.total_steps is None or self.state.step < self.state.total_steps:
            try:
                report = self._step()
            except RuntimeError as error:
                if is_failed_compilation(error):
                    undo_compilation(self.model, error, self.ranks, is_stopping=self.should_stop())
                    self.optimizers.zero_grad()
                    continue  # repeat the step
                if not is_lost_connection(error):
                    raise
                self.ranks.end_after_loss(error, is_quiet=self.should_stop())
            self.state.seconds = self.seconds if self.ranks.size > 1 else monotonic() - self.began
            self.budget.settle()
            yield report

    def synchronize(self) -> None:
        """Send the counters of rank 0 to the other ranks, which wait for them."""
        if self.ranks.size == 1:
            return
        if self.ranks.is_main:
            self.ranks.publish(self.budget.save())
        elif record := self.ranks.receive():
            self.budget.load(record)
        else:
            raise Interrupted("rank 0 has ended")

    def _step(self) -> StepReport:
        state = self.state
        self.ranks.seed_rng(self.seed, state.step)
        self.model.train()
        if self.settings.consistency and not self.is_consistent:
            if not state.is_consistent and self.budget.progress >= CONSISTENT_FROM:
                state.is_consistent = True
                self.budget.measure_again()  # steps are slower from now on
            if state.is_consistent:
                self._begin_consistency()
        batches = self.prefetcher(state.step)
        n_targets = max(1, sum(batch.n_targets for batch in batches))  # the loss is a mean over these targets
        facts = self._add_gradients(batches, n_targets)
        norm = full(clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm or inf))
        # Fetch all numbers at once, to synchronize with a GPU only once.
        loss_value, stops, self.seconds, grad_norm = torch.cat([facts(), norm[None]]).tolist()
        self.stops = stops > 0
        factor = self.budget.rate_factor
        state.step += 1
        state.targets += n_targets
        if isfinite(grad_norm):
            state.skipped_in_a_row = 0
            self.optimizers.step(factor, self._graphs)
            if self.average is not None:
                self.average.update(state.step)
        else:
            self._skip(grad_norm)
        return StepReport(state.step, loss_value, grad_norm, factor, n_targets)

    def _begin_consistency(self) -> None:
        """Change the loss for the rest of the run: see `consistent_loss`."""
        self._loss.consistency = self.settings.consistency
        if self._graphs is not None:
            self._graphs.forget()

    def _add_gradients(self, batches: list[Batch], n_targets: int) -> Callable[[], Tensor]:
        """Add the gradients of all batches of a step; return what `Ranks.agree` returns."""
        if self._graphs is not None:
            total = torch.stack(self._graphs.add_all_gradients(batches, n_targets)).sum()
            return self.ranks.agree(total, self.should_stop(), monotonic() - self.began)
        losses = []
        for number, batch in enumerate(batches, 1):
            is_last = number == len(batches)
            with synchronized(self.loss, is_last or not self.keeps_gradients):
                loss = self._forward(batch, n_targets)
                losses.append(loss.detach())
                if is_last:  # the ranks exchange these facts during the backward pass
                    total = torch.stack(losses).sum()
                    facts = self.ranks.agree(total, self.should_stop(), monotonic() - self.began)
                (loss * self.ranks.size).backward()  # ranks average gradients, but their sum is needed
        return facts

    def _backward(self, batch: Batch, n_targets: int | Tensor) -> Tensor:
        """Add the gradients of a batch; return its loss."""
        loss = self._forward(batch, n_targets)
        loss.backward()
        return loss.detach()

    def _forward(self, batch: Batch, n_targets: int | Tensor) -> Tensor:
        """Return this rank's part of the loss, divided by the number of targets in the whole step."""
        share, weight = self.ranks.share(batch)
        with torch.autocast(self.machine.device.type, self.machine.precision, enabled=self._mixed):
            loss = self.loss(share)
        return loss / n_targets if weight == 1 else loss * weight

    @property
    def _mixed(self) -> bool:
        return self.machine.precision != torch.float32

    def _skip(self, grad_norm: float) -> None:
        """Skip the step: the gradient is not finite and would ruin the weights. Count the skipped steps."""
        self.optimizers.zero_grad()
        self.state.skipped += 1
        self.state.skipped_in_a_row += 1
        if self.state.skipped_in_a_row >= TOO_MANY_SKIPPED and self.ranks.is_main:
            raise PenwrightError(
                f"training diverged: the gradient norm was {grad_norm} for {TOO_MANY_SKIPPED} steps in a row, up to "
                f"step {self.state.step}. The last checkpoint, if there is one, is intact. Try a lower "
                f"optimizer.learning_rate, a longer schedule.warmup_steps, or training.precision=float32."
            )

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Load the weights for inference into the model inside the `with` block. All ranks must call this."""
        if self.is_sharded:
            weights = self.weights()
            if self.unsharded:
                load_weights(self.unsharded, weights, "this model")
                self.unsharded.to(self.machine.device)
            yield
            if self.unsharded:
                self.unsharded.cpu()
        elif self.average is not None:
            with self.average.applied(), widened(self.model):
                yield
        else:
            with widened(self.model):
                yield

    def weights(self) -> Tensors:
        """Return the weights for inference: the average if there is one, or else the current weights."""
        return gathered(self.average.average if self.average is not None else weights_of(self.model))

    def save(self) -> tuple[Tensors, Record]:
        """Return the tensors and counters that an exact resume needs in addition to `weights()`.

        With sharded weights, all ranks must call this and `weights()` together. The tensors stay sharded if each rank
        saves its own shards (`saver`).
        """
        tensors = {f"optimizer/{name}": tensor for name, tensor in self.optimizers.state().items()}
        if self.average is not None:
            tensors |= {f"raw/{name}": tensor for name, tensor in weights_of(self.model).items()}
        if self.saver is None:
            tensors = gathered(tensors)
        tensors["random/cpu"] = torch.get_rng_state()
        if self.machine.device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(self.machine.device)
        return tensors, self.budget.save()

    def load(self, checkpoint: Checkpoint | None) -> None:
        """Resume from this checkpoint. Raise DamagedCheckpoint if its content is not what `save()` returns.

        Rank 0 passes the checkpoint, and broadcasts its content to the other ranks.
        """
        source = checkpoint.folder if checkpoint else "the checkpoint of rank 0"
        if checkpoint:
            record, tensors, weights = checkpoint.state(), checkpoint.training(), checkpoint.weights()
            try:
                self.budget.load(record)
            except ValidationError as error:
                raise DamagedCheckpoint(f"{source} cannot be resumed: {first_problem(error)}") from None
        weights = self.ranks.broadcast(weights if checkpoint else None)
        tensors = self.ranks.broadcast(tensors if checkpoint else None)
        raw = _tensors_under("raw/", tensors)
        load_weights(self.model, raw or weights, str(source), like)
        try:
            if self.average is not None:
                self.average.load(weights)
            self.optimizers.load_state(_tensors_under("optimizer/", tensors))
            torch.set_rng_state(tensors["random/cpu"])
            if self.machine.device.type == "cuda" and "random/cuda" in tensors:
                torch.cuda.set_rng_state(tensors["random/cuda"], self.machine.device)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise DamagedCheckpoint(f"{source} has no valid training state: {error}") from None


def _tensors_under(prefix: str, tensors: dict[str, Tensor]) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
