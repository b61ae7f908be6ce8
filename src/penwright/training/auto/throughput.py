"""The throughput of training, measured on this machine."""

from collections.abc import Callable
from time import perf_counter, sleep

import torch
from torch import Tensor

from penwright.config import AdamW, LoraSettings, ModelSettings, Muon, Task
from penwright.data.batches import IGNORED, Batch, LabelledBatch, MaskedBatch, PairBatch, TextBatch
from penwright.devices import give_back_memory
from penwright.losses import summed_loss
from penwright.model import make_model
from penwright.tasks.encoding import MASKED
from penwright.training.auto.machine import Machine
from penwright.training.cuda_graphs import CALLS_BEFORE, training_graphs
from penwright.training.optimizers import Optimizers

# (model, vocabulary size, tokens per batch) -> tokens per second
MeasureThroughput = Callable[[ModelSettings, int, int], float]
STEPS, MOST_STEPS = 3, 8  # minimum and maximum number of steps to time; more than the minimum only if the times differ
ALIKE = 1.1  # the two fastest times agree if their ratio is at most this
PAUSE = 0.15  # seconds to wait before each additional step, so that another program can finish
ENOUGH = 3.0  # maximum seconds of timing per model
LENGTHS: dict[Task, int] = {  # typical number of tokens per text; for "generate", the longest window that is timed
    "generate": 1024,
    "chat": 128,
    "translate": 24,
    "classify": 64,
    "encode": 128,
}
MOST_TOKENS = 4096  # maximum size of a batch timed on a CPU, in tokens; larger batches have much the same throughput
# Maximum size of a batch timed with adapters, in tokens; their base models are large, and timing should save memory.
MOST_LORA_TOKENS = 256


def throughput_meter(
    machine: Machine, task: Task, n_labels: int = 2, lora: LoraSettings | None = None
) -> MeasureThroughput:
    """Return a function that measures training throughput: the tokens per second, or 0 if GPU memory runs out."""

    def measure(settings: ModelSettings, vocab_size: int, batch_tokens: int) -> float:
        model = make_model(task, vocab_size, settings, n_labels, lora).to(machine.device).train()
        optimizers = Optimizers(model, AdamW() if lora else Muon(), machine.precision)
        most = MOST_LORA_TOKENS if lora else MOST_TOKENS
        length = min(LENGTHS[task], settings.context_length, most)
        n_rows = max(1, (min(batch_tokens, most) if machine.device.type == "cpu" else batch_tokens) // length)
        n_working = min(n_rows, machine.ranks.size)
        rows = n_rows // n_working  # rows of the batch per process
        shown = max(1, round(length * (1 - settings.token_dropout)))  # with token dropout, fewer tokens are processed
        batch = _random_batch(task, vocab_size, rows, shown, n_labels).to(machine.device)

        def backward(batch: Batch, divisor: int | Tensor) -> Tensor:
            with torch.autocast(machine.device.type, machine.precision, enabled=machine.precision != torch.float32):
                loss = summed_loss(model, batch) / divisor
            loss.backward()
            return loss.detach()

        graphs = training_graphs(backward, model, machine.device, machine.ranks, task)
        add_gradients = graphs.add_gradients if graphs else backward

        def step() -> None:
            loss = add_gradients(batch, 1)
            optimizers.step(0.0, graphs)
            float(loss)  # reading the loss waits for the device

        if machine.device.type != "cpu":
            for _ in range(2 * CALLS_BEFORE + 2 if graphs else 1):  # the first steps load libraries and capture graphs
                step()
        return n_working * rows * length / _fastest(step)

    def measure_or_zero(settings: ModelSettings, vocab_size: int, batch_tokens: int) -> float:
        try:
            return measure(settings, vocab_size, batch_tokens)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return 0.0
        finally:
            if lora:
                give_back_memory()  # free the memory of the base model, which is large and will be loaded again

    return measure_or_zero


def _fastest(step: Callable[[], None]) -> float:
    """Time a few steps and return the duration of the fastest one, in seconds.

    Other programs can only make steps slower. If the two fastest steps differ, more steps are timed, with pauses.
    """
    times: list[float] = []
    begin = perf_counter()
    while len(times) < MOST_STEPS and perf_counter() - begin < ENOUGH:
        if len(times) >= STEPS:
            fastest = sorted(times)[:2]
            if fastest[-1] <= ALIKE * fastest[0]:
                break
            sleep(PAUSE)
        before = perf_counter()
        step()
        times.append(perf_counter() - before)
    return min(times)


def _random_batch(task: Task, vocab_size: int, rows: int, length: int, n_labels: int) -> Batch:
    tokens = torch.randint(vocab_size, (rows, length))
    real = torch.ones(rows, length, dtype=torch.bool)
    if task in ("generate", "chat"):
        return TextBatch(tokens.numel(), tokens, tokens, None)
    if task == "translate":
        return PairBatch(tokens.numel(), tokens, real, tokens, tokens)
    if task == "encode":
        targets = tokens.where(torch.rand(rows, length) < MASKED, IGNORED)
        return MaskedBatch(int((targets != IGNORED).sum()), tokens, real, targets)
    return LabelledBatch(rows, tokens, real, torch.randint(n_labels, (rows,)))
