"""Further attention kernels: one that records attention weights, and the one for compiled decoding steps."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from penwright.model.attention import Kernel, KernelMask, attention_weights, plain_attention, repeat_kv, swap_kernels
from penwright.native.toolchain import SOURCES

SOURCE = SOURCES / "stepping_attention.cpp"
COMPILES = torch.cpu._is_avx512_supported()  # the C++ operator needs AVX-512


@contextmanager
def record_attention(
    module: nn.Module, keep: Callable[[Tensor], Tensor] = Tensor.detach
) -> Iterator[Mapping[str, list[Float[Tensor, "batch n_heads targets sources"]]]]:
    """Record the attention weights of every layer inside the `with` block.

    Yield a list for each layer name, with one matrix per forward pass, oldest first. Attention is computed explicitly
    instead of by the fused kernel; outputs are equal up to rounding. `keep` converts each matrix before it is stored,
    for example to a smaller dtype.
    """
    maps: dict[str, list[Tensor]] = {}

    def recorder(name: str, kernel: Kernel) -> Kernel:
        kept = maps[name] = []

        def record(queries: Tensor, keys: Tensor, values: Tensor, mask: KernelMask, dropout: float) -> Tensor:
            kept.append(keep(attention_weights(queries, keys, mask)))
            return plain_attention(queries, keys, values, mask, dropout)

        return record

    with swap_kernels(module, recorder):
        yield maps


def stepping_attention(origins: Int[Tensor, "batch sources"] | None = None) -> Kernel:
    """Return the kernel for a cache; `origins` is the index of the row that stores each token (None: its own)."""

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: KernelMask, dropout: float) -> Tensor:
        allowed = None if mask.allowed is None else mask.allowed.contiguous()
        inputs = (queries.float().contiguous(), keys.contiguous(), values.contiguous(), allowed, origins)
        return (torch.ops.penwright.stepping_attention if COMPILES else _attend)(*inputs).to(queries.dtype)

    return attend


def _attend(
    queries: Float[Tensor, "batch n_heads targets d_head"],
    keys: Float[Tensor, "rows n_kv_heads sources d_head"],
    values: Float[Tensor, "rows n_kv_heads sources d_head"],
    allowed: torch.Tensor | None,
    origins: torch.Tensor | None,
) -> Float[Tensor, "batch n_heads targets d_head"]:
    """Compute attention in float32 with sums that the compiler fuses into two loops."""
    if origins is not None:
        positions = torch.arange(origins.shape[1], device=origins.device)
        keys, values = (x[origins, :, positions].transpose(1, 2) for x in (keys, values))
    keys, values = (repeat_kv(x, queries)[:, :, None].float() for x in (keys, values))
    scores = (queries[:, :, :, None] * keys).sum(-1) * queries.shape[-1] ** -0.5
    scores = scores if allowed is None else scores.masked_fill(~allowed, -inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    sums = (weights[..., None] * values).sum(3)
    return sums / weights.sum(-1, keepdim=True)  # normalize the sums, not the weights: fewer divisions


@torch.library.custom_op("penwright::stepping_attention", mutates_args=())
def _stepping_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    allowed: torch.Tensor | None,
    origins: torch.Tensor | None,
) -> torch.Tensor:
    """Compute the same result as stepping_attention.cpp, in PyTorch."""
    return _attend(queries, keys, values, allowed, origins)


@_stepping_attention.register_fake
def _(queries: torch.Tensor, *_: torch.Tensor | None) -> torch.Tensor:
    return torch.empty_like(queries)
