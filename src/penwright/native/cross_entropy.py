"""Cross-entropy of logits with its gradient, and the number of targets per chunk."""

from collections.abc import Callable
from functools import cache
from math import ceil
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

# Logits per chunk, and minimum number of targets per chunk. On a CPU, chunks fit in the cache, unless the vocabulary is
# large: with fewer targets, reading the output matrix takes longer than multiplying by it (benchmarks/LOG.md).
CHUNK, FEWEST_TARGETS = {"cpu": 2**21, "mps": 2**27}, 128
# On an NVIDIA GPU, the share of the memory that a chunk may use, and the bytes per logit if compiled or not: compiled
# code stores only logits and gradients.
GPU_SHARE, GPU_BYTES = 1 / 32, {True: 4, False: 12}
GPU_TILE = 128  # chunks on a GPU are multiples of this number of targets, a size of the tiles of matrix products
MOST_LOGITS = 2**30  # maximum number of logits per chunk, so that 32-bit indices suffice

CrossEntropy = Callable[..., tuple[Tensor, Tensor]]


def targets_per_chunk(hidden: Float[Tensor, "targets d_model"], vocab_size: int, *, compiled: bool) -> int:
    """Return the number of targets per chunk. On an NVIDIA GPU, the chunks are about equal and fill whole tiles."""
    device, n_targets = hidden.device, len(hidden)
    if device.type != "cuda":
        return max(FEWEST_TARGETS, CHUNK.get(device.type, CHUNK["mps"]) // vocab_size)
    memory = torch.cuda.get_device_properties(device).total_memory
    most = max(FEWEST_TARGETS, min(MOST_LOGITS, int(GPU_SHARE * memory / GPU_BYTES[compiled])) // vocab_size)
    n_chunks = max(1, ceil(n_targets / most))
    return max(1, ceil(n_targets / n_chunks / GPU_TILE)) * GPU_TILE


def cross_entropy(
    logits: Float[Tensor, "targets vocab_size"],
    bias: Float[Tensor, " vocab_size"] | None,
    targets: Int[Tensor, " targets"],
    smoothing: float,
    soft_targets: Float[Tensor, "targets vocab_size"] | None = None,
    weight: float = 0.0,
) -> tuple[Float[Tensor, " targets"], Float[Tensor, "targets vocab_size"]]:
    """Return the loss of each row, and the gradient in the dtype of the logits.

    `weight` is the share of `soft_targets` in the target distribution.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))  # bfloat16 is too coarse for sums
    log_probs = F.log_softmax(wide if bias is None else wide + bias, -1)
    index = targets.clamp(min=0)[:, None]  # ignored targets may have any valid index: their rows are masked out
    losses = (smoothing - 1) * log_probs.gather(1, index)
    if smoothing:
        losses -= smoothing * log_probs.mean(-1, keepdim=True)
    if soft_targets is not None:  # the loss is linear in the targets, so the two losses can be mixed
        losses = losses.lerp(-(soft_targets * log_probs).sum(-1, keepdim=True), weight)
    gradient = log_probs.exp_()
    if smoothing:
        gradient.sub_((1 - weight) * smoothing / logits.shape[-1])
    gradient.scatter_add_(1, index, torch.full_like(losses, (1 - weight) * (smoothing - 1)))
    if soft_targets is not None:
        gradient.sub_(soft_targets, alpha=weight)
    return losses[:, 0], gradient.to(logits.dtype)


@cache
def compiled_cross_entropy() -> CrossEntropy:
    """Return a compiled `cross_entropy_to_fuse`. It is compiled once for any number of targets."""
    compiled: CrossEntropy = torch.compile(cross_entropy_to_fuse)

    def run(
        logits: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, *soft: Any
    ) -> tuple[Tensor, Tensor]:
        for each in (logits, targets, *soft[:1]):
            torch._dynamo.maybe_mark_dynamic(each, 0)
        return compiled(logits, bias, targets, smoothing, *soft)

    return run


def cross_entropy_to_fuse(
    logits: Float[Tensor, "targets vocab_size"],
    bias: Float[Tensor, " vocab_size"] | None,
    targets: Int[Tensor, " targets"],
    smoothing: float,
    soft_targets: Float[Tensor, "targets vocab_size"] | None = None,
    weight: float = 0.0,
) -> tuple[Float[Tensor, " targets"], Float[Tensor, "targets vocab_size"]]:
    """Compute `cross_entropy` in a form that torch.compile can fuse into one or two kernels.

    The kernel reads the logits twice and writes the gradient. Scattering would need the gradient in memory first.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    index = targets.clamp(min=0)[:, None]
    of_target = logits.gather(1, index).to(wide.dtype)
    if bias is not None:
        wide, of_target = wide + bias, of_target + bias[index]
    largest = wide.amax(-1, keepdim=True)  # from here to `total`, the form that torch.compile computes in one pass
    exponentials = (wide - largest).exp()
    total = exponentials.sum(-1, keepdim=True)
    log_total = largest + total.log()
    losses = (1 - smoothing) * (log_total - of_target)
    if smoothing:
        losses = losses - smoothing * (wide.mean(-1, keepdim=True) - log_total)
    if soft_targets is not None:
        soft_losses = (soft_targets * (log_total - wide)).sum(-1, keepdim=True)
        losses = losses * (1 - weight) + soft_losses * weight
    is_target = torch.arange(logits.shape[-1], device=logits.device) == index
    gradient = exponentials / total - torch.where(is_target, (1 - weight) * (1 - smoothing), 0.0)
    if smoothing:
        gradient = gradient - (1 - weight) * smoothing / logits.shape[-1]
    if soft_targets is not None:
        gradient = gradient - soft_targets * weight
    return losses[:, 0], gradient.to(logits.dtype)
