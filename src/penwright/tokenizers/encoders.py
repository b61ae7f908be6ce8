"""Fast ways to the ids of the plain library: a table of code points, the bytes themselves, a memory of words."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from tokenizers import Tokenizer as LibraryTokenizer

from penwright.tokenizers.ragged import IdType, Ragged, lengths_of
from penwright.tokenizers.words import WORD, WordTable, cut

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
