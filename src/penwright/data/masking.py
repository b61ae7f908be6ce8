"""Batches of texts with masked tokens, for masked language modelling (Devlin et al. 2019)."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from penwright.data.batches import IGNORED, Batches, Indices, LabelledBatch, MaskedBatch
from penwright.data.bucketing import LabelledBatches

MASKED = 0.2  # share of the tokens that are targets
REPLACED = 0.8  # share of the targets that are replaced by the mask token; half of the rest become random tokens
MOST_CHARACTERS = 400  # maximum length, in characters, of a passage that consists of several lines


def passages(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the passages of a document: lines joined up to MOST_CHARACTERS characters. A blank line ends a passage."""
    passage, unfinished = "", ""
    for chunk in chunks:
        *lines, unfinished = (unfinished + chunk).split("\n")
        for line in lines:
            if passage and (not line.strip() or len(passage) + len(line) >= MOST_CHARACTERS):
                yield passage
                passage = ""
            if line.strip():
                passage = f"{passage}\n{line}" if passage else line
    yield from filter(str.strip, [passage, unfinished])


class MaskedBatches(Batches[MaskedBatch]):
    """Batches of texts in which a random share of the tokens is masked. Each epoch masks different tokens.

    The padding token also serves as the mask.
    """

    def __init__(self, texts: LabelledBatches, vocab_size: int):
        """Wrap batches of labelled texts. Only the texts are used, not the labels."""
        self.texts, self.vocab_size = texts, vocab_size
        self.per_epoch, self.tokens_per_epoch = texts.per_epoch, texts.tokens_per_epoch
        self.n_cut = texts.n_cut

    def batch(self, number: int) -> MaskedBatch:
        """Return the batch with this number, with a random selection of its tokens masked."""
        return self._masked(self.texts.batch(number), np.random.default_rng((self.texts.seed, number, 2)))

    def in_order(self, one_in: int = 1) -> Iterator[MaskedBatch]:
        """Yield all texts, the shortest first. Every call masks the same tokens."""
        for number, batch in enumerate(self.texts.in_order(one_in)):
            yield self._masked(batch, np.random.default_rng((0, number, 2)))

    def examples(self, rows: Indices) -> MaskedBatch:
        """Truncate these texts to the context length, and return them as a batch. Every call masks the same tokens."""
        return self._masked(self.texts.examples(rows), np.random.default_rng((0, *rows.tolist())))

    def _masked(self, batch: LabelledBatch, random: np.random.Generator) -> MaskedBatch:
        markers, shape = self.texts.markers, tuple(batch.tokens.shape)
        is_text = batch.padding & (batch.tokens != markers.start) & (batch.tokens != markers.end)
        is_target = is_text & torch.from_numpy(random.random(shape) < MASKED)
        fate, others = random.random(shape), torch.from_numpy(random.integers(self.vocab_size, size=shape))
        tokens = batch.tokens.masked_fill(is_target & torch.from_numpy(fate < REPLACED), markers.pad)
        is_replaced = is_target & torch.from_numpy((fate >= REPLACED) & (fate < (1 + REPLACED) / 2))
        targets = batch.tokens.masked_fill(~is_target, IGNORED)
        return MaskedBatch(int(is_target.sum()), torch.where(is_replaced, others, tokens), batch.padding, targets)
