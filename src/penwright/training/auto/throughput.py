"""How many targets a second training takes in on this machine: measured, since no formula knows a machine."""

from collections.abc import Callable
from time import perf_counter

import torch

from penwright.config import ModelSettings, Muon, Task
from penwright.data.batches import Batch, LabelledBatch, PairBatch, TextBatch
from penwright.losses import summed_loss
from penwright.model import make_model
from penwright.training.auto.machine import Machine
from penwright.training.optimizers import Optimizers

Pace = Callable[[ModelSettings, int, int], float]  # of a model, a vocabulary and tokens a batch: tokens a second

STEPS = 3  # of which the quickest counts: the first one warms up, and others may have been disturbed
ENOUGH = 3.0  # seconds for one model
LENGTHS: dict[Task, int] = {"translate": 24, "classify": 64}  # tokens, for want of the real ones; a writer's are full
MOST_TOKENS = 4096  # of a batch that is measured on a CPU: the pace of a larger one is much the same


def pace_on(machine: Machine, task: Task, n_labels: int = 2) -> Pace:
    """What measures real steps of this task, on tokens drawn by chance; 0 of what the memory of a GPU cannot hold."""

    def pace(settings: ModelSettings, vocab_size: int, batch_tokens: int) -> float:
        model = make_model(task, vocab_size, settings, n_labels).to(machine.device).train()
        optimizers = Optimizers(model, Muon(), machine.precision)
        length = min(LENGTHS.get(task, settings.context_length), settings.context_length)
        of_all = max(1, (min(batch_tokens, MOST_TOKENS) if machine.device.type == "cpu" else batch_tokens) // length)
        n_working = min(of_all, machine.ranks.size)
        rows = of_all // n_working  # of each process
        shown = max(1, round(length * (1 - settings.token_dropout)))  # what is hidden from a classifier takes no time
        batch = _batch_by_chance(task, vocab_size, rows, shown, n_labels).to(machine.device)

        def step() -> None:
            with torch.autocast(machine.device.type, machine.precision, enabled=machine.precision != torch.float32):
                loss = summed_loss(model, batch)
            loss.backward()
            optimizers.step(0.0)
            float(loss.detach())  # waits for the device

        if machine.device.type != "cpu":
            step()  # which loads what a GPU needs, for seconds
        return n_working * rows * length / _quickest(step)

    def pace_or_none(settings: ModelSettings, vocab_size: int, batch_tokens: int) -> float:
        try:
            return pace(settings, vocab_size, batch_tokens)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return 0.0

    return pace_or_none


def _quickest(step: Callable[[], None]) -> float:
    """Seconds of the quickest of some steps."""
    best, begin = float("inf"), perf_counter()
    for _ in range(STEPS):
        before = perf_counter()
        step()
        best = min(best, perf_counter() - before)
        if perf_counter() - begin > ENOUGH:
            break
    return best


def _batch_by_chance(task: Task, vocab_size: int, rows: int, length: int, n_labels: int) -> Batch:
    tokens = torch.randint(vocab_size, (rows, length))
    real = torch.ones(rows, length, dtype=torch.bool)
    if task == "generate":
        return TextBatch(tokens.numel(), tokens, tokens, None)
    if task == "translate":
        return PairBatch(tokens.numel(), tokens, real, tokens, tokens)
    return LabelledBatch(rows, tokens, real, torch.randint(n_labels, (rows,)))
