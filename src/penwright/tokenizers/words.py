"""The words of texts, and a table in which short ones are found by the hundred thousand at once."""

import re
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt64

from penwright.tokenizers.ragged import IdType, Ragged, lengths_of

# Words with the white space before them. BPE and unigram never join a visible character to white space after it, so the
# ids of a text are the ids of its words. U+001C to U+001F are white space to Python but not to the library.
WORD = re.compile(r"[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|\s+")

_WHITE = np.zeros(1 << 16, dtype=bool)  # by code unit of UTF-16: no white space needs two
_WHITE[[*b"\t\n\v\f\r ", 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]] = True

_COLUMNS = 3  # of four code units each: as much as a short word has
_UNITS = 4 * _COLUMNS
_MASKS = np.array([(1 << 16 * n) - 1 for n in range(5)], dtype=np.uint64)  # the first n of four units
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing (Knuth 1973)
_SLOT_BITS = 19
_PART = 1 << 15  # words at a time: those that come again in a text are soon found

Numbers = Int64[np.ndarray, " words"]
Keys = UInt64[np.ndarray, "columns words"]


class Words(NamedTuple):
    """Places of words in a text, in code units of UTF-16; `bounds` are numbers of words, where each text begins."""

    text: bytes
    starts: Numbers
    lengths: Numbers
    bounds: Int64[np.ndarray, " texts+1"]

    def spelled(self, which: Int64[np.ndarray, " some"]) -> list[str]:
        """Some of the words, as text."""
        starts, ends = 2 * self.starts[which], 2 * (self.starts + self.lengths)[which]
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        return [self.text[start:end].decode("utf-16-le") for start, end in places]

    def keys(self) -> Keys:
        """The first code units of each word as numbers, with zeros behind its end."""
        padded = self.text + bytes(2 * _UNITS)
        fours = np.ndarray(len(padded) // 2 - 3, "<u8", padded, strides=(2,))
        return np.stack([fours[self.starts + n] & _MASKS[np.clip(self.lengths - n, 0, 4)] for n in range(0, _UNITS, 4)])


def cut(texts: Sequence[str]) -> Words:
    """The words that WORD finds in well-formed texts."""
    encoded = [text.encode("utf-16-le") for text in texts]
    text = b"".join(encoded)
    white = _WHITE[np.frombuffer(text, dtype="<u2")]
    begins = np.ones(len(white) + 1, dtype=bool)
    begins[1:-1] = white[1:] > white[:-1]
    ends_of_texts = np.concatenate([[0], np.cumsum(lengths_of(encoded))]) // 2
    begins[ends_of_texts] = True
    edges = np.flatnonzero(begins)
    return Words(text, edges[:-1], np.diff(edges), np.searchsorted(edges, ends_of_texts))


class WordTable:
    """The ids of short words: a hash table without probing, so that a word whose slot is taken stays outside.

    The whole word is compared, not its hash alone. Threads may look up words while one adds some: a word's slot is
    filled once, its length last.
    """

    def __init__(self, dtype: IdType) -> None:
        self._lengths = np.zeros(1 << _SLOT_BITS, dtype=np.int64)  # 0 where a slot is free
        self._keys = np.zeros((_COLUMNS, 1 << _SLOT_BITS), dtype=np.uint64)
        self._numbers = np.zeros(1 << _SLOT_BITS, dtype=np.int64)
        self._ids = Ragged(np.empty(0, dtype), np.empty(0, np.int64))  # by number
        self._adding = Lock()

    def ids(self, words: Words, encode: Callable[[list[str]], Ragged]) -> Ragged:
        """The ids of each word; those that are not here are encoded, and as many as have room are added."""
        keys, begins = words.keys(), range(0, max(1, len(words.starts)), _PART)
        return _joined([self._ids_of_part(words, keys, begin, encode) for begin in begins])

    def _ids_of_part(self, words: Words, keys: Keys, begin: int, encode: Callable[[list[str]], Ragged]) -> Ragged:
        keys, lengths = keys[:, begin : begin + _PART], words.lengths[begin : begin + _PART]
        slots = _slots(keys)
        found = self._lengths[slots] == lengths
        for column, key in zip(self._keys, keys, strict=True):
            found &= column[slots] == key
        numbers, known = self._numbers[slots], self._ids  # in this order: see above
        others = np.flatnonzero(~found)
        encoded = encode(words.spelled(begin + others))
        numbers[others] = len(known.lengths) + np.arange(len(others))
        self._add(slots[others], keys[:, others], lengths[others], encoded)
        return _joined([known, encoded]).taken(numbers)

    def _add(self, slots: Numbers, keys: Keys, lengths: Numbers, encoded: Ragged) -> None:
        if not self._adding.acquire(blocking=False):
            return  # another thread adds words, or did when this process was forked
        try:
            fitting = np.flatnonzero((lengths <= _UNITS) & (self._lengths[slots] == 0))
            fitting = fitting[np.unique(slots[fitting], return_index=True)[1]]  # one word a slot
            slots = slots[fitting]
            self._numbers[slots] = len(self._ids.lengths) + np.arange(len(fitting))
            self._ids = _joined([self._ids, encoded.taken(fitting)])
            self._keys[:, slots] = keys[:, fitting]
            self._lengths[slots] = lengths[fitting]
        finally:
            self._adding.release()


def _slots(keys: Keys) -> Numbers:
    mixed = np.zeros(keys.shape[1], dtype=np.uint64)
    for key in keys:
        mixed = (mixed ^ (mixed >> np.uint64(32)) ^ key) * _GOLDEN
    return (mixed >> np.uint64(64 - _SLOT_BITS)).astype(np.int64)


def _joined(all_ids: Sequence[Ragged]) -> Ragged:
    return Ragged(*map(np.concatenate, zip(*all_ids, strict=True)))
