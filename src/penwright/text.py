"""Text in all scripts: words, width, line breaks, spaces between sentences; numbers and phrases for messages."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import accumulate, islice, pairwise
from typing import NamedTuple
from unicodedata import category, east_asian_width

_HAN = (
    "\u2e80-\u2fdf\u3005-\u3007\u3100-\u312f\u31a0-\u31bf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_KANA = "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f"
# Kana, except the marks that modify the preceding letter.
_LETTERS_OF_KANA = r"\u3040-\u3098\u309b-\u30fb\u30fd-\u312f\u31a0-\u31bf\u31f0-\u31ff\uff65-\uff6f\uff71-\uff9d"
_OTHERS = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df"  # Thai, Lao, Tibetan, Burmese, Khmer, Tai
_WIDE_MARKS = "\u3000-\u303f\ufe30-\ufe4f\uff00-\uff65"  # 、。「」！？ and similar punctuation
HAN, KANA, OTHERS = (re.compile(f"[{ranges}]") for ranges in (_HAN, _KANA, _OTHERS))
CHINESE_OR_JAPANESE = re.compile(f"[{_HAN}{_KANA}{_WIDE_MARKS}]")
WITHOUT_SPACES = re.compile(f"[{_HAN}{_KANA}{_WIDE_MARKS}{_OTHERS}]")
_SIGNS = r"\u3001-\u3004\u3008-\u3020\u302e-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff64"
_SOUTH_EAST = r"\u0e01-\u0e5b\u0e81-\u0edf\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
_BEFORE = r"[\u0e40-\u0e44\u0ec0-\u0ec4]"  # Thai and Lao vowels, which are written before their consonant
_MARKS = (
    r"\u0300-\u036f\u3099\u309a\u30fc\uff70\uff9e\uff9f\ufe00-\ufe0f\u200d\U000e0100-\U000e01ef"
    r"\u0e30-\u0e3a\u0e45-\u0e4e\u0eb0-\u0ebd\u0ec6-\u0ece\u102b-\u103e\u1056-\u1059\u105e-\u1060\u1062-\u1064"
    r"\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b4-\u17d3\u17dd"
)
_JOINING = r"[\u1039\u17d2]"  # Burmese and Khmer signs that stack the next consonant below the previous one
_ALONE = f"[{_HAN}{_LETTERS_OF_KANA}{_SIGNS}{_SOUTH_EAST}]"
WORD = re.compile(rf"{_BEFORE}*{_ALONE}(?:{_JOINING}{_ALONE}|[{_MARKS}])*|(?:(?!{_ALONE})\S)+")
ENDS_ALONE = re.compile(rf"{_ALONE}[{_MARKS}]*$")  # the last character is a word by itself, as in Chinese
# A line never ends after opening punctuation, and never begins with closing punctuation.
_OPENING, _CLOSING = "「『（《〈【〔“‘", "」』）》〉】〕”’、。，．：；？！…—"
_HARD = "\u00a0\u2007\u202f"  # non-breaking spaces
_UNIT = re.compile(  # characters between which a line is never broken
    f"[{_OPENING}]*(?:(?:[^\\s{_HAN}{_KANA}{_WIDE_MARKS}]|[{_HARD}])+|\\S)[{_CLOSING}]*(?:(?![{_HARD}])\\s)*"
)

BETWEEN_TEXTS = "\x1e"  # the "record separator" of ASCII: stands between the two texts of a pair
LONGEST = 60  # longer texts are cut to this many characters in a repr


def words(text: str) -> list[str]:
    """Split a text into words at white space. In scripts without spaces, each character with its marks is a word."""
    return WORD.findall(text)


def first_words(text: str, n: int) -> str:
    """Return the first `n` words of a text, with the white space between them."""
    matches = list(islice(WORD.finditer(text), n))
    return text[matches[0].start() : matches[-1].end()] if matches else ""


def next_word(text: str, piece: str) -> str:
    """Return the first word of a text. In a script without spaces, return `piece` if the text begins with it."""
    first = first_words(text, 1)
    return piece if WITHOUT_SPACES.match(first) and text.startswith(piece) and len(piece.split()) == 1 else first


def is_mark(character: str) -> bool:
    """Return whether this is a combining mark, such as a vowel sign of Hindi or an accent of decomposed text."""
    return character != "" and category(character).startswith("M")


def is_in_word(character: str) -> bool:
    """Return whether a character is part of a word, in scripts with spaces: a letter, a digit, _ or a mark."""
    is_part = character.isalnum() or character == "_" or is_mark(character)
    return is_part and not WITHOUT_SPACES.match(character)


class WordSpan(NamedTuple):
    """The character offsets of a word: from `start` up to, but not including, `end`."""

    start: int
    end: int


def word_spans(text: str) -> list[WordSpan]:
    """Return the spans of the words of a text, as `text.words` splits it."""
    return [WordSpan(*match.span()) for match in WORD.finditer(text)]


def complete_last_word(text: str) -> str:
    """Append a space to complete the last word of a text, unless its script has no spaces."""
    return text if not text or text[-1].isspace() or ENDS_ALONE.search(text) else f"{text} "


def joined(text: str, spans: Sequence[WordSpan], sizes: Iterable[int]) -> list[WordSpan]:
    """Join touching spans unless a token ends at their boundary. `sizes` holds the size of each token in bytes."""
    ends, starts = set(accumulate(sizes)), byte_places(text)
    merged: list[WordSpan] = []
    for span in spans:
        touches = bool(merged) and merged[-1].end == span.start
        if touches and starts[span.start] not in ends:
            merged[-1] = WordSpan(merged[-1].start, span.end)
        else:
            merged.append(span)
    return merged


def span_indices(text: str, spans: Sequence[WordSpan], sizes: Iterable[int]) -> list[int]:
    """Return the index of the span in which each token ends (of the preceding span if it ends between spans).

    `sizes` holds the size of each token in bytes.
    """
    places = byte_places(text)
    starts = [places[span.start] for span in spans]
    return [max(0, bisect_left(starts, end) - 1) for end in accumulate(sizes)]


def byte_places(text: str) -> list[int]:
    """Return the UTF-8 byte offsets of each character and of the end."""
    return [*accumulate((len(character.encode()) for character in text), initial=0)]


def display_width(text: str) -> int:
    """Return the width of a text in terminal columns: 2 per Chinese, Japanese or Korean character, 0 per accent."""
    marks = ("Mn", "Me", "Cf")
    return sum(2 if east_asian_width(letter) in "WF" else category(letter) not in marks for letter in text)


def wrap(text: str, width: int) -> Iterator[str]:
    """Yield lines of at most `width` columns, broken at spaces and between Chinese or Japanese characters."""
    line = ""
    for unit in _UNIT.findall(text):
        if line and display_width(line) + display_width(unit.rstrip()) > width:
            yield line.rstrip()
            line = ""
        line += unit
    if line:
        yield line.rstrip()


def gaps_between(texts: Sequence[str], gaps: Sequence[str], sources: Sequence[str]) -> list[str]:
    """Return the white space after each translation; `gaps` is the white space after each source."""
    sides = zip(pairwise(texts), gaps[:-1], pairwise(sources), strict=True)
    return [*(gap_between(before, gap, after, pair) for (before, after), gap, pair in sides), *gaps[-1:]]


def gap_between(before: str, gap: str, after: str, in_source: tuple[str, str]) -> str:
    """Return the white space between two translations whose sources (`in_source`) are separated by `gap`.

    Chinese and Japanese sentences are never separated by a space. Sentences in scripts with spaces are separated by a
    space even if their sources are not.
    """
    last, first = before[-1:], after[:1]
    if gap == " " and CHINESE_OR_JAPANESE.match(last) and CHINESE_OR_JAPANESE.match(first):
        return ""
    between = in_source[0][-1:], in_source[1][:1]
    if not gap and all(map(WITHOUT_SPACES.match, between)) and not any(map(WITHOUT_SPACES.match, (last, first))):
        return " " if last and first else ""
    return gap


def join_lines(lines: Iterable[str]) -> str:
    """Join lines with spaces. Between characters of a script without spaces, such as Chinese, no space is added."""
    parts: list[str] = []
    for line in filter(None, map(str.strip, lines)):
        if parts and not (WITHOUT_SPACES.match(parts[-1][-1]) and WITHOUT_SPACES.match(line)):
            parts.append(" ")
        parts.append(line)
    return "".join(parts)


def brief(text: str) -> str:
    """Return the repr of a text, shortened if it is long."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}..."


def noted(warnings: Sequence[str]) -> str:
    """Return the number of warnings as a phrase to append; "" without warnings."""
    return f", {len(warnings)} warning{'s' if len(warnings) > 1 else ''}" if warnings else ""


def count(number: int | str, noun: str) -> str:
    """Return a number with its noun: '1 pair', '29,000 pairs'."""
    shown = number if isinstance(number, str) else f"{number:,}"
    return f"{shown} {noun}{'' if shown == '1' else 's'}"


def in_words(number: float) -> str:
    """Round a count, and return it in words: 1.2 million, 530 thousand."""
    for limit, unit in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if number >= limit:
            return f"{rounded(number / limit)} {unit}"
    return f"{number:.0f}"


def amount(value: float, noun: str) -> str:
    """Return a rounded number with its noun: "1 minute", "2.5 minutes"."""
    return count(rounded(value), noun)


def duration(seconds: float) -> str:
    """Format a duration in seconds in readable units: "12 seconds", "1.5 hours"."""
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= 1.5 * size:
            return amount(seconds / size, unit)
    return amount(seconds, "second")


def rounded(value: float) -> str:
    """Round to two significant digits, or to an integer if the number is large: 0.28, 5.3, 532."""
    return f"{value:.2g}" if value < 99.5 else f"{value:,.0f}"


def significant(value: float) -> str:
    """Format a number with six significant digits, and without an exponent: 3.14159, 248124, 0.00001."""
    return f"{Decimal(f'{value:.6g}'):f}"
