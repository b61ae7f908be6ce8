"""Novelty of texts: the longest passage copied from the training text, and the share of word n-grams that are new.

The training text is read once, in chunks, and compared with all texts at the same time. It is not indexed.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, UInt64
from numpy.typing import NDArray

from penwright.data.corpus import Document

LENGTHS = range(2, 9)  # lengths of the word n-grams
SHORTEST = 8  # minimum length of a reported passage, in bytes
CARRIED = 2_000  # number of characters to read again with the next chunk, for n-grams that span two chunks
_WORD = re.compile(r"\w+")
_ROW = re.compile(r"([^\w\n])\1{2,}")  # repeated punctuation, such as a line of dashes, is no sign of copying
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
Hashes = UInt64[np.ndarray, " _places"]


@dataclass(frozen=True)
class CopiedPassage:
    """A passage that also occurs in the training text.

    Repeated punctuation, such as a line of dashes, is shortened to two characters.
    """

    text: str
    document: str
    line: int  # number of the line in the document where the passage begins, from 1

    @property
    def n_words(self) -> int:
        """The number of words in the passage."""
        return len(_WORD.findall(self.text))


@dataclass(frozen=True)
class Novelty:
    """The novelty of a text."""

    longest: CopiedPassage | None  # longest copied passage; None if all are shorter than 8 bytes
    new: dict[int, float]  # share of word n-grams that are new, by n; case and punctuation are ignored


@dataclass(frozen=True)
class NoveltyReport:
    """The novelty of generated texts, and of held-out passages of similar length.

    People repeat their own phrases, too. The held-out passages show how much copying is normal.
    """

    texts: tuple[Novelty, ...]
    held_out: tuple[Novelty, ...]


def measure(texts: Sequence[str], training: Iterable[Document]) -> list[Novelty]:
    """Return the novelty of each text compared with all training documents."""
    runs, ngrams = _PassageSearch(texts), _Ngrams(texts)
    for document in training:
        before = ""
        for chunk in document.chunks:
            ngrams.read(before + chunk, begun=bool(before))
            runs.read(document.name, chunk)
            before = (before + chunk)[-CARRIED:]
        runs.end_document()
    return [Novelty(run, new) for run, new in zip(runs.longest(), ngrams.shares(), strict=True)]


def passages(documents: Iterable[Document], n_characters: int, most: int = 50) -> list[str]:
    """Return at most `most` passages of about `n_characters` characters, spread evenly over the documents.

    Parts of words at the ends of a passage are dropped, because they would count as new words.
    """
    whole: list[str] = []
    for document in documents:
        text = "".join(document.chunks)
        starts = range(0, max(1, len(text) - n_characters + 1), max(1, n_characters))
        whole += [_whole_words(text, start, start + n_characters) for start in starts]
    return whole[:: max(1, -(-len(whole) // most))]


def _whole_words(text: str, start: int, end: int) -> str:
    words = list(_WORD.finditer(text, start, end))
    if len(words) > 2:  # keep texts of one or two words whole: without spaces, a "word" can be a whole sentence
        start = words[1].start() if start and _WORD.match(text[start - 1]) and words[0].start() == start else start
        end = words[-2].end() if _WORD.match(text[end : end + 1]) and words[-1].end() == end else end
    return text[start:end]


class _Ngrams:
    """The hashes of the word n-grams of the texts, and whether each n-gram occurs in the training text.

    The hash of an n-gram is a polynomial in the hashes of its words.
    """

    def __init__(self, texts: Sequence[str]):
        self._texts = [dict(_ngrams(_words(text))) for text in texts]
        self._wanted = {n: np.unique(np.concatenate([text[n] for text in self._texts] or [_empty()])) for n in LENGTHS}
        self._found = {n: np.zeros(len(wanted), dtype=bool) for n, wanted in self._wanted.items()}

    def read(self, text: str, begun: bool) -> None:
        """Search a chunk of a document for the n-grams. If `begun`, skip its first word, which was already read."""
        words = _words(text)
        for n, hashes in _ngrams(words[1:] if begun else words):
            places, known = _look_up(self._wanted[n], hashes)
            self._found[n][places[known]] = True

    def shares(self) -> Iterator[dict[int, float]]:
        """Yield, for each text, the share of its n-grams that are not in the training text, by n."""
        for text in self._texts:
            known_ngrams = {n: self._found[n][np.searchsorted(self._wanted[n], hashes)] for n, hashes in text.items()}
            yield {n: float(1 - known.mean()) for n, known in known_ngrams.items() if len(known)}


def _words(text: str) -> Hashes:
    words = _WORD.findall(text.lower())
    return np.fromiter(map(hash, words), dtype=np.int64, count=len(words)).view(np.uint64)


def _ngrams(words: Hashes) -> Iterator[tuple[int, Hashes]]:
    hashes = words
    for n in LENGTHS:
        hashes = hashes[:-1] * _FACTOR + words[n - 1 :] if len(words) >= n else _empty()
        yield n, hashes


def _empty() -> Hashes:
    return np.zeros(0, dtype=np.uint64)


def _look_up(wanted: Hashes, hashes: Hashes) -> tuple[NDArray[np.int64], Bool[np.ndarray, " _places"]]:
    """Return the index of each hash in the sorted `wanted` hashes, and whether the hash is present."""
    if not len(wanted):
        return np.zeros(len(hashes), dtype=np.int64), np.zeros(len(hashes), dtype=bool)
    places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
    return places, wanted[places] == hashes


@dataclass
class _Text:
    """A text and the longest copied passage found in it so far."""

    encoded: bytes
    longest: CopiedPassage | None = None
    n_bytes: int = SHORTEST - 1  # length of the longest copied passage so far


@dataclass
class _PassageSearch:
    """A search for the longest copied passages. Windows of 8 bytes are compared, then of 16, 32 and so on.

    Any matching window reveals a passage, which is then measured by extending the window on both sides.
    """

    given: Sequence[str]
    _document: str = ""
    _held: str = ""  # end of the text so far; repeated punctuation may continue in the next chunk
    _texts: list[_Text] = field(init=False)
    _carried: bytes = b""  # end of the text searched so far; it is searched again with the next chunk
    _line: int = 1  # number of the line in which `_carried` begins

    def __post_init__(self) -> None:
        self._texts = [_Text(_encode(text)) for text in self.given]
        self._most = max((len(text.encoded) for text in self._texts), default=0)
        self._windows = list(self._make_windows())

    def _make_windows(self) -> Iterator[tuple[int, Hashes, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each window size with the sorted hashes of all windows, and the text and position of each window."""
        pieces = [_eight_byte_windows(text.encoded) for text in self._texts]
        size = SHORTEST
        while any(map(len, pieces)):
            hashes = np.concatenate(pieces)
            texts = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
            places = np.concatenate([np.arange(len(piece)) for piece in pieces])
            order = np.argsort(hashes, kind="stable")
            yield size, hashes[order], texts[order], places[order]
            pieces = [_double(piece, size) for piece in pieces]
            size *= 2

    def read(self, document: str, chunk: str) -> None:
        """Search the next chunk of a document."""
        text = self._held + chunk
        kept = len(text.rstrip(text[-1:])) if _ROW.match(3 * text[-1:]) else len(text)
        self._document, self._held = document, text[kept:]
        self._search(self._carried + _encode(text[:kept]))

    def end_document(self) -> None:
        """Search the rest of a document, then reset the search: no passage spans two documents."""
        self._search(self._carried + _encode(self._held))
        self._held, self._carried, self._line = "", b"", 1

    def _search(self, piece: bytes) -> None:
        levels: list[tuple[Hashes, NDArray[np.int64]]] = []
        hashes, alive = _eight_byte_windows(piece), None
        for size, wanted, _, _ in self._windows:
            known = _look_up(wanted, hashes if alive is None else hashes[alive])[1]
            alive = np.flatnonzero(known) if alive is None else alive[known]
            if not len(alive):
                break
            levels.append((hashes[alive], alive))
            hashes = _double(hashes, size)
            alive = alive[alive < len(hashes)]
        for level in reversed(range(len(levels))):
            self._measure(level, *levels[level], piece)
        kept = len(piece) - self._most
        if kept > 0:
            self._line += piece.count(b"\n", 0, kept)
        self._carried = piece[max(0, kept) :]

    def _measure(self, level: int, hashes: Hashes, places: NDArray[np.int64], piece: bytes) -> None:
        """Extend the matches at these positions. Skip texts whose longest passage is at least two windows long."""
        size, wanted, texts, inside = self._windows[level]
        open_texts = np.array([text.n_bytes < min(2 * size, len(text.encoded)) for text in self._texts])
        if not open_texts.any():
            return
        chosen = np.isin(hashes, np.unique(wanted[open_texts[texts]]))
        for ngram, place in zip(hashes[chosen], places[chosen].tolist(), strict=True):
            first, last = np.searchsorted(wanted, ngram, side="left"), np.searchsorted(wanted, ngram, side="right")
            for number, start in {(int(texts[at]), int(inside[at])) for at in range(first, last)}:
                text = self._texts[number]
                if open_texts[number]:
                    self._extend(text, start, piece, place, 2 * size)

    def _extend(self, text: _Text, start: int, piece: bytes, place: int, most: int) -> None:
        """Extend a match by up to `most` bytes on each side, and store it if it is the longest so far."""
        left = _n_common(text.encoded[max(0, start - most) : start][::-1], piece[max(0, place - most) : place][::-1])
        right = _n_common(text.encoded[start : start + most], piece[place : place + most])
        if left + right > text.n_bytes:
            text.n_bytes = left + right
            passage = text.encoded[start - left : start + right].decode("utf-8", errors="ignore")
            text.longest = CopiedPassage(passage, self._document, self._line + piece.count(b"\n", 0, place - left))

    def longest(self) -> list[CopiedPassage | None]:
        """Return the longest copied passage of each text, or None if there is none."""
        return [text.longest for text in self._texts]


def _encode(text: str) -> bytes:
    """Encode a text, with repeated punctuation shortened to two characters."""
    return _ROW.sub(r"\1\1", text).encode("utf-8", errors="replace")


def _eight_byte_windows(text: bytes) -> Hashes:
    """Return all windows of 8 bytes as 64-bit integers."""
    n = max(0, len(text) - SHORTEST + 1)
    single = np.frombuffer(text, dtype=np.uint8)
    hashes = np.zeros(n, dtype=np.uint64)
    for place in range(SHORTEST):
        hashes = hashes << np.uint64(8) | single[place : place + n]
    return hashes


def _double(hashes: Hashes, size: int) -> Hashes:
    """Return the hashes of windows of 2 * `size` bytes, given those of windows of `size` bytes."""
    return (hashes[:-size] ^ hashes[:-size] >> np.uint64(29)) * _FACTOR + hashes[size:]


def _n_common(a: bytes, b: bytes) -> int:
    """Return the length of the common prefix in bytes."""
    n = min(len(a), len(b))
    differs = np.frombuffer(a, np.uint8, n) != np.frombuffer(b, np.uint8, n)
    return int(differs.argmax()) if differs.any() else n
