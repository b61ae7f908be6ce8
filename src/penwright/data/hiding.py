"""Token dropout: what a classifier that learns is shown of its texts, so that no single word decides."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from penwright.data.batches import LENGTH_STEP, LabelledBatch

MOST_HIDDEN = 0.9  # of a text's tokens, unless the mean itself is above


@dataclass(frozen=True)
class TokenDropout:
    """Hides tokens of texts, each text another share of them (Iyyer et al. 2015, word dropout).

    The shares are spread as widely around their mean as they can be, since what is read later is whole. What is hidden
    is left out, so that a step takes no longer than what is shown is worth. The first word is never hidden: a text of
    which only the start token is left would teach nothing.
    """

    mean: float  # share that is hidden, from 0 to 1
    keeps_start: bool = False  # where a classifier reads the first token alone

    @property
    def _always(self) -> slice:
        """The places in a text that are always shown."""
        return slice(0 if self.keeps_start else 1, 2)

    def numbers_shown(self, lengths: NDArray[np.int64], random: Generator) -> NDArray[np.int64]:
        """How many tokens are shown of each text of so many, start and end tokens counted."""
        spread = min(self.mean, max(0.0, MOST_HIDDEN - self.mean))
        shares = random.uniform(self.mean - spread, self.mean + spread, len(lengths))
        always = self._always.stop - self._always.start
        return always + random.binomial(lengths - always, 1 - shares)

    def shown(self, batch: LabelledBatch, numbers: NDArray[np.int64], random: Generator) -> LabelledBatch:
        """So many tokens of each text, drawn by chance, in their order and with their positions."""
        whole = batch.tokens.shape[1]
        keys = np.where(batch.padding.numpy(), random.random(batch.tokens.shape), 2.0)  # the smallest are drawn
        keys[:, self._always] = -1.0
        width = min(whole, -(-int(numbers.max()) // LENGTH_STEP) * LENGTH_STEP)
        drawn = keys.argsort(1)[:, :width]
        places = np.sort(np.where(np.arange(width) < numbers[:, None], drawn, whole), 1)  # nothing is at the last ones
        padding = torch.from_numpy(places < whole)
        positions = torch.from_numpy(np.minimum(places, whole - 1))
        tokens = batch.tokens.gather(1, positions)
        return LabelledBatch(batch.n_targets, tokens, padding, batch.targets, positions)
