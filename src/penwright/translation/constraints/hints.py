"""Inline hints: a source in which the required translation of a term follows the term, as in "a dog ⟦Hund⟧ barks"."""

import re
from collections.abc import Iterable

OPEN, CLOSE = "\u27e6", "\u27e7"
LONGEST_ENDING = 4  # maximum number of letters that an inflected form has after its stem


def with_hints(text: str, hints: Iterable[tuple[int, str]]) -> str:
    """Return the text with hints. Each hint holds the character offset of a term's end, and the term's translation."""
    for end, target in sorted(hints, reverse=True):
        text = f"{text[:end]} {OPEN}{target}{CLOSE}{text[end:]}"
    return text


def inflected(form: str) -> str:
    """Return a regular expression for the inflected forms of a word: its stem, followed by a few letters."""
    stem = form[: max(4, len(form) - 2)]
    return rf"(?<!\w){re.escape(stem)}\w{{0,{LONGEST_ENDING}}}(?!\w)"
