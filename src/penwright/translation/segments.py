"""A splitter for texts that are too long for a model.

It splits between sentences if possible, otherwise between clauses, words or characters.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import sentencex

_CLAUSE = re.compile(r"[,;:،؛]\s+|[、，；：]\s*|\s+(?=[-–—]\s)")
_WORD = re.compile(r"\s+")


def segments(text: str, fits: Callable[[str], bool], language: str | None) -> list[str]:
    """Split a text into parts that fit the model. The joined parts equal the text.

    White space between two parts belongs to the first part. A single character is a part even if it does not fit.
    """
    if fits(text):
        return [text]
    return [part for sentence in sentences(text, language) for part in _cut(sentence, fits)]


def sentences(text: str, language: str | None) -> list[str]:
    """Split a text into sentences with the white space around them. The joined sentences equal the text.

    `language` is a code like "de-CH", which selects the rules. None and unknown languages use the rules of English.
    """
    code = (language or "en").lower().replace("_", "-").split("-")[0]
    found: list[str] = list(sentencex.segment(code, text))
    return found if "".join(found) == text else [text]


def keep_spans_whole(spans: Sequence[tuple[int, int]], parts: Sequence[str]) -> list[str]:
    """Split the text again, so that no part ends within a span. A span that was cut becomes a part of its own.

    The spans must not overlap.
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
    """Return the split point nearest to the middle: between clauses if possible, else between words or characters."""
    for pattern in (_CLAUSE, _WORD):
        places = [match.end() for match in pattern.finditer(text) if match.end() < len(text)]
        if places:
            return min(places, key=lambda place: abs(place - len(text) // 2))
    return len(text) // 2
