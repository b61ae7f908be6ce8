"""Batches of examples, as tensors. Batches are numbered from the start of training.

The examples of a batch are a pure function of (seed, step), so resuming needs no saved state.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from penwright.data.splits import shuffled
from penwright.data.store import Column
from penwright.devices import copy_to

IGNORED = -100  # target that the loss ignores: padding, or a position with nothing to predict
MOST_SHUFFLED = 1 << 24  # maximum number of windows whose order is kept in memory (128 MiB)
LENGTH_STEP = 4  # lengths are padded to multiples of this number, to limit the number of shapes

AnyBatch = TypeVar("AnyBatch", bound="_Batch")
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class _Batch:
    """The base class of all batches. Subclasses add the tensors, with one row per example."""

    n_targets: int  # number of targets that contribute to the loss

    def to(self: AnyBatch, device: torch.device) -> AnyBatch:
        """Return the batch on this device. The copy to a GPU is asynchronous if the batch is pinned."""
        return self._map_tensors(lambda tensor: copy_to(tensor, device))

    def pinned(self: AnyBatch) -> AnyBatch:
        """Return the batch in pinned memory, for asynchronous copies to a GPU."""
        return self._map_tensors(Tensor.pin_memory)

    def clone(self: AnyBatch) -> AnyBatch:
        """Return a copy with its own tensors."""
        return self._map_tensors(Tensor.clone)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of the batch, in the order of its fields."""
        return [part for part in vars(self).values() if isinstance(part, Tensor)]

    @property
    def n_rows(self) -> int:
        """Number of rows: windows, pairs or texts."""
        return min(map(len, self.tensors))

    def twice(self: AnyBatch) -> AnyBatch:
        """Return all rows, and then all rows again. `n_targets` still counts each target once."""
        return self._map_tensors(lambda tensor: torch.cat([tensor, tensor]))

    def every(self: AnyBatch, nth: int, first: int = 0) -> AnyBatch:
        """Return every nth row, starting at row `first`. `n_targets` still counts the targets of the whole batch."""
        return self._map_tensors(lambda tensor: tensor[first::nth].contiguous())

    def _map_tensors(self: AnyBatch, change: Callable[[Tensor], Tensor]) -> AnyBatch:
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {name: change(part) for name, part in parts.items() if isinstance(part, Tensor)}
        return replace(self, **changed)  # type: ignore[arg-type]  # n_targets is not a tensor, so it does not change


@dataclass(frozen=True)
class TextBatch(_Batch):
    """Windows of running text. The target of each token is the next token."""

    tokens: Int[Tensor, "batch length"]
    targets: Int[Tensor, "batch length"]
    segments: Int[Tensor, "batch length"] | None  # document number of each token; None: a single document


@dataclass(frozen=True)
class PairBatch(_Batch):
    """Source sentences and their translations, right-padded."""

    source: Int[Tensor, "batch sources"]
    source_is_token: Bool[Tensor, "batch sources"]  # False at padding
    target: Int[Tensor, "batch length"]  # decoder input: the start token, then the translation
    targets: Int[Tensor, "batch length"]  # expected output: the translation, then the end token


@dataclass(frozen=True)
class LabelledBatch(_Batch):
    """Texts and their labels, right-padded."""

    tokens: Int[Tensor, "batch length"]
    is_token: Bool[Tensor, "batch length"]  # False at padding
    targets: Int[Tensor, " batch"] | Float[Tensor, "batch n_labels"]  # label ids, 0 or 1 for each label, or scores
    positions: Int[Tensor, "batch length"] | None = None  # positions of the tokens in the text; None: 0, 1, 2, ...


@dataclass(frozen=True)
class MaskedBatch(_Batch):
    """A batch of right-padded texts with masked tokens. The targets are the original tokens."""

    tokens: Int[Tensor, "batch length"]
    is_token: Bool[Tensor, "batch length"]  # False at padding
    targets: Int[Tensor, "batch length"]  # the original tokens at masked positions; IGNORED at all others


Batch = TextBatch | PairBatch | LabelledBatch | MaskedBatch


@dataclass(frozen=True)
class Markers:
    """The ids of the special tokens, and the positions at which the model expects them."""

    pad: int
    start: int
    end: int
    begins: bool = True  # for generation: whether each text begins with the start token
    source_prefix: tuple[int, ...] = ()  # tokens before each source sentence, for example the language token
    target_prefix: tuple[int, ...] = ()  # tokens between the start token and each translation


class Batches(ABC, Generic[AnyBatch]):
    """The batches of the training or held-out set, numbered from the start of training."""

    per_epoch: float  # number of batches per epoch
    tokens_per_epoch: int  # number of target tokens; for labelled texts, number of all tokens
    n_left_out: int = 0  # number of examples dropped because they are too long for the model
    n_cut: int = 0  # number of texts longer than the context; a batch holds only a part of such a text

    @abstractmethod
    def batch(self, number: int) -> AnyBatch:
        """Return the batch with this number, counted over all epochs."""

    @abstractmethod
    def in_order(self, one_in: int = 1) -> Iterator[AnyBatch]:
        """Yield all examples once in a fixed order, for evaluation; with `one_in`, only every `one_in`-th batch."""

    def for_step(self, step: int, accumulate: int) -> list[AnyBatch]:
        """Return the `accumulate` batches of one optimizer step. Steps count from 0."""
        return [self.batch(step * accumulate + k) for k in range(accumulate)]


class TextBatches(Batches[TextBatch]):
    """Windows of `context_length` tokens over the concatenated documents.

    Each document ends with an end token, and begins with a start token if the model has one. The first token of a
    document is never a target. Each epoch cuts the text at different positions and shuffles the windows again. A batch
    has `segments` if one of its windows crosses a document boundary.

    One window per epoch wraps around from the end of the text to its beginning. If there is only one document, this
    does not count as a boundary: torch would have to compile a model with `segments` just for that window.
    """

    def __init__(self, text: Column, context_length: int, batch_tokens: int, markers: Markers, seed: int = 0):
        self.text, self.markers, self.seed = text, markers, seed
        n_markers = 1 + markers.begins
        # The start of each document in the concatenated text (special tokens included), then the total length.
        self.begins = text.offsets + n_markers * np.arange(len(text.offsets))
        self.total = int(self.begins[-1])
        self.length = max(1, min(context_length, self.total - 1))
        self.rows = max(1, batch_tokens // self.length)
        self.n_windows = max(1, self.total // self.length)
        self.per_epoch = self.n_windows / self.rows
        self.tokens_per_epoch = self.n_windows * self.length

    def batch(self, number: int) -> TextBatch:
        """Return the batch with this number: windows in the shuffled order of their epoch."""
        rows = np.arange(number * self.rows, (number + 1) * self.rows)
        epochs = range(rows[0] // self.n_windows, rows[-1] // self.n_windows + 1)
        starts = [self._starts(epoch, rows[rows // self.n_windows == epoch] % self.n_windows) for epoch in epochs]
        return self._windows(np.concatenate(starts)[:, None] + np.arange(self.length + 1))

    def _starts(self, epoch: int, positions: Indices) -> Indices:
        """Return the start positions of the windows with these indices in the shuffled order of the epoch."""
        if self.n_windows <= MOST_SHUFFLED:
            return _window_starts(self.seed, epoch, self.n_windows, self.length)[positions]
        random = np.random.default_rng((self.seed, epoch))
        return (
            random.integers(self.length)
            + permuted(positions, self.n_windows, int(random.integers(2**62))) * self.length
        )

    def in_order(self, one_in: int = 1) -> Iterator[TextBatch]:
        """Yield windows from the beginning of the text to the end, including the shorter last one."""
        last = self.total - 1  # every token but the first is predicted once
        whole = np.arange(0, last - self.length + 1, self.length)
        begins = range(0, len(whole), self.rows)
        for begin in begins[::one_in]:
            yield self._windows(whole[begin : begin + self.rows, None] + np.arange(self.length + 1))
        rest = last - len(whole) * self.length
        if rest and len(begins) % one_in == 0:
            yield self._windows((last - rest + np.arange(rest + 1))[None])

    def _windows(self, positions: Indices) -> TextBatch:
        """Return the tokens at these positions as a batch. Positions past the last document wrap around."""
        positions = positions % self.total
        documents = np.searchsorted(self.begins, positions, side="right") - 1
        first = -int(self.markers.begins)  # a start token is at position -1 of its document
        offsets = positions - self.begins[documents] + first
        lengths = self.text.lengths[documents]
        at = np.clip(self.text.offsets[documents] + offsets, 0, max(0, len(self.text.tokens) - 1))
        tokens = self.text.tokens[at].astype(np.int64)
        tokens = np.where(offsets < 0, self.markers.start, np.where(offsets == lengths, self.markers.end, tokens))
        targets = np.where(offsets[:, 1:] == first, IGNORED, tokens[:, 1:])
        crossing = bool((documents[:, :-1] != documents[:, :1]).any())
        return TextBatch(
            int((targets != IGNORED).sum()),
            torch.from_numpy(tokens[:, :-1].copy()),
            torch.from_numpy(targets),
            torch.from_numpy(documents[:, :-1].copy()) if crossing else None,
        )


def permuted(positions: Indices, n: int, seed: int) -> Indices:
    """Map these numbers by a pseudo-random permutation of 0 to n - 1, without storing the permutation.

    The permutation is a Feistel network of four rounds (Luby and Rackoff 1988) on 0 to the next power of four. It is
    applied again to every result that is not below n.
    """
    bits = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(bits)) - 1)
    images, outside = positions.astype(np.uint64), np.ones(len(positions), dtype=bool)
    while outside.any():
        left, right = images[outside] >> bits, images[outside] & mask
        for number in range(4):
            left, right = right, left ^ (shuffled(right, 4 * seed + number) & mask)
        images[outside] = (left << bits) | right
        outside = images >= n
    return images.astype(np.int64)


@lru_cache(maxsize=2)
def _window_starts(seed: int, epoch: int, n_windows: int, length: int) -> Indices:
    """Return the start positions of the windows in this epoch, in shuffled order."""
    random = np.random.default_rng((seed, epoch))
    return random.integers(length) + random.permutation(n_windows) * length


class MixedBatches(Batches[AnyBatch]):
    """Batches from the fine-tuning corpus (`new`) and the corpus of the base model (`old`), mixed in a fixed ratio.

    An epoch is one pass over the new corpus.
    """

    def __init__(self, new: Batches[AnyBatch], old: Batches[AnyBatch], share: float):
        self.new, self.old, self.share = new, old, share
        self.per_epoch = new.per_epoch / (1 - share)
        self.tokens_per_epoch = int(new.tokens_per_epoch / (1 - share))
        self.n_left_out, self.n_cut = new.n_left_out, new.n_cut

    def batch(self, number: int) -> AnyBatch:
        """Return the batch with this number, from the new or the old corpus."""
        n_old = int(number * self.share)  # how many of the batches before this one come from the old corpus
        return self.old.batch(n_old) if int((number + 1) * self.share) > n_old else self.new.batch(number - n_old)

    def in_order(self, one_in: int = 1) -> Iterator[AnyBatch]:
        """Yield each example of the new corpus once, in a fixed order. The old corpus is left out."""
        yield from self.new.in_order(one_in)


class Prefetcher:
    """A source of batches for each step, already on the training device.

    On a GPU, a thread prepares the batches of the next step during the current step.
    """

    def __init__(self, batches: Batches[Any], accumulate: int, device: torch.device, *, ahead: bool | None = None):
        """Set up the prefetching. With `ahead`, a thread prepares the batches of the next step.

        By default, a thread is used only with a GPU: on a CPU, training already keeps all cores busy.
        """
        self._batches, self._accumulate, self._device = batches, accumulate, device
        makes_ahead = device.type != "cpu" if ahead is None else ahead
        self._thread = ThreadPoolExecutor(1, "batches") if makes_ahead else None
        self._next: tuple[int, Future[list[Batch]]] | None = None

    def __call__(self, step: int) -> list[Batch]:
        """Return the batches of this step, counted from 0. Steps may be requested in any order."""
        if self._thread is None:
            made = self._make(step)
        else:
            expected, pending = self._next or (step, self._thread.submit(self._make, step))
            future = pending if expected == step else self._thread.submit(self._make, step)
            self._next = (step + 1, self._thread.submit(self._make, step + 1))
            made = future.result()
        return [batch.to(self._device) for batch in made]

    def _make(self, step: int) -> list[Batch]:
        batches: list[Batch] = [*self._batches.for_step(step, self._accumulate)]
        if self._device.type == "cuda":  # copies from pinned memory to the GPU run in the background
            batches = [batch.pinned() for batch in batches]
        return batches
