"""Loss of a model on held-out text, in nats per token and bits per byte.

Only bits per byte can be compared across tokenizers.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import log, log2
from typing import NamedTuple

import torch

from penwright.data.batches import IGNORED, Batch
from penwright.evaluation.scores import Score
from penwright.losses import summed_loss
from penwright.model import Model, evaluating
from penwright.text import count

# Approximate number of characters in Unicode 17. An unknown token may stand for any of them.
N_UNICODE_CHARACTERS = 160_000


class NegativeLogLikelihood(NamedTuple):
    """The total negative log-likelihood of all targets in nats, and the number of targets."""

    nats: float
    n_targets: int

    @property
    def mean(self) -> float:
        """The mean negative log-likelihood per target, in nats."""
        return self.nats / max(1, self.n_targets)


@torch.inference_mode()
def negative_log_likelihood(
    model: Model, batches: Iterable[Batch], device: torch.device, ignored: int = IGNORED
) -> NegativeLogLikelihood:
    """Return the negative log-likelihood of all batches, in evaluation mode. Targets equal to `ignored` are skipped."""
    nats, n_targets = 0.0, 0
    with evaluating(model):
        for batch in batches:
            counted = batch if ignored == IGNORED else _without(batch, ignored)
            nats += float(summed_loss(model, counted.to(device)))
            n_targets += counted.n_targets
    return NegativeLogLikelihood(nats, n_targets)


def _without(batch: Batch, ignored: int) -> Batch:
    targets = batch.targets.masked_fill(batch.targets == ignored, IGNORED)
    return replace(batch, targets=targets, n_targets=int((targets != IGNORED).sum()))


def text_scores(total: NegativeLogLikelihood, n_bytes: int, n_unknown: int = 0, change: str = "") -> tuple[Score, ...]:
    """Return nats per token and bits per byte of a held-out text with `n_bytes` bytes in UTF-8.

    Bits per byte count all bits needed to restore the text. A character unknown to the tokenizer therefore costs the
    bits of the unknown token, plus the bits that identify the character. What else the tokenizer changes costs nothing,
    so `change`, an example of it, is part of the note.
    """
    bits = total.nats / log(2) + n_unknown * log2(N_UNICODE_CHARACTERS)
    note = f"{n_bytes:,} held-out bytes"
    if n_unknown:
        note += f", with {count(n_unknown, 'unknown character')} at {log2(N_UNICODE_CHARACTERS):.1f} extra bits each"
    if change:
        note += f"; cannot be compared across tokenizers, since this one changes the text: {change}"
    return Score("nats per token", total.mean), Score("bits per byte", bits / max(1, n_bytes), note=note)
