"""The best few of many scores, sooner than torch finds them on a CPU."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 64  # scores that are looked at together
WORTH_IT = 30_000  # scores: among fewer there is nothing to save


class Largest(NamedTuple):
    """The largest values of each row, in order, and where they stand."""

    values: Float[Tensor, "rows n"]
    places: Int[Tensor, "rows n"]


def largest(scores: Float[Tensor, "rows columns"], n: int) -> Largest:
    """The n largest of each row: they stand in the n blocks that have the largest maxima, or behind all blocks.

    torch's topk goes through a row number by number, a maximum by whole vectors: on a CPU this takes less than half
    of its time (benchmarks/LOG.md).
    """
    n_blocks = scores.shape[1] // BLOCK
    if scores.device.type != "cpu" or scores.numel() < WORTH_IT or n_blocks < 2 * n:
        return Largest(*scores.topk(n))
    blocks = scores[:, : n_blocks * BLOCK].unflatten(1, (n_blocks, BLOCK))
    chosen = blocks.amax(-1).topk(n).indices
    columns = torch.arange(BLOCK, device=scores.device)
    places = torch.cat([(chosen[:, :, None] * BLOCK + columns).flatten(1), _rest(scores, n_blocks)], dim=1)
    best = scores.gather(1, places).topk(n)
    return Largest(best.values, places.gather(1, best.indices))


def _rest(scores: Float[Tensor, "rows columns"], n_blocks: int) -> Int[Tensor, "rows rest"]:
    """The places behind the last whole block."""
    return torch.arange(n_blocks * BLOCK, scores.shape[1], device=scores.device).expand(len(scores), -1)
