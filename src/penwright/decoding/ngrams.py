"""What usually follows the last few tokens, counted in a text: a guess that costs microseconds."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, Integer, UInt64
from safetensors import SafetensorError
from safetensors.numpy import load, save

from penwright.errors import PenwrightError

ORDERS = 4  # tokens that are looked back on at most
MOST_TOKENS = 4_000_000  # of the text that are counted: of more, the first ones
MOST_BITS = 17  # of a slot's number
DISCOUNT = 0.75  # taken from each count (Kneser and Ney 1995): what was seen once or twice is partly chance
LEAST = 0.2  # chance that is worth a slot
TOKEN_BITS, CHANCE_BITS, TAG_BITS = 24, 8, 31  # of an entry, which is not negative
TOKEN_MASK, CHANCE_MASK = (1 << TOKEN_BITS) - 1, (1 << CHANCE_BITS) - 1
MASK = (1 << 64) - 1
FACTOR, SHIFT = 0x9E3779B97F4A7C15, 29  # of the hash: the golden ratio's bits


class Guess(NamedTuple):
    """A token that may come next."""

    token: int
    chance: float


@dataclass(frozen=True)
class Ngrams:
    """For each number of tokens looked back on, the likeliest next token of contexts that were seen.

    A context stands in the slot that its hash names, with a tag of other bits of it; -1 is an empty slot.
    """

    entries: Int64[np.ndarray, "orders slots"]

    @classmethod
    def of(cls, texts: Iterable[Integer[np.ndarray, " _"]]) -> "Ngrams":
        """Counted in these texts."""
        chosen, n_tokens = [], 0
        for text in texts:
            chosen.append(text[: MOST_TOKENS - n_tokens].astype(np.uint64))
            n_tokens += len(chosen[-1])
            if n_tokens == MOST_TOKENS:
                break
        found = [_counted(chosen, order) for order in range(1, ORDERS + 1)]
        most = max(len(each.hashes) for each in found)
        bits = min(MOST_BITS, max(1, (2 * most - 1).bit_length()))
        entries = np.full((ORDERS, 1 << bits), -1, dtype=np.int64)
        for row, each in zip(entries, found, strict=True):
            tags = each.hashes >> np.uint64(64 - TAG_BITS)
            packed = tags << np.uint64(TOKEN_BITS + CHANCE_BITS) | each.chances << np.uint64(TOKEN_BITS) | each.tokens
            row[(each.hashes & np.uint64((1 << bits) - 1)).astype(np.int64)] = packed.astype(np.int64)
        return cls(entries)

    @classmethod
    def load(cls, path: Path, vocab_size: int) -> "Ngrams":
        """Those that a run keeps; raises PenwrightError where they are damaged, or of another vocabulary."""
        try:
            entries = load(path.read_bytes())["entries"]
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise PenwrightError(f"{path} cannot be read ({error}): delete it, or `penwright quicken` again") from None
        n_slots = entries.shape[1] if entries.ndim == 2 and entries.dtype == np.int64 else 0
        if n_slots.bit_count() != 1 or (entries[entries >= 0] & TOKEN_MASK).max(initial=0) >= vocab_size:
            raise PenwrightError(f"{path} does not belong to this run: delete it, or `penwright quicken` again")
        return cls(entries)

    def dump(self) -> bytes:
        """What load() reads."""
        return save({"entries": self.entries})

    def guess(self, context: Iterable[int]) -> Guess | None:
        """The likeliest token after a context, whose newest token comes first: by as much of it as was seen."""
        hashes, hashed, last_slot = [], 0, self.entries.shape[1] - 1
        for token in islice(context, ORDERS):
            hashed = (hashed + token + 1) * FACTOR & MASK
            hashed ^= hashed >> SHIFT
            hashes.append(hashed)
        for order in range(min(len(hashes), len(self._rows)) - 1, -1, -1):
            hashed = hashes[order]
            entry = self._rows[order][hashed & last_slot]
            if entry >> (TOKEN_BITS + CHANCE_BITS) == hashed >> (64 - TAG_BITS):
                return Guess(entry & TOKEN_MASK, (entry >> TOKEN_BITS & CHANCE_MASK) / (1 << CHANCE_BITS))
        return None

    @cached_property
    def _rows(self) -> list[memoryview]:
        """The entries by order, from which a single number comes sooner than from an array."""
        return [memoryview(row) for row in self.entries]


class _Counted(NamedTuple):
    """Contexts by their hashes, those that were seen most often last; what followed each, and how surely in 256ths."""

    hashes: UInt64[np.ndarray, " contexts"]
    tokens: UInt64[np.ndarray, " contexts"]
    chances: UInt64[np.ndarray, " contexts"]


def _counted(texts: list[UInt64[np.ndarray, " _"]], order: int) -> _Counted:
    pairs = [np.stack([_hashes(text[:-1], order), text[order:]], axis=1) for text in texts if len(text) > order]
    every = np.concatenate(pairs) if pairs else np.zeros((0, 2), dtype=np.uint64)
    every = every[np.lexsort(every.T[::-1])]
    first = np.flatnonzero(np.r_[True, (every[1:] != every[:-1]).any(1)][: len(every)])
    counts = np.diff(np.r_[first, len(every)])
    contexts, tokens = every[first].T
    starts = np.flatnonzero(np.r_[True, contexts[1:] != contexts[:-1]][: len(contexts)])
    totals = np.add.reduceat(counts, starts) if len(starts) else counts
    of_context = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(contexts)]))
    by_count = np.lexsort((counts, of_context))  # the most frequent token of each context last
    best = by_count[np.r_[starts[1:], len(contexts)][: len(starts)] - 1]
    chances = (counts[best] - DISCOUNT) / np.maximum(totals, 1)
    worth = np.flatnonzero((chances >= LEAST) & (counts[best] > 1))
    worth = worth[np.argsort(totals[worth], kind="stable")]
    best = best[worth]
    return _Counted(contexts[best], tokens[best], (chances[worth] * (1 << CHANCE_BITS)).astype(np.uint64))


def _hashes(text: UInt64[np.ndarray, " tokens"], order: int) -> UInt64[np.ndarray, " contexts"]:
    """Of the last tokens before each next one, as guess() makes them."""
    n = len(text) - order + 1
    hashed = np.zeros(n, dtype=np.uint64)
    for back in range(order):
        hashed = (hashed + text[order - 1 - back : order - 1 - back + n] + np.uint64(1)) * np.uint64(FACTOR)
        hashed ^= hashed >> np.uint64(SHIFT)
    return hashed
