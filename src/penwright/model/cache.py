"""The keys and values of the tokens already read, so that each new token is computed once."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from penwright.config import ModelSettings
from penwright.errors import PenwrightError
from penwright.model.attention import KeysValues

ROOM = 64  # tokens that a cache of rows that come and go grows by
LEAST_ROOM = 32  # tokens that other caches begin with


def room_for(n_tokens: int) -> int:
    """What a cache that holds so many grows to: by doubling, since all layers are copied each time."""
    return max(LEAST_ROOM, 1 << max(0, n_tokens - 1).bit_length())


class LayerCache:
    """One layer's keys and values, with room for some more tokens."""

    def __init__(self, kept: KeysValues):
        self.kept = kept

    def grow(self, room: int) -> None:
        """Make room for so many tokens in all."""
        self.kept = KeysValues(*(F.pad(x, (0, 0, 0, room - x.shape[2])) for x in self.kept))

    def append(
        self,
        new: KeysValues,
        positions: Int[Tensor, "rows targets"],
        end: int,
        origins: Int[Tensor, "batch room"] | None = None,
    ) -> KeysValues:
        """Write the new tokens at their positions; return everything up to `end`, from the rows where it is kept.

        Rows of different lengths leave stale entries behind their end. No mask but causality is needed for those:
        a target sees nothing beyond its own position, and each entry is overwritten before its position is reached.
        """
        for kept, x in zip(self.kept, new, strict=True):
            if positions.shape[0] == 1:
                kept[: x.shape[0], :, positions[0]] = x.to(kept.dtype)
            else:
                rows = torch.arange(positions.shape[0], device=positions.device)[:, None]
                kept[rows, :, positions] = x.transpose(1, 2).to(kept.dtype)
        return self._seen(end, origins, new.keys.dtype)

    def _seen(self, end: int, origins: Int[Tensor, "batch room"] | None, precision: torch.dtype) -> KeysValues:
        if origins is None:
            return KeysValues(*(x[:, :, :end].to(precision) for x in self.kept))
        places = torch.arange(end, device=origins.device)
        return KeysValues(*(x[origins[:, :end], :, places].transpose(1, 2).to(precision) for x in self.kept))


class WholeLayerCache(LayerCache):
    """One for a kernel that finds by itself what each row may see: it is given everything, as it is kept."""

    def _seen(self, end: int, origins: Int[Tensor, "batch room"] | None, precision: torch.dtype) -> KeysValues:
        return self.kept


class Cache:
    """The caches of all layers of a decoder, and how many tokens of each row they hold."""

    def __init__(self, settings: ModelSettings, n_layers: int, batch: int, capacity: int, like: Tensor):
        """`like` gives the device and the precision; capacity is the longest that a row may get."""
        shape = (batch, settings.n_kv_heads, min(room_for(1), capacity), settings.d_head)
        self.capacity = capacity
        self.layers = [LayerCache(KeysValues(like.new_zeros(shape), like.new_zeros(shape))) for _ in range(n_layers)]
        self.lengths = torch.zeros(batch, dtype=torch.long, device=like.device)
        self.longest = 0  # of lengths, known without asking the device
        self.ragged = False  # whether lengths differ
        self.origins: Int[Tensor, "batch room"] | None = None  # the row that keeps each token of a row; None: itself

    @classmethod
    def over(
        cls,
        layers: Sequence[KeysValues],
        lengths: Int[Tensor, " batch"],
        origins: Int[Tensor, "batch room"] | None = None,
        kind: type[LayerCache] = LayerCache,
        n_new: int = 1,
    ) -> "Cache":
        """These keys and values, in rows of these lengths, each with room for so many new tokens."""
        cache = cls.__new__(cls)
        cache.layers, cache.lengths, cache.ragged = [kind(kept) for kept in layers], lengths, True
        cache.origins = origins
        cache.capacity = layers[0].keys.shape[2] if origins is None else origins.shape[1]
        cache.longest = cache.capacity - n_new
        return cache

    @property
    def room(self) -> int:
        """The tokens that a row can have without growing."""
        return self.layers[0].kept.keys.shape[2]

    def make_room(self, n_tokens: int) -> None:
        """Grow, where so many more tokens would not fit."""
        needed = self.longest + n_tokens
        if needed > self.room:
            room = min(self.capacity, room_for(needed))
            if self.origins is not None:
                self.origins = torch.cat([self.origins, self.own_rows(room - self.room)], dim=1)
            for layer in self.layers:
                layer.grow(room)

    def advance(self, n_tokens: int | Int[Tensor, " batch"]) -> None:
        """Count tokens as read: as many in every row, or of right-padded rows only the real ones."""
        self.lengths = self.lengths + n_tokens
        if isinstance(n_tokens, int):
            self.longest += n_tokens
        else:
            self._measure()

    def select(self, rows: Int[Tensor, " selected"]) -> None:
        """Keep these rows of the batch, in this order: to let finished rows go, or to make beams of them."""
        if self.origins is not None:
            return self.reorder(rows)
        for layer in self.layers:
            layer.kept = layer.kept.select(rows)
        self.lengths = self.lengths[rows]
        if self.ragged:
            self._measure()

    def reorder(self, rows: Int[Tensor, " selected"]) -> None:
        """The same without copying keys and values, to follow beams: a row notes where those before it have theirs.

        For at most as many rows as there are, all of one length.
        """
        origins = self.own_rows(self.room) if self.origins is None else self.origins
        self.origins, self.lengths = origins[rows], self.lengths[rows]
        self.origins[:, self.longest :] = torch.arange(len(rows), device=rows.device)[:, None]

    def own_rows(self, n_tokens: int) -> Int[Tensor, "batch n_tokens"]:
        """The origins of so many tokens that each row keeps itself."""
        rows = torch.arange(len(self.lengths), device=self.lengths.device)
        return rows[:, None].repeat(1, n_tokens)

    def begin(self, kept: Sequence[KeysValues]) -> None:
        """Every row begins with what these keys and values are of; there is nothing in them yet."""
        n_tokens = kept[0].keys.shape[2]
        self.make_room(n_tokens)
        for layer, known in zip(self.layers, kept, strict=True):
            layer.kept.keys[:, :, :n_tokens] = known.keys
            layer.kept.values[:, :, :n_tokens] = known.values
        self.advance(n_tokens)

    def row(self, row: int, n_tokens: int) -> list[KeysValues]:
        """A view of what a row holds of its first tokens, by layer."""
        here = slice(row, row + 1)
        return [KeysValues(*(x[here, :, :n_tokens] for x in layer.kept)) for layer in self.layers]

    def _measure(self) -> None:
        self.longest = int(self.lengths.max()) if len(self.lengths) else 0
        self.ragged = bool((self.lengths != self.longest).any())


class OpenCache(Cache):
    """A cache whose rows come and go: there are spare ones, so that only rows that change places are copied."""

    def __init__(self, settings: ModelSettings, n_layers: int, capacity: int, like: Tensor):
        super().__init__(settings, n_layers, 0, capacity, like)
        self._whole = [layer.kept for layer in self.layers]  # with spare rows, of which the layers have a view

    def make_room(self, n_tokens: int) -> None:
        """Grow, where so many more tokens would not fit."""
        self._fit(len(self.lengths), self.longest + n_tokens)

    def take_in(self, other: Cache) -> None:
        """The rows of another cache, after those that are here."""
        n, n_all = len(self.lengths), len(self.lengths) + len(other.lengths)
        self._fit(n_all, max(self.longest, other.longest))
        room = min(self.room, other.room)
        for whole, layer in zip(self._whole, other.layers, strict=True):
            for mine, theirs in zip(whole, layer.kept, strict=True):
                mine[n:n_all, :, :room] = theirs[:, :, :room]
        self.lengths = torch.cat([self.lengths, other.lengths])
        self._measure()

    def select(self, rows: Int[Tensor, " selected"]) -> None:
        """Keep these rows of the batch, in this order. Rows that stay in their places cost nothing."""
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
        if len(moved):
            for whole in self._whole:
                for tensor in whole:
                    tensor[moved] = tensor[rows[moved]]
        self.lengths = self.lengths[rows]
        self._measure()
        self._fit(len(rows), self.longest)

    def _fit(self, n_rows: int, n_tokens: int) -> None:
        """Have room for these: more where they need it, less where much of it would be empty."""
        there, room = self._whole[0].keys.shape[0], self.room
        rows = 1 << (max(n_rows, 1) - 1).bit_length() if n_rows > there or n_rows < there // 4 else there
        wanted = min(self.capacity, -(-max(n_tokens, 1) // ROOM) * ROOM)
        room_now = wanted if wanted > room or wanted < room - ROOM else room
        if (rows, room_now) != (there, room):
            self._whole = [KeysValues(*(_resized(x, rows, room_now) for x in whole)) for whole in self._whole]
        for layer, whole in zip(self.layers, self._whole, strict=True):
            layer.kept = KeysValues(*(x[:n_rows] for x in whole))


def _resized(x: Tensor, n_rows: int, room: int) -> Tensor:
    new = x.new_zeros(n_rows, x.shape[1], room, x.shape[3])
    shared = (slice(min(n_rows, x.shape[0])), slice(None), slice(min(room, x.shape[2])))
    new[shared] = x[shared]
    return new


def positions_of(
    tokens: Int[Tensor, "batch length"], cache: Cache | None, settings: ModelSettings
) -> Int[Tensor, "rows length"]:
    """Where tokens stand that follow what the cache holds; one row where it is the same for the whole batch."""
    end = tokens.shape[1] + (cache.longest if cache else 0)
    if settings.positions.type == "learned" and end > settings.context_length:
        raise PenwrightError(
            f"a text of {end} tokens is too long: this model has learned positions for {settings.context_length}"
        )
    new = torch.arange(tokens.shape[1], device=tokens.device)[None]
    if cache is None:
        return new
    return cache.lengths[:, None] + new if cache.ragged else new + cache.longest
