"""An estimate of training on GPUs that this machine does not have.

A step takes as long as its computation or its communication, whichever is longer, because they overlap:

- computation: 3 * FLOPs of a forward pass * tokens / (GPUs * peak FLOP/s * utilization), where
  utilization = UTILIZATION * d_model / (d_model + HALF_WIDTH), since narrow models keep a GPU less busy;
- DDP sends and receives 8 bytes per parameter and step; FSDP2 8 bytes per parameter and batch (weights twice in
  bfloat16, gradients once in float32), each times (GPUs - 1) / GPUs;
- memory: 16 bytes per parameter (float32 weight, gradient and two moments), which FSDP2 divides among the GPUs, plus
  the activations of the tokens of one GPU in bfloat16.

The two constants of the utilization were fitted to figures that nanoGPT, nanochat and torchtitan published, and to two
that were measured on one H100. The estimate differs from each by at most 20 % (tests/training/test_cluster.py).
"""

from typing import NamedTuple

from penwright.config import Recipe
from penwright.model.size import ADAMW_BYTES, Size
from penwright.training.distributed.parallel import SHARDED_TASKS, Parallelism, choose_parallelism

UTILIZATION, HALF_WIDTH = 0.48, 300.0
GPUS_PER_HOST = 8
TOKENS_PER_PARAMETER = 20  # training tokens per parameter for the best model of a given cost (Hoffmann et al. 2022)
NETWORK = 50e9  # bytes per second between hosts for each GPU (400 Gb/s)
FEW_TOKENS = 8192  # with fewer tokens per batch on each GPU, the estimated throughput is too high


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
    tokens_per_gpu: float  # number of tokens of a batch that each GPU processes
    fits: bool  # whether a GPU has enough memory

    @property
    def is_underused(self) -> bool:
        """Whether the batch is too small to keep the GPUs busy. The estimated throughput is then too high."""
        return self.tokens_per_gpu < FEW_TOKENS


def estimate_cluster(recipe: Recipe, size: Size, n_gpus: int, gpu: Gpu) -> ClusterEstimate:
    """Estimate memory and throughput of training on several GPUs. `size` must be computed for this recipe."""
    training = recipe.training
    states = float(ADAMW_BYTES * size.parameters)
    activations = (size.training_bytes - states) / 2 / n_gpus  # activations in bfloat16 need half the memory of float32
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
