"""A recorder of attention weights."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from jaxtyping import Float
from torch import Tensor, nn

from penwright.model.attention import Kernel, attention_weights, plain_attention, swap_kernels
from penwright.model.mask import KernelMask


@contextmanager
def record_attention(
    module: nn.Module, keep: Callable[[Tensor], Tensor] = Tensor.detach
) -> Iterator[Mapping[str, list[Float[Tensor, "batch n_heads targets sources"]]]]:
    """Record the attention weights of every layer inside the `with` block.

    Yield a list for each layer name, with one matrix per forward pass, oldest first. Attention is computed step by step
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
