"""Fast encoders that return the ids of the plain library: code point tables, bytes, and a table of known words."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt, UInt64
from tokenizers import Tokenizer as LibraryTokenizer

IdType = type[np.uint16] | type[np.uint32]
TokenIds = UInt[np.ndarray, " tokens"]
Counts = Int64[np.ndarray, " texts"]


class Ragged(NamedTuple):
    """The ids of many texts, one after another, and how many belong to each."""

    tokens: TokenIds
    lengths: Counts

    def taken(self, which: Int64[np.ndarray, " some"]) -> "Ragged":
        """The ids of some of the texts, in the order asked for, one perhaps several times."""
        lengths = self.lengths[which]
        starts, ends = (np.cumsum(self.lengths) - self.lengths)[which], np.cumsum(lengths)
        places = np.arange(lengths.sum()) + np.repeat(starts - ends + lengths, lengths)
        return Ragged(self.tokens[places], lengths)


def ids_type(vocab_size: int) -> IdType:
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def lengths_of(texts: Sequence[str] | Sequence[bytes]) -> Counts:
    return np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))


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


Encoder = Callable[[Sequence[str]], Ragged]

_N_CODE_POINTS = 0x110000
_FEW = 10_000  # characters: word by word is sooner done


def character_encoder(characters: Mapping[int, str], unknown_id: int, dtype: IdType) -> Encoder:
    """One look into a table for each code point; `characters` are the known ones by their ids."""
    table = np.full(_N_CODE_POINTS, unknown_id, dtype=dtype)
    table[[ord(character) for character in characters.values()]] = list(characters)

    def encode(texts: Sequence[str]) -> Ragged:
        code_points = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
        return Ragged(table[code_points], lengths_of(texts))

    return encode


def byte_encoder(dtype: IdType) -> Encoder:
    """The id of a byte is the byte."""

    def encode(texts: Sequence[str]) -> Ragged:
        encoded = [text.encode("utf-8") for text in texts]
        return Ragged(np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(dtype), lengths_of(encoded))

    return encode


class WordEncoder:
    """Remembers the ids of words, since most words of a text have been seen before; new ones go to the library.

    The library works on new words with all its threads. Its memory of words is emptied when it grows too large.
    """

    max_characters = 3_000_000  # about 100 MB with the overhead of Python objects

    def __init__(self, library: LibraryTokenizer, dtype: IdType) -> None:
        self._library = library
        self._dtype = dtype
        self._forget()

    def __call__(self, texts: Sequence[str]) -> Ragged:
        if sum(map(len, texts)) <= _FEW:
            words_of_texts = [WORD.findall(text) for text in texts]
            known = self._with_all(words_of_texts)
            return self._ragged([b"".join(map(known.__getitem__, words)) for words in words_of_texts])
        words = cut(texts)
        tokens, lengths = self._table.ids(words, self._of_words)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        return Ragged(tokens, np.diff(ends[words.bounds]))

    def _of_words(self, words: list[str]) -> Ragged:
        return self._ragged(list(map(self._with_all([words]).__getitem__, words)))

    def _ragged(self, encoded: Sequence[bytes]) -> Ragged:
        tokens = np.frombuffer(bytearray().join(encoded), dtype=self._dtype)
        return Ragged(tokens, lengths_of(encoded) // tokens.itemsize)

    def _with_all(self, words_of_texts: Iterable[list[str]]) -> Mapping[str, bytes]:
        if self._n_characters > self.max_characters:
            self._forget()
        known = self._known
        new = list(set[str]().union(*words_of_texts).difference(known))
        encodings = self._library.encode_batch_fast(new, add_special_tokens=False)
        known.update((word, np.array(e.ids, self._dtype).tobytes()) for word, e in zip(new, encodings, strict=True))
        self._n_characters += sum(map(len, new))
        return known

    def _forget(self) -> None:
        """Begin anew, in new tables: another thread may be reading the old ones."""
        self._known: dict[str, bytes] = {}
        self._table = WordTable(self._dtype)
        self._n_characters = 0
