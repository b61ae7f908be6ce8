"""Fast ways to the ids of the plain library: a table of code points, the bytes themselves, a memory of words."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt
from tokenizers import Tokenizer as LibraryTokenizer

IdType = type[np.uint16] | type[np.uint32]
TokenIds = UInt[np.ndarray, " tokens"]


class Ragged(NamedTuple):
    """The ids of many texts, one after another, and how many belong to each."""

    tokens: TokenIds
    lengths: Int64[np.ndarray, " texts"]


Encoder = Callable[[Sequence[str]], Ragged]

_N_CODE_POINTS = 0x110000

# Words with the white space before them. BPE and unigram never join a visible character to white space after it, so the
# ids of a text are the ids of its words. U+001C to U+001F are white space to Python but not to the library.
_WORDS = re.compile(r"[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|\s+")


def ids_type(vocab_size: int) -> IdType:
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def character_encoder(characters: Mapping[int, str], unknown_id: int, dtype: IdType) -> Encoder:
    """One look into a table for each code point; `characters` are the known ones by their ids."""
    table = np.full(_N_CODE_POINTS, unknown_id, dtype=dtype)
    table[[ord(character) for character in characters.values()]] = list(characters)

    def encode(texts: Sequence[str]) -> Ragged:
        code_points = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
        return Ragged(table[code_points], _lengths(texts))

    return encode


def byte_encoder(dtype: IdType) -> Encoder:
    """The id of a byte is the byte."""

    def encode(texts: Sequence[str]) -> Ragged:
        encoded = [text.encode("utf-8") for text in texts]
        return Ragged(np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(dtype), _lengths(encoded))

    return encode


class WordEncoder:
    """Remembers the ids of words, since most words of a text have been seen before; new ones go to the library.

    The library works on new words with all its threads. Its memory of words is emptied when it grows too large.
    """

    max_characters = 3_000_000  # about 100 MB with the overhead of Python objects

    def __init__(self, library: LibraryTokenizer, dtype: IdType) -> None:
        self._library = library
        self._dtype = dtype
        self._known: dict[str, bytes] = {}
        self._n_characters = 0

    def __call__(self, texts: Sequence[str]) -> Ragged:
        words_of_texts = [_WORDS.findall(text) for text in texts]
        known = self._with_all(words_of_texts)
        encoded = [b"".join(map(known.__getitem__, words)) for words in words_of_texts]
        tokens = np.frombuffer(bytearray().join(encoded), dtype=self._dtype)
        return Ragged(tokens, _lengths(encoded) // tokens.itemsize)

    def _with_all(self, words_of_texts: Iterable[list[str]]) -> Mapping[str, bytes]:
        if self._n_characters > self.max_characters:
            self._known, self._n_characters = {}, 0  # a new dictionary: another thread may be reading the old one
        known = self._known
        new = list(set[str]().union(*words_of_texts).difference(known))
        encodings = self._library.encode_batch_fast(new, add_special_tokens=False)
        known.update((word, np.array(e.ids, self._dtype).tobytes()) for word, e in zip(new, encodings, strict=True))
        self._n_characters += sum(map(len, new))
        return known


def _lengths(texts: Sequence[str] | Sequence[bytes]) -> Int64[np.ndarray, " texts"]:
    return np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
