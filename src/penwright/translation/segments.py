"""Cuts a text that is too long for a model where it hurts least: between sentences, clauses, words, characters."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import sentencex

_CLAUSE = re.compile(r"[,;:،؛]\s+|[、，；：]\s*|\s+(?=[-–—]\s)")
_WORD = re.compile(r"\s+")


def segments(text: str, fits: Callable[[str], bool], language: str | None) -> list[str]:
    """Parts that fit and together give the text again; the white space between two parts ends the first.

    A single character is never cut, even when it does not fit.
    """
    if fits(text):
        return [text]
    return [part for sentence in sentences(text, language) for part in _cut(sentence, fits)]


def sentences(text: str, language: str | None) -> list[str]:
    """Parts that together give the text again, each a sentence with the white space around it.

    `language` is a code such as "de-CH", for what is known about its sentences; of an unknown one, they end as in
    English.
    """
    code = (language or "en").lower().replace("_", "-").split("-")[0]
    found: list[str] = list(sentencex.segment(code, text))
    return found if "".join(found) == text else [text]


def around(spans: Sequence[tuple[int, int]], parts: Sequence[str]) -> list[str]:
    """Return the same text in parts where no span is cut: those that were are parts by themselves.

    The spans do not overlap.
    """
    cuts = [0, *accumulate(map(len, parts))]
    dropped, added = set[int](), set[int]()
    for start, end in spans:
        inside = cuts[bisect_right(cuts, start) : bisect_left(cuts, end)]
        if inside:
            dropped.update(inside)
            added.update((start, end))
    text = "".join(parts)
    return [text[start:end] for start, end in pairwise(sorted({*cuts} - dropped | added))]


def _cut(text: str, fits: Callable[[str], bool]) -> list[str]:
    if len(text) < 2 or fits(text):
        return [text]
    middle = _border(text)
    return _cut(text[:middle], fits) + _cut(text[middle:], fits)


def _border(text: str) -> int:
    """The best border nearest to the middle."""
    for pattern in (_CLAUSE, _WORD):
        places = [match.end() for match in pattern.finditer(text) if match.end() < len(text)]
        if places:
            return min(places, key=lambda place: abs(place - len(text) // 2))
    return len(text) // 2
