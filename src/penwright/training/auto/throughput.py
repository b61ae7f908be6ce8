"""The throughput of training: measured on this machine, or estimated for GPUs that it does not have.

On GPUs, a step takes as long as its computation or its communication, whichever is longer, because they overlap:

- computation: 3 * FLOPs of a forward pass * tokens / (GPUs * peak FLOP/s * utilization), where
  utilization = UTILIZATION * d_model / (d_model + HALF_WIDTH), since narrow models keep a GPU less busy;
- DDP sends and receives 8 bytes per parameter and step; FSDP2 8 bytes per parameter and batch (weights twice in
  bfloat16, gradients once in float32), each times (GPUs - 1) / GPUs;
- memory: 16 bytes per parameter (float32 weight, gradient and two moments), which FSDP2 divides among the GPUs, plus
  the activations of the tokens of one GPU in bfloat16.

The two constants of the utilization were fitted to figures that nanoGPT, nanochat and torchtitan published. All of
these differ from the estimate by less than a quarter (tests/training/test_cluster.py).
"""

from collections.abc import Callable
from time import perf_counter, sleep
from typing import NamedTuple

import torch

from penwright.config import AdamW, LoraSettings, ModelSettings, Muon, Recipe, Task
from penwright.data.batches import IGNORED, Batch, LabelledBatch, MaskedBatch, PairBatch, TextBatch
from penwright.data.masking import MASKED
from penwright.devices import give_back_memory
from penwright.losses import summed_loss
from penwright.model import make_model
from penwright.model.size import ACTIVATIONS_PER_LAYER, ADAMW_BYTES, Size
from penwright.training.auto.machine import Machine
from penwright.training.distributed.parallel import SHARDED_TASKS, Parallelism, choose_parallelism
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
UTILIZATION, HALF_WIDTH = 0.54, 600.0
GPUS_PER_HOST = 8
TOKENS_PER_PARAMETER = 20  # training tokens per parameter for the best model of a given cost (Hoffmann et al. 2022)
NETWORK = 50e9  # bytes per second between hosts for each GPU (400 Gb/s)
FEW_TOKENS = 8192  # with fewer tokens per batch on each GPU, the estimated throughput is too high


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
        shown = max(1, round(length * (1 - settings.token_dropout)))  # tokens that a classifier drops cost no time
        batch = _random_batch(task, vocab_size, rows, shown, n_labels).to(machine.device)

        def step() -> None:
            with torch.autocast(machine.device.type, machine.precision, enabled=machine.precision != torch.float32):
                loss = summed_loss(model, batch)
            loss.backward()
            optimizers.step(0.0)
            float(loss.detach())  # reading the loss waits for the device

        if machine.device.type != "cpu":
            step()  # the first step loads GPU libraries, which takes seconds
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


class Gpu(NamedTuple):
    """The specifications of a GPU."""

    memory: float  # bytes
    flops: float  # FLOP per second for dense matrix products in bfloat16
    bandwidth: float  # bytes per second to the other GPUs of the host, in each direction


GPUS = {
    "a100": Gpu(80e9, 312e12, 300e9),
    "h100": Gpu(80e9, 989e12, 450e9),
    "h200": Gpu(141e9, 989e12, 450e9),
    "b200": Gpu(180e9, 2250e12, 900e9),
    "l40s": Gpu(48e9, 362e12, 32e9),
    "rtx4090": Gpu(24e9, 165e12, 32e9),
}


class ClusterEstimate(NamedTuple):
    """An estimate of training on several GPUs."""

    parallelism: Parallelism
    reason: str
    bytes_per_gpu: float
    tokens_per_second: float
    tokens_per_gpu: float  # tokens per batch on each GPU
    fits: bool  # whether a GPU has enough memory

    @property
    def is_underused(self) -> bool:
        """Whether the batch is too small to keep the GPUs busy. The estimated throughput is then too high."""
        return self.tokens_per_gpu < FEW_TOKENS


def estimate_cluster(recipe: Recipe, size: Size, n_gpus: int, gpu: Gpu) -> ClusterEstimate:
    """Estimate memory and throughput of training on several GPUs. `size` must be computed for the recipe's batch."""
    training = recipe.training
    states = float(ADAMW_BYTES * size.parameters)
    activations = (size.training_bytes - states) / 2 / n_gpus  # bfloat16 halves the memory of the float32 activations
    if training.activation_checkpointing:  # keeps the input of each block, and all activations of one block
        activations *= 1 / ACTIVATIONS_PER_LAYER + 1 / recipe.model.n_layers
    can_shard = recipe.task in SHARDED_TASKS and recipe.lora is None
    parallelism, reason = choose_parallelism(states + activations, gpu.memory, can_shard=can_shard)
    if training.parallelism != "auto":
        parallelism, reason = training.parallelism, "as requested"
    share = (n_gpus - 1) / n_gpus
    bandwidth = gpu.bandwidth if n_gpus <= GPUS_PER_HOST else min(gpu.bandwidth, NETWORK)
    n_exchanges = training.accumulate if parallelism == "fsdp" else 1
    communication = n_exchanges * 8 * size.parameters * share / bandwidth
    width = recipe.model.d_model
    flops = gpu.flops * UTILIZATION * width / (width + HALF_WIDTH)
    tokens = training.batch_tokens * training.accumulate
    again = 4 / 3 if training.activation_checkpointing else 1.0  # activation checkpointing adds a second forward pass
    computation = 3 * again * size.flops_per_token * tokens / (n_gpus * flops)
    kept = states / n_gpus if parallelism == "fsdp" else states
    needed, speed = kept + activations, tokens / max(computation, communication)
    return ClusterEstimate(parallelism, reason, needed, speed, tokens / n_gpus, needed <= gpu.memory)
