"""The KV cache: the keys and values of earlier tokens, stored to compute each token only once."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from penwright.config import ModelSettings
from penwright.errors import PenwrightError
from penwright.model.attention import KeysValues

ROOM = 64  # a ContinuousCache on a CPU allocates a multiple of this many tokens per row
GPU_ROOM = 256  # minimum number of tokens per row of a ContinuousCache on a GPU; CUDA graphs need fixed addresses
LEAST_ROOM = 32  # minimum number of tokens per row to allocate, except in a ContinuousCache


def room_for(n_tokens: int) -> int:
    """Return the row length to allocate for `n_tokens`: a power of two, so the cache seldom has to grow."""
    return max(LEAST_ROOM, 1 << max(0, n_tokens - 1).bit_length())


class LayerCache:
    """The cached keys and values of one layer, with space for more tokens."""

    def __init__(self, cached: KeysValues):
        self.cached = cached

    def grow(self, room: int) -> None:
        """Grow the storage to `room` tokens per row."""
        self.cached = KeysValues(*(F.pad(x, (0, 0, 0, room - x.shape[2])) for x in self.cached))

    def append(
        self,
        new: KeysValues,
        positions: Int[Tensor, "rows targets"],
        end: int,
        origins: Int[Tensor, "batch room"] | None = None,
        start: int | None = None,
    ) -> KeysValues:
        """Write the new tokens at their positions; return all keys and values up to `end`.

        `origins` holds the index of the row that stores each token; None: each row stores its own tokens. `start` is
        the first position, if it is known to be the same in all rows. Shorter rows have stale entries after their end.
        The causal mask hides them: a target sees nothing after its own position, and each entry is overwritten before
        it becomes visible.
        """
        for cached, x in zip(self.cached, new, strict=True):
            if start is not None:
                cached[: x.shape[0], :, start:end] = x
            elif positions.shape[0] == 1:
                cached[: x.shape[0], :, positions[0]] = x.to(cached.dtype)
            else:
                rows = torch.arange(positions.shape[0], device=positions.device)[:, None]
                cached[rows, :, positions] = x.transpose(1, 2).to(cached.dtype)
        return self._visible(end, origins, new.keys.dtype)

    def _visible(self, end: int, origins: Int[Tensor, "batch room"] | None, precision: torch.dtype) -> KeysValues:
        if origins is None:
            return KeysValues(*(x[:, :, :end].to(precision) for x in self.cached))
        positions = torch.arange(end, device=origins.device)
        return KeysValues(*(x[origins[:, :end], :, positions].transpose(1, 2).to(precision) for x in self.cached))


class WholeLayerCache(LayerCache):
    """A layer cache that returns its whole storage, for kernels that find the row of each token themselves."""

    def _visible(self, end: int, origins: Int[Tensor, "batch room"] | None, precision: torch.dtype) -> KeysValues:
        return self.cached


class Cache:
    """The KV cache of a decoder: the caches of all layers, and the number of tokens in each row."""

    def __init__(self, settings: ModelSettings, n_layers: int, batch: int, capacity: int, like: Tensor):
        """Make an empty cache with the device and dtype of `like`; `capacity` is the maximum length of a row."""
        shape = (batch, settings.n_kv_heads, min(room_for(1), capacity), settings.d_head)
        self.capacity = capacity
        self.layers = [LayerCache(KeysValues(like.new_zeros(shape), like.new_zeros(shape))) for _ in range(n_layers)]
        self.lengths = torch.zeros(batch, dtype=torch.long, device=like.device)
        self.longest = 0  # maximum of the lengths, kept here to avoid waiting for the GPU
        self.ragged = False  # whether the rows have different lengths
        self.origins: Int[Tensor, "batch room"] | None = None  # row that stores each token (None: its own row)

    @classmethod
    def over(
        cls,
        layers: Sequence[KeysValues],
        lengths: Int[Tensor, " batch"],
        origins: Int[Tensor, "batch room"] | None = None,
        kind: type[LayerCache] = LayerCache,
        n_new: int = 1,
    ) -> "Cache":
        """Make a cache over existing keys and values, with these row lengths and space for `n_new` more tokens."""
        cache = cls.__new__(cls)
        cache.layers, cache.lengths, cache.ragged = [kind(cached) for cached in layers], lengths, True
        cache.origins = origins
        cache.capacity = layers[0].keys.shape[2] if origins is None else origins.shape[1]
        cache.longest = cache.capacity - n_new
        return cache

    @property
    def room(self) -> int:
        """The number of tokens per row that fit without growing the cache."""
        return self.layers[0].cached.keys.shape[2]

    def make_room(self, n_tokens: int) -> None:
        """Grow the cache if `n_tokens` more tokens do not fit."""
        needed = self.longest + n_tokens
        if needed > self.room:
            room = min(self.capacity, room_for(needed))
            if self.origins is not None:
                self.origins = torch.cat([self.origins, self.own_rows(room - self.room)], dim=1)
            for layer in self.layers:
                layer.grow(room)

    def advance(self, n_tokens: int | Int[Tensor, " batch"]) -> None:
        """Add `n_tokens` to the row lengths: one number for all rows, or each row's number of real tokens."""
        self.lengths = self.lengths + n_tokens
        if isinstance(n_tokens, int):
            self.longest += n_tokens
        else:
            self._update_longest()

    def select(self, rows: Int[Tensor, " selected"]) -> None:
        """Keep these rows of the batch, in this order. Call this to drop finished rows or to follow beams."""
        if self.origins is not None:
            return self.reorder(rows)
        for layer in self.layers:
            layer.cached = layer.cached.select(rows)
        self.lengths = self.lengths[rows]
        if self.ragged:
            self._update_longest()

    def reorder(self, rows: Int[Tensor, " selected"]) -> None:
        """Reorder the rows to follow beams without copying keys and values, by recording which row holds each token.

        The result has at most as many rows as before, and all rows have the same length.
        """
        origins = self.own_rows(self.room) if self.origins is None else self.origins
        self.origins, self.lengths = origins[rows], self.lengths[rows]
        self.origins[:, self.longest :] = torch.arange(len(rows), device=rows.device)[:, None]

    def own_rows(self, n_tokens: int) -> Int[Tensor, "batch n_tokens"]:
        """Return `origins` for rows that share no tokens, so that each row stores all its `n_tokens` tokens itself."""
        rows = torch.arange(len(self.lengths), device=self.lengths.device)
        return rows[:, None].repeat(1, n_tokens)

    def begin(self, kept: Sequence[KeysValues]) -> None:
        """Start every row of an empty cache with a shared prefix; `kept` holds its keys and values, by layer."""
        n_tokens = kept[0].keys.shape[2]
        self.make_room(n_tokens)
        for layer, known in zip(self.layers, kept, strict=True):
            layer.cached.keys[:, :, :n_tokens] = known.keys
            layer.cached.values[:, :, :n_tokens] = known.values
        self.advance(n_tokens)

    def row(self, row: int, n_tokens: int) -> list[KeysValues]:
        """Return a view of the keys and values of the first tokens of a row, by layer."""
        rows = slice(row, row + 1)
        return [KeysValues(*(x[rows, :, :n_tokens] for x in layer.cached)) for layer in self.layers]

    def _update_longest(self) -> None:
        self.longest = int(self.lengths.max()) if len(self.lengths) else 0
        self.ragged = bool((self.lengths != self.longest).any())


class ContinuousCache(Cache):
    """A KV cache for continuous batching. Thanks to spare rows, rows can be added and removed cheaply."""

    def __init__(self, settings: ModelSettings, n_layers: int, capacity: int, like: Tensor):
        super().__init__(settings, n_layers, 0, capacity, like)
        # tensors with spare rows; the layers hold views of them
        self._storage = [layer.cached for layer in self.layers]

    def make_room(self, n_tokens: int) -> None:
        """Grow the cache if `n_tokens` more tokens do not fit."""
        self._fit(len(self.lengths), self.longest + n_tokens)

    def extend(self, other: Cache) -> None:
        """Append the rows of another cache."""
        n, n_all = len(self.lengths), len(self.lengths) + len(other.lengths)
        self._fit(n_all, max(self.longest, other.longest))
        room = min(self.room, other.room)
        for storage, layer in zip(self._storage, other.layers, strict=True):
            for target, source in zip(storage, layer.cached, strict=True):
                target[n:n_all, :, :room] = source[:, :, :room]
        self.lengths = torch.cat([self.lengths, other.lengths])
        self._update_longest()

    def select(self, rows: Int[Tensor, " selected"]) -> None:
        """Keep these rows of the batch, in this order. Rows that stay in place are not copied."""
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
        if len(moved):
            for storage in self._storage:
                for tensor in storage:
                    tensor[moved] = tensor[rows[moved]]
        self.lengths = self.lengths[rows]
        self._update_longest()
        self._fit(len(rows), self.longest)

    def _fit(self, n_rows: int, n_tokens: int) -> None:
        """Resize the storage for this many rows and tokens: grow if needed, shrink if most of it would be empty."""
        n_old, room = self._storage[0].keys.shape[0], self.room
        rows = 1 << (max(n_rows, 1) - 1).bit_length() if n_rows > n_old or n_rows < n_old // 4 else n_old
        room_now = _room_for(n_tokens, room, self.capacity, self.lengths.device.type)
        if (rows, room_now, n_rows) == (n_old, room, self.layers[0].cached.keys.shape[0]):
            return
        if (rows, room_now) != (n_old, room):
            self._storage = [KeysValues(*(_resized(x, rows, room_now) for x in storage)) for storage in self._storage]
        for layer, storage in zip(self.layers, self._storage, strict=True):
            layer.cached = KeysValues(*(x[:n_rows] for x in storage))


def _room_for(n_tokens: int, room: int, capacity: int, device_type: str) -> int:
    """Return the row length for `n_tokens` in a continuous cache whose row length is `room`.

    On a GPU, the length seldom changes, because CUDA graphs must be captured again when it does.
    """
    if device_type == "cpu":
        wanted, least = -(-max(n_tokens, 1) // ROOM) * ROOM, room - ROOM
    else:
        wanted, least = max(GPU_ROOM, room_for(n_tokens)), room // 2
    wanted = min(capacity, wanted)
    return wanted if wanted > room or wanted < least else room


def _resized(x: Tensor, n_rows: int, room: int) -> Tensor:
    new = x.new_zeros(n_rows, x.shape[1], room, x.shape[3])
    shared = (slice(min(n_rows, x.shape[0])), slice(None), slice(min(room, x.shape[2])))
    new[shared] = x[shared]
    return new


def positions_of(
    tokens: Int[Tensor, "batch length"], cache: Cache | None, settings: ModelSettings
) -> Int[Tensor, "rows length"]:
    """Return the positions of tokens that follow the cached tokens; a single row if all rows have the same positions.

    Raises PenwrightError if the text is longer than the learned positions of the model.
    """
    end = tokens.shape[1] + (cache.longest if cache else 0)
    if settings.positions.type == "learned" and end > settings.context_length:
        raise PenwrightError(
            f"a text of {end} tokens is too long: this model has only {settings.context_length} learned positions. "
            "Shorten the text"
        )
    new = torch.arange(tokens.shape[1], device=tokens.device)[None]
    if cache is None:
        return new
    return cache.lengths[:, None] + new if cache.ragged else new + cache.longest
