"""Protected spans: parts of a source that a translation must copy exactly."""

import re
from bisect import bisect
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penwright.errors import UsageError

_UNITS = (
    r"%|‰|°\s?[CFK]?|[kcmµnd]?m[²³23]?|[kmµ]?g|[cmd]?l|[kKMGT]i?[bB]|[kMGT]?bit/s|[kMG]?Hz|[kMG]?Wh?|[km]?V|[km]A|"
    r"km/h|m/s|mph|h|min|ms|ft|lb|oz|px|pt|dpi|bar|h?Pa|kcal|[kM]J|[kM]?N|ppm|€|\$|£|¥|EUR|USD|GBP|CHF|JPY"
)
_UNITS_THAT_ARE_WORDS = "A|B|J|in|s"  # units that must directly follow the number, without a space
# No match starts in the middle of a number; otherwise, long runs of digits would take quadratic time.
_NUMBER = r"[-+]?(?<!\d[.,\u00a0\u202f])\d++(?:[.,\u00a0\u202f]\d++)*+"
# No letter after a space and before an apostrophe is a unit, as in "En 2019 l'entreprise".
_END = r"(?![\w/]|(?<=\s\w)['’]\w)"
PATTERNS = {
    "rule": r"\A[-\s*#=_~|+:]*[*#=_~|][-\s*#=_~|+:]*\Z",  # a whole text such as "* * *" or "|---|---|"
    "code": r"`[^`\n]+`",
    "tag": r"</?[A-Za-z][^<>\n]*>",
    "placeholder": r"\{\{[^{}\n]+\}\}|\$?\{[^{}\s]+\}|%\(\w+\)[sd]|%[sd](?!\w)",
    "URL": r"(?:(?:https?|ftp|file)://|www\.)[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}»”…]",
    "e-mail": r"(?<![\w.+-])[\w.+-]++@\w[\w-]*(?:\.[\w-]*\w)+",
    "number": rf"(?<![\w.,])(?:{_NUMBER}(?:\s?(?:{_UNITS})|(?:{_UNITS_THAT_ARE_WORDS})){_END}|[€$£¥]\s?{_NUMBER})",
}


class ProtectedSpan(NamedTuple):
    """A protected part of a text: from `start` up to, but not including, `end`."""

    start: int
    end: int


class Protection:
    """A finder of protected spans: matches of PATTERNS and of the user's own patterns."""

    def __init__(self, own: Iterable[str] = (), patterns: Iterable[str] = tuple(PATTERNS.values())):
        """Compile the patterns. Raise UsageError for an invalid regular expression."""
        self._own, self._patterns = list(map(_compiled, own)), list(map(_compiled, patterns))

    def spans(self, text: str) -> list[ProtectedSpan]:
        """Return the spans in order, without overlaps.

        A match of the user's patterns is joined with the spans that it overlaps. If two matches of PATTERNS overlap,
        the one of the earlier pattern counts.
        """
        kept: list[ProtectedSpan] = []
        for span in _matches(self._patterns, text):
            place = bisect(kept, span)
            if all(span.end <= o.start or o.end <= span.start for o in kept[max(0, place - 1) : place + 1]):
                kept.insert(place, span)
        joined: list[ProtectedSpan] = []
        for span in sorted([*kept, *_matches(self._own, text)]):
            before = joined.pop() if joined and span.start < joined[-1].end else span
            joined.append(ProtectedSpan(before.start, max(before.end, span.end)))
        return joined


def _matches(patterns: Iterable[re.Pattern[str]], text: str) -> Iterator[ProtectedSpan]:
    """Yield the matches of each pattern that are not empty."""
    spans = (_trimmed(match) for pattern in patterns for match in pattern.finditer(text))
    return (span for span in spans if span.start < span.end)


def _trimmed(match: re.Match[str]) -> ProtectedSpan:
    text = match[0]
    return ProtectedSpan(match.start() + len(text) - len(text.lstrip()), match.end() - len(text) + len(text.rstrip()))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{pattern!r} is not a regular expression: {error}") from None
