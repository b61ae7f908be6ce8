"""Seeing attention: for a while, the kernel of some layers is one that keeps its weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jaxtyping import Float
from torch import Tensor, nn

from penwright.layers.attention import Attention, attention_weights, plain_attention
from penwright.layers.mask import KernelMask


@contextmanager
def record_attention(module: nn.Module) -> Iterator[Mapping[str, list[Float[Tensor, "batch n_heads targets sources"]]]]:
    """The weights of every attention in the module, by its name there: a matrix for each pass, oldest first.

    Inside, attention is computed step by step instead of by the fused kernel; outputs are equal up to rounding.
    """
    attentions = {name: part for name, part in module.named_modules() if isinstance(part, Attention)}
    kernels = {name: attention.kernel for name, attention in attentions.items()}
    maps: dict[str, list[Tensor]] = {name: [] for name in attentions}
    for name, attention in attentions.items():
        attention.kernel = _Recorder(maps[name])
    try:
        yield maps
    finally:
        for name, attention in attentions.items():
            attention.kernel = kernels[name]


class _Recorder:
    def __init__(self, kept: list[Tensor]):
        self._kept = kept

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, mask: KernelMask, dropout: float) -> Tensor:
        self._kept.append(attention_weights(queries, keys, mask).detach())
        return plain_attention(queries, keys, values, mask, dropout)
