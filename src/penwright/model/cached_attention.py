"""The attention kernel of compiled decoding steps, in which a few targets attend to a cache."""

from math import inf

import torch
from jaxtyping import Float, Int
from torch import Tensor

from penwright.model.attention import Kernel, repeat_kv
from penwright.model.mask import KernelMask
from penwright.native.toolchain import SOURCES

SOURCE = SOURCES / "stepping_attention.cpp"
COMPILES = torch.cpu._is_avx512_supported()  # the C++ operator needs AVX-512


def stepping_attention(origins: Int[Tensor, "batch sources"] | None = None) -> Kernel:
    """Return the kernel for a cache; `origins` holds the row that stores each source (None: the same row)."""

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
        places = torch.arange(origins.shape[1], device=origins.device)
        keys, values = (x[origins, :, places].transpose(1, 2) for x in (keys, values))
    keys, values = (repeat_kv(x, queries)[:, :, None].float() for x in (keys, values))
    scores = (queries[:, :, :, None] * keys).sum(-1) * queries.shape[-1] ** -0.5
    scores = scores if allowed is None else scores.masked_fill(~allowed, -inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    sums = (weights[..., None] * values).sum(3)
    return sums / weights.sum(-1, keepdim=True)  # divide once per output, not once per source


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
