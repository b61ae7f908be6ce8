"""The best few of many scores, sooner than torch finds them on a CPU."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from penwright.decoding.sampling.filters import NEVER
from penwright.decoding.sampling.utf8 import Situations, Utf8Rules
from penwright.native.toolchain import SOURCES

MOST = 8  # that the compiled operator finds
SOURCE = SOURCES / "likeliest.cpp"
COMPILES = torch.cpu._is_avx512_supported()  # else it is of no use
BLOCK = 64  # scores that are looked at together
WORTH_IT = 30_000  # scores: among fewer there is nothing to save


class TopK(NamedTuple):
    """The largest values of each row, in order, and where they stand."""

    values: Float[Tensor, "rows n"]
    places: Int[Tensor, "rows n"]


def largest(scores: Float[Tensor, "rows columns"], n: int) -> TopK:
    """The n largest of each row: they stand in the n blocks that have the largest maxima, or behind all blocks.

    torch's topk goes through a row number by number, a maximum by whole vectors: on a CPU this takes less than half
    of its time (benchmarks/LOG.md).
    """
    n_blocks = scores.shape[1] // BLOCK
    if scores.device.type != "cpu" or scores.numel() < WORTH_IT or n_blocks < 2 * n:
        return TopK(*scores.topk(n))
    blocks = scores[:, : n_blocks * BLOCK].unflatten(1, (n_blocks, BLOCK))
    chosen = blocks.amax(-1).topk(n).indices
    columns = torch.arange(BLOCK, device=scores.device)
    places = torch.cat([(chosen[:, :, None] * BLOCK + columns).flatten(1), _rest(scores, n_blocks)], dim=1)
    best = scores.gather(1, places).topk(n)
    return TopK(best.values, places.gather(1, best.indices))


def _rest(scores: Float[Tensor, "rows columns"], n_blocks: int) -> Int[Tensor, "rows rest"]:
    """The places behind the last whole block."""
    return torch.arange(n_blocks * BLOCK, scores.shape[1], device=scores.device).expand(len(scores), -1)


class MaskedTopK(NamedTuple):
    """The likeliest tokens of each row, in order, and what makes log-probabilities of their logits."""

    values: Float[Tensor, "rows n"]
    places: Int[Tensor, "rows n"]
    normalisers: Float[Tensor, " rows"]  # to subtract: the log of the sum of the exponentials of all logits


Choose = Callable[[Tensor, Utf8Rules, Situations, int], MaskedTopK]  # as likeliest() is


def likeliest(
    logits: Float[Tensor, "rows vocab_size"], spelling: Utf8Rules, situations: Int64[np.ndarray, " rows"], n: int
) -> MaskedTopK:
    """The n likeliest tokens that may come; the others lose their logits here. Normalisers are of all tokens."""
    normalisers = logits.logsumexp(-1)
    spelling.forbid(logits, situations)
    return MaskedTopK(*largest(logits, n), normalisers)


class Choosing(NamedTuple):
    """How the next tokens of a search are found."""

    spelling: Utf8Rules  # which may come after which
    choose: Choose = likeliest


def may_come(
    allowed: Int64[Tensor, "all_situations words"], situations: Int64[Tensor, " rows"], vocab_size: int
) -> Bool[Tensor, "rows vocab_size"]:
    """The bits of a Spelling for the situation of each row, as Booleans."""
    bits = np.unpackbits(allowed.numpy().view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    return torch.from_numpy(bits).bool()[situations]


@torch.library.custom_op("penwright::likeliest", mutates_args=())
def _likeliest(
    logits: torch.Tensor, allowed: torch.Tensor, situations: torch.Tensor, n_best: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What likeliest.cpp does, as torch does it; `allowed` are a Spelling's bits."""
    best = largest(logits.masked_fill(~may_come(allowed, situations, logits.shape[1]), NEVER), n_best)
    return best.values, best.places, logits.logsumexp(-1)


@_likeliest.register_fake
def _(
    logits: torch.Tensor, allowed: torch.Tensor, situations: torch.Tensor, n_best: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = logits.shape[0]
    return logits.new_empty(rows, n_best), allowed.new_empty(rows, n_best), logits.new_empty(rows)
