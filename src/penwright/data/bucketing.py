"""Batches of pairs or labelled texts of similar length, with token dropout for classifiers."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from penwright.data.batches import (
    IGNORED,
    LENGTH_STEP,
    AnyBatch,
    Batches,
    Indices,
    LabelledBatch,
    Markers,
    MaskedBatch,
    PairBatch,
    TextBatch,
)
from penwright.data.store import Column
from penwright.errors import PenwrightError
from penwright.tokenizers.markup import cut_pair

Labels = NDArray[np.int32]
_LONGEST_BATCH = 4  # maximum size of a batch of long labelled texts, as a multiple of `batch_tokens`
MOST_HIDDEN = 0.9  # maximum share of tokens dropped from a text, unless `TokenDropout.mean` is higher


class Bucketed(Batches[AnyBatch]):
    """Batches of examples with similar lengths. Each epoch shuffles the batches, and the examples of equal length."""

    def __init__(
        self,
        lengths: Sequence[Indices],
        batch_tokens: int,
        seed: int,
        longest: int | None = None,
        *,
        alike: bool = False,
    ):
        """Sort the examples by length and divide them into batches.

        Args:
            lengths: The lengths of all examples in tokens. For pairs: the target lengths, then the source lengths.
            batch_tokens: The maximum size of a batch: number of rows times length of the longest row. With `alike`,
                the average number of tokens per batch.
            seed: The random seed for shuffling.
            longest: The maximum length of a source, target or text. Longer examples are left out.
            alike: Give all batches the same number of examples, except that batches of more than four times
                `batch_tokens` are split.
        """
        self.seed, self.longest = seed, longest
        rounded = [-(-side // LENGTH_STEP) * LENGTH_STEP for side in lengths]
        self.order = np.lexsort(rounded[::-1])  # sorted by length; for pairs, by target length, then by source length
        if longest is not None:
            self.order = self.order[(np.max(lengths, axis=0) <= longest)[self.order]]
            self.n_left_out = len(lengths[0]) - len(self.order)
            if not len(self.order):
                raise PenwrightError(f"no example fits into the model's context of {longest} tokens")
        self.tokens_per_epoch = int(lengths[0][self.order].sum())
        self.cells = np.cumsum(np.any([np.diff(side[self.order], prepend=-1) != 0 for side in rounded], axis=0))
        widths = np.max(rounded, axis=0)[self.order]
        self.borders = (_even_borders if alike else _borders)(widths, batch_tokens)
        self.per_epoch = len(self.borders) - 1

    def batch(self, number: int) -> AnyBatch:
        """Return the batch with this number, in the shuffled order of its epoch."""
        epoch, index = divmod(number, int(self.per_epoch))
        batches, order = self._epoch(epoch)
        return self.examples(order[self._rows(int(batches[index]))])

    def _rows(self, batch: int) -> slice:
        """Return the slice of an epoch's order that contains the examples of a batch."""
        return slice(self.borders[batch], self.borders[batch + 1])

    def in_order(self, one_in: int = 1) -> Iterator[AnyBatch]:
        """Yield all examples, the shortest first."""
        for batch in range(0, len(self.borders) - 1, one_in):
            yield self.examples(self.order[self._rows(batch)])

    @lru_cache(maxsize=2)  # noqa: B019 - a step may need two epochs; batches live as long as the process
    def _epoch(self, epoch: int) -> tuple[Indices, Indices]:
        """Return the order of batches and the order of examples in this epoch."""
        random = np.random.default_rng((self.seed, epoch))
        mixed = np.lexsort((random.random(len(self.order)), self.cells))  # shuffles only examples of equal length
        return random.permutation(len(self.borders) - 1), self.order[mixed]

    @abstractmethod
    def examples(self, rows: Indices) -> AnyBatch:
        """Return these examples as a batch."""


class PairBatches(Bucketed[PairBatch]):
    """Batches of sentence pairs. Sources end with an end token; decoder inputs begin with a start token.

    Prefix tokens, for example the language token, come between the start token and the target.
    """

    def __init__(
        self,
        source: Column,
        target: Column,
        batch_tokens: int,
        markers: Markers,
        seed: int = 0,
        longest: int | None = None,
    ):
        """Batch the pairs. `longest` is the maximum number of tokens per sentence, special tokens included."""
        self.source, self.target, self.markers = source, target, markers
        lengths = target.lengths + 1 + len(markers.target_prefix), source.lengths + 1 + len(markers.source_prefix)
        super().__init__(lengths, batch_tokens, seed, longest)

    def examples(self, rows: Indices) -> PairBatch:
        """Return these pairs as a batch."""
        end, pad, most, prefix = (self.markers.end,), self.markers.pad, self.longest, self.markers.target_prefix
        sources, translations = ([column[row] for row in rows.tolist()] for column in (self.source, self.target))
        source, source_lengths = _padded(sources, pad, before=self.markers.source_prefix, after=end, most=most)
        target, _ = _padded(translations, pad, before=(self.markers.start, *prefix), most=most)
        targets, target_lengths = _padded(translations, IGNORED, before=[IGNORED] * len(prefix), after=end, most=most)
        is_token = torch.arange(source.shape[1]) < source_lengths[:, None]
        return PairBatch(int(target_lengths.sum()) - len(rows) * len(prefix), source, is_token, target, targets)


@dataclass(frozen=True)
class TokenDropout:
    """Token dropout with a random share for each text (word dropout, Iyyer et al. 2015).

    The shares vary as widely around `mean` as possible, because the model must also learn from nearly complete texts.
    Dropped tokens are removed instead of masked, to save time. The first word is never dropped: a text must keep more
    than its start token.
    """

    mean: float  # average share of dropped tokens, from 0 to 1
    keeps_start: bool = False  # never drop the start token, for classifiers that use only its output
    kept: int | None = None  # id of a token that is never dropped: for pairs of texts, the end token

    @property
    def _never_hidden(self) -> slice:
        """The positions that are never dropped: the first token and, with `keeps_start`, the start token before it."""
        return slice(0 if self.keeps_start else 1, 2)

    def draw_lengths(self, lengths: NDArray[np.int64], random: Generator) -> NDArray[np.int64]:
        """Draw the number of tokens to keep in each text. `lengths` includes the start and end tokens."""
        spread = min(self.mean, max(0.0, MOST_HIDDEN - self.mean))
        shares = random.uniform(self.mean - spread, self.mean + spread, len(lengths))
        always = self._never_hidden.stop - self._never_hidden.start + (0 if self.kept is None else 2)
        return always + random.binomial(np.maximum(lengths - always, 0), 1 - shares)

    def shown(self, batch: LabelledBatch, numbers: NDArray[np.int64], random: Generator) -> LabelledBatch:
        """Return the batch with only `numbers[i]` random tokens of text i, in their original order and positions."""
        whole = batch.tokens.shape[1]
        # In each row, the tokens with the smallest random keys are kept.
        keys = np.where(batch.is_token.numpy(), random.random(batch.tokens.shape), 2.0)
        if self.kept is not None:
            keys[(batch.tokens == self.kept).numpy()] = -1.0
        keys[:, self._never_hidden] = -2.0
        width = min(whole, -(-int(numbers.max()) // LENGTH_STEP) * LENGTH_STEP)
        drawn = keys.argsort(1)[:, :width]
        # The index `whole`, one past the last token, stands for padding.
        drawn_positions = np.sort(np.where(np.arange(width) < numbers[:, None], drawn, whole), 1)
        is_token = torch.from_numpy(drawn_positions < whole)
        positions = torch.from_numpy(np.minimum(drawn_positions, whole - 1))
        tokens = batch.tokens.gather(1, positions)
        return LabelledBatch(batch.n_targets, tokens, is_token, batch.targets, positions)


class LabelledBatches(Bucketed[LabelledBatch]):
    """Batches of labelled texts, each text between a start and an end token.

    All batches have the same number of texts, whatever their lengths, except that very large batches are split. The
    loss of a batch is the mean over its texts, so long and short texts count equally. If a text is longer than the
    context, each epoch uses a different part of it. With token dropout, texts with similar numbers of remaining tokens
    share a batch. `in_order` drops no tokens, and uses the beginning of long texts.
    """

    def __init__(
        self,
        text: Column,
        labels: Labels,
        context_length: int,
        batch_tokens: int,
        markers: Markers,
        seed: int = 0,
        token_dropout: TokenDropout | None = None,
        targets: Float[Tensor, "values n_labels"] | None = None,
    ):
        """Batch the texts. `batch_tokens` is the number of tokens per batch, before token dropout.

        A text with label id i has the targets `targets[i]`; if `targets` is None, the label id itself is the target.
        """
        self.text, self.labels, self.markers = text, labels, markers
        self.token_dropout, self.targets = token_dropout, targets
        self.are_pairs = False  # whether the examples are pairs; long pairs are truncated the same way in every epoch
        self.cut = max(1, context_length - 2)
        self.beyond = np.maximum(text.lengths - self.cut, 0)  # number of tokens beyond the context, for each text
        self.n_cut = int((self.beyond > 0).sum())
        self.lengths = np.minimum(text.lengths, self.cut) + 2
        super().__init__([self.lengths], batch_tokens, seed, longest=self.cut + 2, alike=True)

    def batch(self, number: int) -> LabelledBatch:
        """Return the batch with this number, with random parts of long texts and with token dropout."""
        epoch, index = divmod(number, int(self.per_epoch))
        random = np.random.default_rng((self.seed, epoch, 1 + index))  # NumPy ignores a final 0 in a seed, so add 1
        if self.token_dropout is None:
            batches, order = self._epoch(epoch)
            return self.examples(order[self._rows(int(batches[index]))], random)
        batches, order, n_shown = self._epoch_of_parts(epoch, self.token_dropout)
        rows = self._rows(int(batches[index]))
        return self.token_dropout.shown(self.examples(order[rows], random), n_shown[rows], random)

    @lru_cache(maxsize=2)  # noqa: B019 - see _epoch()
    def _epoch_of_parts(self, epoch: int, token_dropout: TokenDropout) -> tuple[Indices, Indices, Indices]:
        """Return the order of batches, the order of texts, and the number of tokens to keep in each text."""
        random = np.random.default_rng((self.seed, epoch))
        n_shown = token_dropout.draw_lengths(self.lengths[self.order], random)
        mixed = np.lexsort((random.random(len(self.order)), -(-n_shown // LENGTH_STEP)))
        return random.permutation(len(self.borders) - 1), self.order[mixed], n_shown[mixed]

    def examples(self, rows: Indices, random: np.random.Generator | None = None) -> LabelledBatch:
        """Return these texts as a batch. `random` chooses the part of a long text; if None, the beginning is used."""
        beyond = self.beyond[rows]
        begins = random.integers(beyond + 1) if random is not None and beyond.any() else np.zeros_like(beyond)
        parts = zip(rows.tolist(), begins.tolist(), strict=True)
        texts = [self._part(row, begin) for row, begin in parts]
        start, end = (self.markers.start,), (self.markers.end,)
        tokens, lengths = _padded(texts, self.markers.pad, before=start, after=end, most=self.longest)
        labels = torch.from_numpy(self.labels[rows].astype(np.int64))
        targets = labels if self.targets is None else self.targets[labels]
        return LabelledBatch(len(rows), tokens, torch.arange(tokens.shape[1]) < lengths[:, None], targets)

    def _part(self, row: int, begin: int) -> NDArray[np.integer]:
        """Return at most `cut` tokens of a text, starting at `begin`. Long pairs are truncated by cut_pair()."""
        if self.are_pairs and self.beyond[row]:
            return np.array(cut_pair(self.text[row].tolist(), self.markers.end, self.cut))
        return self.text[row][begin : begin + self.cut]


AnyBatches = Batches[TextBatch] | Batches[PairBatch] | Batches[LabelledBatch] | Batches[MaskedBatch]


def _borders(lengths: Indices, batch_tokens: int) -> list[int]:
    """Return the boundaries of batches of at most `batch_tokens` (number of rows times length of the longest row)."""
    borders, longest = [0], 0
    for number, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if number > borders[-1] and (number - borders[-1] + 1) * longest > batch_tokens:
            borders.append(number)
            longest = length
    return [*borders, len(lengths)]


def _even_borders(lengths: Indices, batch_tokens: int) -> list[int]:
    """Return the boundaries of batches with equal numbers of examples, and `batch_tokens` tokens on average.

    The exceptions are batches of more than _LONGEST_BATCH times `batch_tokens`, which are split.
    """
    n_batches = max(1, min(len(lengths), round(float(lengths.sum()) / batch_tokens)))
    borders = [0]
    for begin, end in pairwise(np.linspace(0, len(lengths), n_batches + 1).astype(int).tolist()):
        borders += [begin + place for place in _borders(lengths[begin:end], _LONGEST_BATCH * batch_tokens)[1:]]
    return borders


def _padded(
    rows: Sequence[NDArray[np.integer]],
    pad: int,
    *,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
    most: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the rows as one right-padded tensor, and their lengths. Tokens `before` and `after` are added to each row.

    The width is a multiple of LENGTH_STEP, or `most` if that is smaller. No row may exceed `most`.
    """
    head, tail = len(before), len(after)
    lengths = np.array([len(row) + head + tail for row in rows])
    width = -(-int(lengths.max()) // LENGTH_STEP) * LENGTH_STEP
    filled = np.full((len(rows), width if most is None else min(width, most)), pad, dtype=np.int64)
    for line, row, length in zip(filled, rows, lengths, strict=True):
        line[:head] = before
        line[head : head + len(row)] = row
        line[length - tail : length] = after
    return torch.from_numpy(filled), torch.from_numpy(lengths)
