"""Token dropout: training texts of a classifier lose random tokens, so that no single word decides."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from penwright.data.batches import LENGTH_STEP, LabelledBatch

MOST_HIDDEN = 0.9  # highest share of hidden tokens in a text, unless the mean itself is higher


@dataclass(frozen=True)
class TokenDropout:
    """Token dropout with a random share for each text (word dropout, Iyyer et al. 2015).

    The shares spread as widely around `mean` as possible, because the trained model reads whole texts. Hidden tokens
    are removed, not masked, which saves their computation. The first word is never hidden: a text with only its start
    token would teach nothing.
    """

    mean: float  # average share of hidden tokens, from 0 to 1
    keeps_start: bool = False  # for classifiers that read only the start token

    @property
    def _never_hidden(self) -> slice:
        """The positions that are never hidden."""
        return slice(0 if self.keeps_start else 1, 2)

    def draw_lengths(self, lengths: NDArray[np.int64], random: Generator) -> NDArray[np.int64]:
        """Draw the number of tokens to show of each text. `lengths` includes the start and end tokens."""
        spread = min(self.mean, max(0.0, MOST_HIDDEN - self.mean))
        shares = random.uniform(self.mean - spread, self.mean + spread, len(lengths))
        always = self._never_hidden.stop - self._never_hidden.start
        return always + random.binomial(lengths - always, 1 - shares)

    def shown(self, batch: LabelledBatch, numbers: NDArray[np.int64], random: Generator) -> LabelledBatch:
        """Return the batch with only `numbers[i]` random tokens of text i, in order and with their positions."""
        whole = batch.tokens.shape[1]
        keys = np.where(batch.padding.numpy(), random.random(batch.tokens.shape), 2.0)  # the smallest are kept
        keys[:, self._never_hidden] = -1.0
        width = min(whole, -(-int(numbers.max()) // LENGTH_STEP) * LENGTH_STEP)
        drawn = keys.argsort(1)[:, :width]
        places = np.sort(np.where(np.arange(width) < numbers[:, None], drawn, whole), 1)  # `whole` stands for padding
        padding = torch.from_numpy(places < whole)
        positions = torch.from_numpy(np.minimum(places, whole - 1))
        tokens = batch.tokens.gather(1, positions)
        return LabelledBatch(batch.n_targets, tokens, padding, batch.targets, positions)
