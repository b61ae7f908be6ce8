"""A translator of Python's `re` patterns into expressions; it rejects features that are not regular."""

import re
import sys
from functools import cache, lru_cache
from typing import Any

import numpy as np
from jaxtyping import Bool

from penwright.decoding.constraints.expressions import N_CODE_POINTS, Expression, Expressions, Span
from penwright.errors import PenwrightError, UsageError
from penwright.text import WITHOUT_SPACES, is_mark

LONGEST_PATTERN = 1_000  # maximum number of characters in a pattern
MAYBE_MARKS = (*range(0x300, 0x20000), *range(0xE0100, 0xE0200))  # code points that may be combining marks
_FLAGS = re.IGNORECASE | re.DOTALL | re.ASCII  # flags that change which characters match
_BEGINS = ("AT_BEGINNING", "AT_BEGINNING_STRING")
_ENDS = ("AT_END", "AT_END_STRING")
_CATEGORIES = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}
_REFUSED = {
    "AT": "\\b, or ^ or $ inside the pattern",
    "ASSERT": "lookahead or lookbehind",
    "ASSERT_NOT": "lookahead or lookbehind",
    "GROUPREF": "backreferences",
    "GROUPREF_EXISTS": "backreferences",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive repetition",
}


def parse_pattern(expressions: Expressions, pattern: str) -> Expression:
    """Return an expression that matches the same texts as `re.fullmatch` with this pattern.

    Raises UsageError for a pattern that is invalid or not supported.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise UsageError(
            f"the pattern has {len(pattern):,} characters; at most {LONGEST_PATTERN:,} are allowed. Shorten it"
        )
    try:
        tree = _parse(pattern)
        return _Reader(expressions).whole(list(tree), tree.state.flags)
    except (re.error, OverflowError) as error:
        raise UsageError(f"the pattern '{pattern}' is not a regular expression: {error}") from None
    except RecursionError:
        raise UsageError("the pattern is nested too deeply: use fewer groups") from None


@lru_cache(maxsize=64)
def characters(pattern: str, flags: int = 0) -> tuple[Span, ...]:
    """Return the characters that a one-character pattern matches, by testing all characters with `re` (30 ms)."""
    every = _every_character()
    return tuple(match.span() for match in re.compile(f"(?:{pattern})+", flags).finditer(every))


@cache
def separators() -> tuple[Span, ...]:
    """Return the characters that end the word before them: all except those for which is_in_word() is true."""
    mask = np.zeros(N_CODE_POINTS, dtype=np.bool_)
    for begin, end in characters(r"\W"):
        mask[begin:end] = True
    mask[[point for point in MAYBE_MARKS if is_mark(chr(point))]] = False
    for begin, end in characters(WITHOUT_SPACES.pattern):
        mask[begin:end] = True
    return _ranges(mask)


def _parse(pattern: str) -> Any:
    """Parse a pattern with Python's own parser, which agrees with `re` on every pattern.

    The parser is private, but Hypothesis uses it too. All other functions of `re` in this module are public.
    """
    try:
        from re import _parser  # type: ignore[attr-defined]  # noqa: PLC0415 - private, with another name in old Pythons
    except ImportError:
        version = ".".join(map(str, sys.version_info[:2]))
        raise PenwrightError(
            f"patterns do not work under Python {version}, whose parser differs: use Python 3.11"
        ) from None
    return _parser.parse(pattern)


class _Reader:
    """A translator from parse trees of regular expressions to `Expression`s."""

    def __init__(self, expressions: Expressions):
        self._make = expressions

    def whole(self, items: list[Any], flags: int) -> Expression:
        """Translate a pattern or an alternative; ^ at its start and $ at its end change nothing and are dropped."""
        items = items[1:] if items and _is_anchor(items[0], _BEGINS) else items
        items = items[:-1] if items and _is_anchor(items[-1], _ENDS) else items
        if len(items) == 1 and str(items[0][0]) == "BRANCH":
            return self._make.either(*(self.whole(list(branch), flags) for branch in items[0][1][1]))
        return self.sequence(items, flags)

    def sequence(self, items: list[Any], flags: int) -> Expression:
        """Translate a sequence of pattern items into an expression."""
        return self._make.then(*(self._item(name, value, flags) for name, value in items))

    def _item(self, name: Any, value: Any, flags: int) -> Expression:
        match str(name):
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" as kind:
                return self._make.one_of(_code_points(kind, value, flags & _FLAGS))
            case "BRANCH":
                return self._make.either(*(self.sequence(list(branch), flags) for branch in value[1]))
            case "SUBPATTERN":
                _, added, removed, inner = value
                return self.sequence(list(inner), (flags | added) & ~removed)
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = value
                part = self.sequence(list(inner), flags)
                return self._make.repeat(part, least, None if str(most) == "MAXREPEAT" else int(most))
            case other:
                what = _REFUSED.get(other, other)
                raise UsageError(
                    f"a pattern cannot contain {what}, which cannot be checked token by token: rewrite the pattern"
                )


def _is_anchor(item: tuple[Any, Any], places: tuple[str, ...]) -> bool:
    return str(item[0]) == "AT" and str(item[1]) in places


def _code_points(kind: str, value: Any, flags: int) -> tuple[Span, ...]:
    """Return the characters that can match a part of a pattern, given that the part matches exactly one character."""
    match kind:
        case "LITERAL":
            points = {value, *_cased_matches(f"[{_escaped(value)}]", flags)} if flags & re.IGNORECASE else {value}
            return tuple((point, point + 1) for point in sorted(points))
        case "NOT_LITERAL":
            return _set_code_points((("NEGATE", None), ("LITERAL", value)), flags)
        case "ANY":
            return characters(".", flags)
    return _set_code_points(tuple((str(name), inner) for name, inner in value), flags)


@lru_cache(maxsize=256)
def _set_code_points(items: tuple[tuple[str, Any], ...], flags: int) -> tuple[Span, ...]:
    """Return the characters of a set. Testing all characters with `re` would be too slow for hundreds of sets."""
    mask = np.zeros(N_CODE_POINTS, dtype=np.bool_)
    for name, value in items:
        match name:
            case "LITERAL":
                mask[value] = True
            case "RANGE":
                mask[value[0] : value[1] + 1] = True
            case "CATEGORY":
                for begin, end in characters(_in_brackets(name, value), flags & ~re.IGNORECASE):
                    mask[begin:end] = True
    if items[0][0] == "NEGATE":
        mask = ~mask
    if flags & re.IGNORECASE:  # IGNORECASE affects only characters that also exist in another case
        mask[list(map(ord, _cased_characters()))] = False
        mask[_cased_matches(f"[{''.join(_in_brackets(*item) for item in items)}]", flags)] = True
    return _ranges(mask)


def _ranges(mask: Bool[np.ndarray, " code_points"]) -> tuple[Span, ...]:
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2)
    return tuple((int(begin), int(end)) for begin, end in edges)


def _in_brackets(name: str, value: Any) -> str:
    """Return an item of a character set as it is written inside the square brackets of a pattern."""
    match name:
        case "NEGATE":
            return "^"
        case "LITERAL":
            return _escaped(value)
        case "RANGE":
            return f"{_escaped(value[0])}-{_escaped(value[1])}"
    *negated, category = str(value).removeprefix("CATEGORY_").split("_")
    letter = _CATEGORIES[category]
    return f"\\{letter.upper() if negated else letter}"


def _escaped(code_point: int) -> str:
    return f"\\U{code_point:08x}"


@cache
def _every_character() -> str:
    return "".join(map(chr, range(N_CODE_POINTS)))


def _cased_matches(pattern: str, flags: int) -> list[int]:
    """Return the characters that match a set and have both upper and lower case."""
    return [ord(character) for character in re.compile(pattern, flags).findall(_cased_characters())]


@cache
def _cased_characters() -> str:
    """Return every character that has both upper and lower case."""
    return "".join(c for c in _every_character() if c.lower() != c or c.upper() != c)
