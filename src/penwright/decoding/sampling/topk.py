"""Top-k of many scores, faster on a CPU than torch.topk."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from penwright.decoding.sampling.logits_process import NEG_INF
from penwright.decoding.sampling.utf8 import Situations, Utf8Rules
from penwright.native.toolchain import SOURCES

MAX_K = 8  # number of tokens per row that the compiled operator returns
SOURCE = SOURCES / "masked_topk.cpp"
COMPILES = torch.cpu._is_avx512_supported()  # without AVX-512, the compiled operator is not faster
BLOCK = 64  # number of scores per block
WORTH_IT = 30_000  # minimum number of scores for which dividing rows into blocks is faster


class TopK(NamedTuple):
    """The largest values of each row, largest first, and their indices."""

    values: Float[Tensor, "rows n"]
    indices: Int[Tensor, "rows n"]


def topk(scores: Float[Tensor, "rows columns"], n: int) -> TopK:
    """Return the n largest scores of each row.

    Each row is divided into blocks. Its n largest scores are in the n blocks with the largest maxima, or among the
    scores after the last full block. Finding maxima uses vector instructions, while torch.topk compares numbers one
    by one, which takes over twice as long on a CPU (benchmarks/LOG.md).
    """
    n_blocks = scores.shape[1] // BLOCK
    if scores.device.type != "cpu" and n == 1:
        return TopK(*scores.max(-1, keepdim=True))  # one kernel instead of many
    if scores.device.type != "cpu" or scores.numel() < WORTH_IT or n_blocks < 2 * n:
        return TopK(*scores.topk(n))
    blocks = scores[:, : n_blocks * BLOCK].unflatten(1, (n_blocks, BLOCK))
    chosen = blocks.amax(-1).topk(n).indices
    columns = torch.arange(BLOCK, device=scores.device)
    indices = torch.cat([(chosen[:, :, None] * BLOCK + columns).flatten(1), _after_blocks(scores, n_blocks)], dim=1)
    best = scores.gather(1, indices).topk(n)
    return TopK(best.values, indices.gather(1, best.indices))


def _after_blocks(scores: Float[Tensor, "rows columns"], n_blocks: int) -> Int[Tensor, "rows rest"]:
    """Return the indices of the scores after the last full block."""
    return torch.arange(n_blocks * BLOCK, scores.shape[1], device=scores.device).expand(len(scores), -1)


class MaskedTopK(NamedTuple):
    """The likeliest allowed tokens of each row with their logits, best first, and the logsumexp of each row."""

    values: Float[Tensor, "rows n"]
    indices: Int[Tensor, "rows n"]
    logsumexp: Float[Tensor, " rows"]  # the logsumexp of all logits; subtract it to get log-probabilities


Choose = Callable[[Tensor, Utf8Rules, Situations, int], MaskedTopK]  # a function with the signature of masked_topk()


def masked_topk(
    logits: Float[Tensor, "rows vocab_size"], utf8_rules: Utf8Rules, situations: Int64[np.ndarray, " rows"], n: int
) -> MaskedTopK:
    """Return the n most likely allowed tokens, and mask forbidden logits in place.

    The logsumexp of each row is returned too. It covers the whole vocabulary, forbidden tokens included.
    """
    if logits.device.type == "cpu":
        logsumexp = logits.logsumexp(-1)
        utf8_rules.forbid(logits, situations)
        return MaskedTopK(*topk(logits, n), logsumexp)
    log_probs = logits.log_softmax(-1)  # a single kernel on a GPU, while logsumexp takes eight
    utf8_rules.forbid(logits, situations)
    best = topk(logits, n)
    return MaskedTopK(*best, best.values[:, 0] - log_probs.gather(1, best.indices[:, :1])[:, 0])


def _keep_all(rows: Sequence[int]) -> None:
    """Do nothing: the likeliest tokens do not depend on earlier steps."""


class TokenSelector(NamedTuple):
    """The UTF-8 rules and the function that a search uses to select the next tokens."""

    utf8_rules: Utf8Rules  # the tokens that keep the UTF-8 valid
    choose: Choose = masked_topk
    select: Callable[[Sequence[int]], None] = _keep_all  # called with the indices of the unfinished sentences


def may_come(
    allowed: Int64[Tensor, "all_situations words"], situations: Int64[Tensor, " rows"], vocab_size: int
) -> Bool[Tensor, "rows vocab_size"]:
    """Return a Boolean mask of the tokens allowed in each row; `situations` selects the bit mask for each row."""
    bits = np.unpackbits(allowed.numpy().view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    return torch.from_numpy(bits).bool()[situations]


@torch.library.custom_op("penwright::masked_topk", mutates_args=())
def _masked_topk(
    logits: torch.Tensor, allowed: torch.Tensor, situations: torch.Tensor, n_best: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the same tokens as the C++ operator; `situations` selects the bit mask in `allowed` for each row."""
    best = topk(logits.masked_fill(~may_come(allowed, situations, logits.shape[1]), NEG_INF), n_best)
    return best.values, best.indices, logits.logsumexp(-1)


@_masked_topk.register_fake
def _(
    logits: torch.Tensor, allowed: torch.Tensor, situations: torch.Tensor, n_best: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = logits.shape[0]
    return logits.new_empty(rows, n_best), allowed.new_empty(rows, n_best), logits.new_empty(rows)
