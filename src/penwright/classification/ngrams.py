"""TF-IDF values of word and character n-grams. They depend only on the text and a stored vocabulary of hashes.

N-grams are hashed to 48 bits, so that NumPy can count them without a Python loop. Collisions are rare enough to ignore.
Exported classifiers contain a copy of this module (formats/onnx), so it needs nothing but NumPy.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penwright.text import BETWEEN_TEXTS

Hashes = NDArray[np.uint64]
Indices = NDArray[np.int64]

WORDS, CHARACTERS = 3, (2, 5)  # maximum number of words per n-gram; minimum and maximum number of characters per n-gram
TOKEN = re.compile(r"\w+|[^\w\s]")  # a word or a punctuation mark, which counts as a word
MOST_CHARACTERS = 50_000  # maximum number of characters to read from a text, or from each text of a pair
CHUNK_CHARACTERS, CHUNK_TEXTS = 400_000, 1 << 14  # maximum number of characters, and of texts, per chunk
HASH_BITS = 48  # number of bits in an n-gram's hash; the highest bit distinguishes word n-grams from character n-grams
HASH_MASK, WORD_BIT = (1 << HASH_BITS) - 1, 1 << (HASH_BITS - 1)
MERGE_AT = 1 << 23  # number of accumulated entries at which the counts of equal n-grams are merged
_ODD = 0x9E3779B97F4A7C15  # base of the polynomial hash; _INVERSE is the inverse of _ODD modulo 2**64
_INVERSE = pow(_ODD, -1, 1 << 64)


class Counts(NamedTuple):
    """The counts of n-grams, sorted by text (row). In each row, character n-grams come before word n-grams."""

    rows: Indices
    keys: Indices  # hashes of n-grams
    counts: Indices
    n_rows: int


def count_ngrams(texts: Sequence[str]) -> Counts:
    """Count the n-grams of at most CHUNK_TEXTS texts.

    The n-grams of the first text of a pair, of the second text, and of their common words are counted separately.
    """
    views = [(row, view, part) for row, text in enumerate(texts) for view, part in enumerate(_views(text))]
    row_of, view_of = (np.array([each[place] for each in views], np.int64) for place in range(2))
    whole = [f" {part} " for _, _, part in views]
    places = np.repeat(np.arange(len(whole)), [len(part) for part in whole])
    joined = "".join(whole)
    spans = _Spans(joined)
    parts = [*_character_ngrams(spans, places), *_word_ngrams(spans, places, joined)]
    packed = np.concatenate([(row_of[place] << HASH_BITS) | _of_view(key, view_of[place]) for place, key in parts])
    packed, counts = np.unique(packed, return_counts=True)
    return Counts(packed >> HASH_BITS, packed & HASH_MASK, counts, len(texts))


def _views(text: str) -> list[str]:
    """Return the text in lower case, with white space collapsed. For a pair, add the words that both texts contain."""
    texts = [" ".join(part[:MOST_CHARACTERS].lower().split()) for part in text.split(BETWEEN_TEXTS)]
    if len(texts) == 1:
        return texts
    known = set(TOKEN.findall(texts[0]))
    return [*texts, " ".join(word for word in TOKEN.findall(texts[-1]) if word in known)]


def _of_view(keys: Hashes, views: Indices) -> Indices:
    """Give the same n-gram different keys in the first text, the second text and the words that both texts share."""
    others = (_scramble(keys + views.astype(np.uint64)) & np.uint64(WORD_BIT - 1)) | (keys & np.uint64(WORD_BIT))
    return np.where(views == 0, keys, others).astype(np.int64)


class _Spans:
    """A polynomial hash of any substring of a text, computed from prefix sums over the text's code points."""

    def __init__(self, text: str):
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        n = len(codes)
        powers, self._inverse = _powers(_ODD, n), _powers(_INVERSE, n)
        terms = _scramble(codes.astype(np.uint64) + np.uint64(1)) * powers[:-1]
        self._sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])

    def hashes(self, begins: Indices, ends: Indices) -> Hashes:
        """Return the hash of each substring, given the positions of its start and end."""
        return _scramble((self._sums[ends] - self._sums[begins]) * self._inverse[begins])


def _powers(base: int, n: int) -> Hashes:
    """Return the powers of `base` with exponents from 0 to n, modulo 2**64."""
    factors = np.full(n + 1, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _scramble(values: Hashes) -> Hashes:
    """Mix the bits of each hash (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _character_ngrams(spans: _Spans, rows: Indices) -> Iterator[tuple[Indices, Hashes]]:
    """Yield, for each length, the rows (text numbers) and hashes of the character n-grams. Spaces count, too."""
    for n in range(CHARACTERS[0], CHARACTERS[1] + 1):
        begins = np.flatnonzero(rows[: max(0, len(rows) - n + 1)] == rows[n - 1 :])
        yield rows[begins], spans.hashes(begins, begins + n) & np.uint64(WORD_BIT - 1)


def _word_ngrams(spans: _Spans, rows: Indices, text: str) -> Iterator[tuple[Indices, Hashes]]:
    """Yield, for each length, the rows (text numbers) and hashes of the word n-grams."""
    tokens = np.array([match.span() for match in TOKEN.finditer(text)], dtype=np.int64).reshape(-1, 2)
    words, rows = spans.hashes(tokens[:, 0], tokens[:, 1]), rows[tokens[:, 0]]
    hashes = words
    for n in range(1, WORDS + 1):
        if n > 1:
            hashes = _scramble(hashes[:-1] * np.uint64(_ODD) + words[n - 1 :])
        same = rows[: len(hashes)] == rows[n - 1 :][: len(hashes)]
        yield rows[: len(hashes)][same], (hashes[same] & np.uint64(HASH_MASK)) | np.uint64(WORD_BIT)


def chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield the texts in lists of bounded size."""
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += min(len(text), MOST_CHARACTERS)
        if size >= CHUNK_CHARACTERS or len(chunk) == CHUNK_TEXTS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class TfIdf(NamedTuple):
    """The TF-IDF values of some texts. Row i holds the `columns` and `values` from offsets[i] to offsets[i + 1]."""

    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    offsets: NDArray[np.int32]


class NgramVectorizer(NamedTuple):
    """A vectorizer that turns texts into rows of TF-IDF values, with a vocabulary of n-grams."""

    keys: Indices  # hashes in ascending order; those of word n-grams come last, since their highest bit is set
    idf: NDArray[np.float32]  # inverse document frequencies, which a fitted classifier multiplies by label weights

    @classmethod
    def fit(cls, texts: Sequence[str], most_ngrams: int, most_with_rare: int) -> "NgramVectorizer":
        """Collect the n-grams of some texts. Keep at most `most_ngrams`: those that occur in the most texts.

        If there are more than `most_with_rare` n-grams, drop those that occur in only one text.
        """
        keys, n_texts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        waiting: list[tuple[Indices, Indices]] = []
        for chunk in chunks(texts):
            waiting.append(np.unique(count_ngrams(chunk).keys, return_counts=True))
            if sum(len(counts) for counts, _ in waiting) >= MERGE_AT:
                keys, n_texts = _merged([(keys, n_texts), *waiting])
                waiting = []
        keys, n_texts = _merged([(keys, n_texts), *waiting])
        kept = n_texts >= (2 if len(keys) > most_with_rare else 1)
        if kept.sum() > most_ngrams:
            kept &= n_texts > np.partition(n_texts, -most_ngrams)[-most_ngrams]
        idf = 1 + np.log((1 + len(texts)) / (1 + n_texts[kept]))
        return cls(keys[kept], idf.astype(np.float32))

    def rows(self, texts: Sequence[str]) -> TfIdf:
        """Return a row of TF-IDF values for each text. N-grams outside the vocabulary are ignored.

        In each row, word n-grams and character n-grams are normalized separately to unit length.
        """
        columns, values, lengths = zip(*map(self._rows, chunks(texts)), strict=True)
        offsets = np.cumsum(np.concatenate([[0], *lengths]))
        return TfIdf(np.concatenate(columns), np.concatenate(values), offsets.astype(np.int32))

    def _rows(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.float32], Indices]:
        """Return the columns, the values and the length of each row."""
        ngrams = count_ngrams(texts)
        places = np.searchsorted(self.keys, ngrams.keys)
        known = self.keys[np.minimum(places, len(self.keys) - 1)] == ngrams.keys if len(self.keys) else places < 0
        places, groups = places[known], 2 * ngrams.rows[known] + (ngrams.keys[known] >= WORD_BIT)
        values = (1 + np.log(ngrams.counts[known])) * self.idf[places]
        values /= np.sqrt(np.bincount(groups, values * values, 2 * ngrams.n_rows))[groups]
        lengths = np.bincount(ngrams.rows[known], minlength=ngrams.n_rows)
        return places.astype(np.int32), values.astype(np.float32), lengths


def _merged(counts: Sequence[tuple[Indices, Indices]]) -> tuple[Indices, Indices]:
    """Add up the counts of equal keys. Return the keys in ascending order, and their counts."""
    keys, n = (np.concatenate(part) for part in zip(*counts, strict=True))
    order = np.argsort(keys, kind="stable")
    keys, n = keys[order], n[order]
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[firsts], np.add.reduceat(n, firsts) if len(firsts) else n
