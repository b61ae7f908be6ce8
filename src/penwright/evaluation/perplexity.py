"""Loss of a model on held-out text, in nats per token and bits per byte.

Only bits per byte can be compared across tokenizers.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import log, log2
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penwright.data.batches import IGNORED, Batch
from penwright.data.report import count
from penwright.evaluation.scores import Score
from penwright.losses import summed_loss
from penwright.model import Model

N_UNICODE_CHARACTERS = 160_000  # approximate number of characters in Unicode 17: any of them may be unknown


class NegativeLogLikelihood(NamedTuple):
    """The total negative log-likelihood of all targets in nats, and the number of targets."""

    nats: float
    n_targets: int

    @property
    def mean(self) -> float:
        """The mean negative log-likelihood, in nats per target."""
        return self.nats / max(1, self.n_targets)


@torch.inference_mode()
def negative_log_likelihood(
    model: Model, batches: Iterable[Batch], device: torch.device, ignored: int = IGNORED
) -> NegativeLogLikelihood:
    """Return the negative log-likelihood of all batches, in evaluation mode. Targets equal to `ignored` are skipped."""
    was_training = model.training
    model.eval()
    nats, n_targets = 0.0, 0
    for batch in batches:
        counted = batch if ignored == IGNORED else _without(batch, ignored)
        nats += float(summed_loss(model, counted.to(device)))
        n_targets += counted.n_targets
    model.train(was_training)
    return NegativeLogLikelihood(nats, n_targets)


def _without(batch: Batch, ignored: int) -> Batch:
    targets = batch.targets.masked_fill(batch.targets == ignored, IGNORED)
    return replace(batch, targets=targets, n_targets=int((targets != IGNORED).sum()))


def text_scores(total: NegativeLogLikelihood, n_bytes: int, n_unknown: int = 0) -> tuple[Score, ...]:
    """Return nats per token and bits per byte of a held-out text with `n_bytes` bytes in UTF-8.

    Bits per byte count all bits needed to restore the text. A character unknown to the tokenizer therefore costs the
    bits of the unknown token, plus the bits that identify the character.
    """
    bits = total.nats / log(2) + n_unknown * log2(N_UNICODE_CHARACTERS)
    note = f"{n_bytes:,} held-out bytes"
    if n_unknown:
        note += f", with {count(n_unknown, 'unknown character')} at {log2(N_UNICODE_CHARACTERS):.1f} extra bits each"
    return Score("nats per token", total.mean), Score("bits per byte", bits / max(1, n_bytes), note=note)


def ngram_baselines(training: NDArray[np.integer], held_out: NDArray[np.integer], vocab_size: int) -> dict[str, float]:
    """Return the nats per token of a unigram and a bigram model.

    Smoothing gives every token a positive probability. The unigram model uses add-one smoothing. The bigram model uses
    Witten-Bell smoothing (1991): the more distinct tokens have followed a context, the less the context counts. The
    result is empty for fewer than two held-out tokens.
    """
    if len(held_out) < 2:
        return {}
    counts = np.bincount(training, minlength=vocab_size).astype(np.float64) + 1
    unigram = counts / counts.sum()
    before, after = held_out[:-1].astype(np.int64), held_out[1:].astype(np.int64)
    pairs, pair_counts = np.unique(training[:-1].astype(np.int64) * vocab_size + training[1:], return_counts=True)
    seen = np.bincount(pairs // vocab_size, weights=pair_counts, minlength=vocab_size)[before]
    kinds = np.bincount(pairs // vocab_size, minlength=vocab_size)[before]
    wanted = before * vocab_size + after
    pairs, pair_counts = np.append(pairs, -1), np.append(pair_counts, 0)  # a sentinel for pairs that would sort last
    place = np.searchsorted(pairs[:-1], wanted)
    together = np.where(pairs[place] == wanted, pair_counts[place], 0)
    bigram = (together + kinds * unigram[after]) / np.maximum(seen + kinds, 1)
    bigram = np.where(seen == 0, unigram[after], bigram)
    return {"unigram": float(-np.log(unigram[after]).mean()), "bigram": float(-np.log(bigram).mean())}
