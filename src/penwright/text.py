"""What a text's letters tell of how it is written: with spaces between words or without, how wide, where it breaks."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from unicodedata import category, east_asian_width

_HAN = (
    "\u2e80-\u2fdf\u3005-\u3007\u3100-\u312f\u31a0-\u31bf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_KANA = "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f"
# without the marks that go on with a letter
_LETTERS_OF_KANA = r"\u3040-\u3098\u309b-\u30fb\u30fd-\u312f\u31a0-\u31bf\u31f0-\u31ff\uff65-\uff6f\uff71-\uff9d"
_OTHERS = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df"  # Thai, Lao, Tibetan, Burmese, Khmer, Tai
_WIDE_MARKS = "\u3000-\u303f\ufe30-\ufe4f\uff00-\uff65"  # 、。「」！？ and their like
HAN, KANA, OTHERS = (re.compile(f"[{ranges}]") for ranges in (_HAN, _KANA, _OTHERS))
CHINESE_OR_JAPANESE = re.compile(f"[{_HAN}{_KANA}{_WIDE_MARKS}]")
WITHOUT_SPACES = re.compile(f"[{_HAN}{_KANA}{_WIDE_MARKS}{_OTHERS}]")
_SIGNS = r"\u3001-\u3004\u3008-\u3020\u302e-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff64"
_SOUTH_EAST = r"\u0e01-\u0e5b\u0e81-\u0edf\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
_BEFORE = r"[\u0e40-\u0e44\u0ec0-\u0ec4]"  # vowels that are written before their consonant
_MARKS = (
    r"\u0300-\u036f\u3099\u309a\u30fc\uff70\uff9e\uff9f\ufe00-\ufe0f\u200d\U000e0100-\U000e01ef"
    r"\u0e30-\u0e3a\u0e45-\u0e4e\u0eb0-\u0ebd\u0ec6-\u0ece\u102b-\u103e\u1056-\u1059\u105e-\u1060\u1062-\u1064"
    r"\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b4-\u17d3\u17dd"
)
_JOINING = r"[\u1039\u17d2]"  # puts the next consonant below the last
_ALONE = f"[{_HAN}{_LETTERS_OF_KANA}{_SIGNS}{_SOUTH_EAST}]"
WORD = re.compile(rf"{_BEFORE}*{_ALONE}(?:{_JOINING}{_ALONE}|[{_MARKS}])*|(?:(?!{_ALONE})\S)+")
ENDS_ALONE = re.compile(rf"{_ALONE}[{_MARKS}]*$")  # with a character that is a word of its own
_OPENING, _CLOSING = "「『（《〈【〔“‘", "」』）》〉】〕”’、。，．：；？！…—"  # that begin, and that end, no line
_HARD = "\u00a0\u2007\u202f"  # spaces at which no line ends
_UNIT = re.compile(  # is not broken
    f"[{_OPENING}]*(?:(?:[^\\s{_HAN}{_KANA}{_WIDE_MARKS}]|[{_HARD}])+|\\S)[{_CLOSING}]*(?:(?![{_HARD}])\\s)*"
)


def words(text: str) -> list[str]:
    """What white space parts; in scripts that have none, each character with the marks that belong to it."""
    return WORD.findall(text)


def first_words(text: str, n: int) -> str:
    """The beginning of a text: so many words, with the white space between them."""
    found = list(islice(WORD.finditer(text), n))
    return text[found[0].start() : found[-1].end()] if found else ""


def next_word(text: str, piece: str) -> str:
    """The first word of a text; in a script without spaces, what of it the first `piece` holds."""
    first = first_words(text, 1)
    return piece if WITHOUT_SPACES.match(first) and text.startswith(piece) and len(piece.split()) == 1 else first


def columns(text: str) -> int:
    """How wide a text is on a terminal: two for each Chinese, Japanese or Korean character, none for an accent."""
    marks = ("Mn", "Me", "Cf")
    return sum(2 if east_asian_width(letter) in "WF" else category(letter) not in marks for letter in text)


def wrapped(text: str, width: int) -> Iterator[str]:
    """Lines of so many columns, broken at spaces and between Chinese or Japanese characters."""
    line = ""
    for unit in _UNIT.findall(text):
        if line and columns(line) + columns(unit.rstrip()) > width:
            yield line.rstrip()
            line = ""
        line += unit
    if line:
        yield line.rstrip()


def gaps_between(texts: Sequence[str], gaps: Sequence[str], sources: Sequence[str]) -> list[str]:
    """The white space after each translation, where `gaps` is that after their sources."""
    sides = zip(pairwise(texts), gaps[:-1], pairwise(sources), strict=True)
    return [*(joined(before, gap, after, pair) for (before, after), gap, pair in sides), *gaps[-1:]]


def joined(before: str, gap: str, after: str, in_source: tuple[str, str]) -> str:
    """The white space between two translations, whose sources (`in_source`) had `gap` between them.

    Chinese and Japanese sentences follow each other without a space; of others, two that their sources had without one
    need it.
    """
    last, first = before[-1:], after[:1]
    if gap == " " and CHINESE_OR_JAPANESE.match(last) and CHINESE_OR_JAPANESE.match(first):
        return ""
    between = in_source[0][-1:], in_source[1][:1]
    if not gap and all(map(WITHOUT_SPACES.match, between)) and not any(map(WITHOUT_SPACES.match, (last, first))):
        return " " if last and first else ""
    return gap
