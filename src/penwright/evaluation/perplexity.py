"""How surprised a model is by held-out text: nats a token, and bits a byte, which compares across tokenizers."""

from collections.abc import Iterable
from dataclasses import replace
from math import log, log2
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penwright.data.batches import IGNORED, Batch
from penwright.evaluation.scores import Score
from penwright.losses import summed_loss
from penwright.model import Model

N_CHARACTERS = 160_000  # of Unicode 17, about, any of which an unknown one may be


class Surprise(NamedTuple):
    """The negative log-probability of all targets together, in nats, and how many they were."""

    nats: float
    n_targets: int

    @property
    def mean(self) -> float:
        return self.nats / max(1, self.n_targets)


@torch.inference_mode()
def surprise(model: Model, batches: Iterable[Batch], device: torch.device, ignored: int = IGNORED) -> Surprise:
    """Over all batches, in evaluation mode; targets equal to `ignored` do not count."""
    was_training = model.training
    model.eval()
    nats, n_targets = 0.0, 0
    for batch in batches:
        counted = batch if ignored == IGNORED else _without(batch, ignored)
        nats += float(summed_loss(model, counted.to(device)))
        n_targets += counted.n_targets
    model.train(was_training)
    return Surprise(nats, n_targets)


def _without(batch: Batch, ignored: int) -> Batch:
    targets = batch.targets.masked_fill(batch.targets == ignored, IGNORED)
    return replace(batch, targets=targets, n_targets=int((targets != IGNORED).sum()))


def text_scores(total: Surprise, n_bytes: int, n_unknown: int = 0) -> tuple[Score, ...]:
    """Nats a token and bits a byte of the held-out text, whose length in UTF-8 is n_bytes.

    The bits are those that would bring the text back: a character that the tokenizer does not know costs, beside its
    token, those that say which it is.
    """
    bits = total.nats / log(2) + n_unknown * log2(N_CHARACTERS)
    note = f"{n_bytes:,} bytes held out"
    if n_unknown:
        note += f", {n_unknown:,} unknown characters among them, for {log2(N_CHARACTERS):.1f} bits more each"
    return Score("nats per token", total.mean), Score("bits per byte", bits / max(1, n_bytes), note=note)


def baselines(training: NDArray[np.integer], held_out: NDArray[np.integer], vocab_size: int) -> dict[str, float]:
    """Nats a token of predicting by frequency alone (unigram), and by the token before (bigram).

    Both are smoothed so that nothing has probability zero: the unigram by adding one, the bigram by Witten and Bell
    (1991), which trusts a context less the more different tokens have followed it. Of a single token neither is told.
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
    pairs, pair_counts = np.append(pairs, -1), np.append(pair_counts, 0)  # where there is none, that
    place = np.searchsorted(pairs[:-1], wanted)
    together = np.where(pairs[place] == wanted, pair_counts[place], 0)
    bigram = (together + kinds * unigram[after]) / np.maximum(seen + kinds, 1)
    bigram = np.where(seen == 0, unigram[after], bigram)
    return {"unigram": float(-np.log(unigram[after]).mean()), "bigram": float(-np.log(bigram).mean())}
