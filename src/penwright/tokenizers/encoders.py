"""Fast encoders with the same results as the tokenizers library: code point tables, bytes, and a cache of words."""

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
    """The token ids of many texts, concatenated, and the number of tokens of each."""

    tokens: TokenIds
    lengths: Counts

    def select(self, which: Int64[np.ndarray, " some"]) -> "Ragged":
        """Return the token ids of the given texts, in the given order. A text may occur more than once."""
        lengths = self.lengths[which]
        starts, ends = (np.cumsum(self.lengths) - self.lengths)[which], np.cumsum(lengths)
        places = np.arange(lengths.sum()) + np.repeat(starts - ends + lengths, lengths)
        return Ragged(self.tokens[places], lengths)


def ids_type(vocab_size: int) -> IdType:
    """Return the smallest unsigned dtype for token ids: uint16 or uint32."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def lengths_of(texts: Sequence[str] | Sequence[bytes]) -> Counts:
    """Return the length of each text, in characters or bytes."""
    return np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))


# A word with the white space before it. BPE and unigram never join a visible character to the white space after it, so
# the ids of a text are the ids of its words. U+001C to U+001F are white space in Python, but not in the tokenizers
# library.
WORD = re.compile(r"[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|\s+")

# whether a UTF-16 code unit is white space; every white-space character is a single code unit
_WHITE = np.zeros(1 << 16, dtype=bool)
_WHITE[[*b"\t\n\v\f\r ", 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]] = True

_COLUMNS = 3  # number of integers per key; each packs four UTF-16 code units, so words have at most 12 units
_UNITS = 4 * _COLUMNS
_MASKS = np.array([(1 << 16 * n) - 1 for n in range(5)], dtype=np.uint64)  # mask n keeps the first n UTF-16 code units
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # multiplier of Fibonacci hashing (Knuth 1973)
_SLOT_BITS = 19
_CHUNK = 1 << 15  # number of words per chunk; the words of one chunk are cached before the next is looked up

Numbers = Int64[np.ndarray, " words"]
Keys = UInt64[np.ndarray, "columns words"]


class Words(NamedTuple):
    """Words of concatenated texts, as offsets in UTF-16 code units. Text i begins with the word `bounds[i]`."""

    text: bytes
    starts: Numbers
    lengths: Numbers
    bounds: Int64[np.ndarray, " texts+1"]

    def spelled(self, which: Int64[np.ndarray, " some"]) -> list[str]:
        """Return the words with these indices as strings."""
        starts, ends = 2 * self.starts[which], 2 * (self.starts + self.lengths)[which]
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        return [self.text[start:end].decode("utf-16-le") for start, end in places]

    def keys(self) -> Keys:
        """Return the first code units of each word, zero-padded and packed into integers, as keys of the hash table."""
        padded = self.text + bytes(2 * _UNITS)
        fours = np.ndarray(len(padded) // 2 - 3, "<u8", padded, strides=(2,))
        return np.stack([fours[self.starts + n] & _MASKS[np.clip(self.lengths - n, 0, 4)] for n in range(0, _UNITS, 4)])


def split_words(texts: Sequence[str]) -> Words:
    """Split well-formed texts into the words that WORD matches."""
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
    """A cache of the token ids of short words: a hash table without probing. Words whose slot is taken are not cached.

    Lookups compare the whole word, not only its hash. Threads may look up words while one thread adds some: each slot
    is filled once, and its length is written last.
    """

    def __init__(self, dtype: IdType) -> None:
        self._lengths = np.zeros(1 << _SLOT_BITS, dtype=np.int64)  # lengths of the cached words; 0 in free slots
        self._keys = np.zeros((_COLUMNS, 1 << _SLOT_BITS), dtype=np.uint64)
        self._numbers = np.zeros(1 << _SLOT_BITS, dtype=np.int64)
        self._ids = Ragged(np.empty(0, dtype), np.empty(0, np.int64))  # token ids of the cached words, by word number
        self._adding = Lock()

    def ids(self, words: Words, encode: Callable[[list[str]], Ragged]) -> Ragged:
        """Return the ids of each word; encode words that are not cached, and cache those whose slot is free."""
        keys, begins = words.keys(), range(0, max(1, len(words.starts)), _CHUNK)
        return _concatenated([self._ids_of_chunk(words, keys, begin, encode) for begin in begins])

    def _ids_of_chunk(self, words: Words, keys: Keys, begin: int, encode: Callable[[list[str]], Ragged]) -> Ragged:
        keys, lengths = keys[:, begin : begin + _CHUNK], words.lengths[begin : begin + _CHUNK]
        slots = _slots(keys)
        hits = self._lengths[slots] == lengths
        for column, key in zip(self._keys, keys, strict=True):
            hits &= column[slots] == key
        numbers, known = self._numbers[slots], self._ids  # must be read after the lengths, which _add() writes last
        others = np.flatnonzero(~hits)
        encoded = encode(words.spelled(begin + others))
        numbers[others] = len(known.lengths) + np.arange(len(others))
        self._add(slots[others], keys[:, others], lengths[others], encoded)
        return _concatenated([known, encoded]).select(numbers)

    def _add(self, slots: Numbers, keys: Keys, lengths: Numbers, encoded: Ragged) -> None:
        if not self._adding.acquire(blocking=False):
            return  # another thread is adding words, or was when this process was forked
        try:
            fitting = np.flatnonzero((lengths <= _UNITS) & (self._lengths[slots] == 0))
            fitting = fitting[np.unique(slots[fitting], return_index=True)[1]]  # keep one word per slot
            slots = slots[fitting]
            self._numbers[slots] = len(self._ids.lengths) + np.arange(len(fitting))
            self._ids = _concatenated([self._ids, encoded.select(fitting)])
            self._keys[:, slots] = keys[:, fitting]
            self._lengths[slots] = lengths[fitting]
        finally:
            self._adding.release()


def _slots(keys: Keys) -> Numbers:
    mixed = np.zeros(keys.shape[1], dtype=np.uint64)
    for key in keys:
        mixed = (mixed ^ (mixed >> np.uint64(32)) ^ key) * _GOLDEN
    return (mixed >> np.uint64(64 - _SLOT_BITS)).astype(np.int64)


def _concatenated(all_ids: Sequence[Ragged]) -> Ragged:
    return Ragged(*map(np.concatenate, zip(*all_ids, strict=True)))


Encoder = Callable[[Sequence[str]], Ragged]

_N_CODE_POINTS = 0x110000
_SMALL = 10_000  # texts with at most this many characters are encoded word by word, which is faster


def character_encoder(characters: Mapping[int, str], unknown_id: int, dtype: IdType) -> Encoder:
    """Return an encoder that looks up each code point in a table; `characters` maps ids to characters."""
    table = np.full(_N_CODE_POINTS, unknown_id, dtype=dtype)
    table[[ord(character) for character in characters.values()]] = list(characters)

    def encode(texts: Sequence[str]) -> Ragged:
        code_points = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
        return Ragged(table[code_points], lengths_of(texts))

    return encode


def byte_encoder(dtype: IdType) -> Encoder:
    """Return an encoder that uses the value of each byte as its id."""

    def encode(texts: Sequence[str]) -> Ragged:
        encoded = [text.encode("utf-8") for text in texts]
        return Ragged(np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(dtype), lengths_of(encoded))

    return encode


class WordEncoder:
    """An encoder that caches the ids of words; the tokenizers library encodes new words, in parallel.

    The cache is cleared when it grows too large.
    """

    max_characters = 3_000_000  # maximum number of characters in the cache: about 100 MB, with Python's overhead

    def __init__(self, library: LibraryTokenizer, dtype: IdType) -> None:
        self._library = library
        self._dtype = dtype
        self._clear()

    def __call__(self, texts: Sequence[str]) -> Ragged:
        """Return the token ids of the texts."""
        if sum(map(len, texts)) <= _SMALL:
            words_of_texts = [WORD.findall(text) for text in texts]
            encode = self._lookup_with(words_of_texts)
            return self._to_ragged([b"".join(map(encode, words)) for words in words_of_texts])
        words = split_words(texts)
        tokens, lengths = self._table.ids(words, self._encode_words)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        return Ragged(tokens, np.diff(ends[words.bounds]))

    def _encode_words(self, words: list[str]) -> Ragged:
        return self._to_ragged(list(map(self._lookup_with([words]), words)))

    def _to_ragged(self, encoded: Sequence[bytes]) -> Ragged:
        tokens = np.frombuffer(bytearray().join(encoded), dtype=self._dtype)
        return Ragged(tokens, lengths_of(encoded) // tokens.itemsize)

    def _lookup_with(self, words_of_texts: Iterable[list[str]]) -> Callable[[str], bytes]:
        """Return a function that looks up the ids of these words, even after another thread has cleared the cache."""
        if self._n_characters > self.max_characters:
            self._clear()
        known = self._known
        words = set[str]().union(*words_of_texts)
        new = [word for word in words if word not in known]  # set difference fails if another thread adds words
        encodings = self._library.encode_batch_fast(new, add_special_tokens=False)
        known.update((word, np.array(e.ids, self._dtype).tobytes()) for word, e in zip(new, encodings, strict=True))
        self._n_characters += sum(map(len, new))
        return known.__getitem__

    def _clear(self) -> None:
        """Clear the cache by replacing its tables, as another thread may still be reading the old ones."""
        self._known: dict[str, bytes] = {}
        self._table = WordTable(self._dtype)
        self._n_characters = 0


def _spelling() -> list[str]:
    """Return a character for each byte: its Latin-1 character if printable, otherwise one of 68 from U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


SPELLING = _spelling()
BYTE_OF = {character: bytes([byte]) for byte, character in enumerate(SPELLING)}


def bytes_of(piece: str) -> bytes:
    """Return the bytes that a piece of the vocabulary represents."""
    return b"".join(BYTE_OF[character] for character in piece)
