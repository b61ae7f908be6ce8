"""What Python's `re` means by a pattern, as an expression; what is no regular expression in it is refused."""

import re
import sys
from functools import cache, lru_cache
from typing import Any

import numpy as np

from penwright.decoding.constraints.expressions import N_CODE_POINTS, Expression, Expressions, Span
from penwright.errors import PenwrightError, UsageError

LONGEST = 1_000  # characters of a pattern
_FLAGS = re.IGNORECASE | re.DOTALL | re.ASCII  # that change which characters are meant
_BEGINS = ("AT_BEGINNING", "AT_BEGINNING_STRING")
_ENDS = ("AT_END", "AT_END_STRING")
_CATEGORIES = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}
_REFUSED = {
    "AT": "\\b, and ^ or $ inside the pattern",
    "ASSERT": "looking ahead or behind",
    "ASSERT_NOT": "looking ahead or behind",
    "GROUPREF": "referring back to a group",
    "GROUPREF_EXISTS": "referring back to a group",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive repetition",
}


def parse_pattern(expressions: Expressions, pattern: str) -> Expression:
    """The texts that `re.fullmatch` finds the pattern in; raises UsageError for what is none or cannot be followed."""
    if len(pattern) > LONGEST:
        raise UsageError(f"the pattern has {len(pattern):,} characters; at most {LONGEST:,} are read")
    try:
        tree = _parsed(pattern)
        return _Reader(expressions).whole(list(tree), tree.state.flags)
    except (re.error, OverflowError) as error:
        raise UsageError(f"the pattern '{pattern}' is not a regular expression: {error}") from None
    except RecursionError:
        raise UsageError("the pattern is nested too deeply") from None


@lru_cache(maxsize=64)
def characters(pattern: str, flags: int = 0) -> tuple[Span, ...]:
    """Return the characters that a pattern such as \\w means, by asking `re` about every one: 30 ms."""
    every = _every_character()
    return tuple(match.span() for match in re.compile(f"(?:{pattern})+", flags).finditer(every))


def _parsed(pattern: str) -> Any:
    """The tree of a pattern, by Python's own parser: private, but no other means the same by every pattern.

    Hypothesis reads patterns through it too. All else that is asked of `re` here is public.
    """
    try:
        from re import _parser  # type: ignore[attr-defined]  # noqa: PLC0415
    except ImportError:
        version = ".".join(map(str, sys.version_info[:2]))
        raise PenwrightError(
            f"patterns for writing cannot be read under Python {version}, whose parser is another; they can under 3.11"
        ) from None
    return _parser.parse(pattern)


class _Reader:
    """Goes through the tree of a pattern."""

    def __init__(self, expressions: Expressions):
        self._make = expressions

    def whole(self, items: list[Any], flags: int) -> Expression:
        """The whole pattern, or an alternative of it: ^ and $ around it say nothing that is not so anyway."""
        items = items[1:] if items and _is_at(items[0], _BEGINS) else items
        items = items[:-1] if items and _is_at(items[-1], _ENDS) else items
        if len(items) == 1 and str(items[0][0]) == "BRANCH":
            return self._make.either(*(self.whole(list(branch), flags) for branch in items[0][1][1]))
        return self.sequence(items, flags)

    def sequence(self, items: list[Any], flags: int) -> Expression:
        return self._make.then(*(self._item(name, value, flags) for name, value in items))

    def _item(self, name: Any, value: Any, flags: int) -> Expression:
        match str(name):
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" as kind:
                return self._make.one_of(_meant(kind, value, flags & _FLAGS))
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
                raise UsageError(f"a pattern for writing cannot hold {what}: it must tell what may come next")


def _is_at(item: tuple[Any, Any], places: tuple[str, ...]) -> bool:
    return str(item[0]) == "AT" and str(item[1]) in places


def _meant(kind: str, value: Any, flags: int) -> tuple[Span, ...]:
    """Return the characters of a part of a pattern that stands for a single one."""
    match kind:
        case "LITERAL":
            points = {value, *_cased_in(f"[{_escaped(value)}]", flags)} if flags & re.IGNORECASE else {value}
            return tuple((point, point + 1) for point in sorted(points))
        case "NOT_LITERAL":
            return _set((("NEGATE", None), ("LITERAL", value)), flags)
        case "ANY":
            return characters(".", flags)
    return _set(tuple((str(name), inner) for name, inner in value), flags)


@lru_cache(maxsize=256)
def _set(items: tuple[tuple[str, Any], ...], flags: int) -> tuple[Span, ...]:
    """Return the characters of a set; without asking about every one, since a pattern may have hundreds of sets."""
    mask = np.zeros(N_CODE_POINTS, dtype=np.bool_)
    for name, value in items:
        match name:
            case "LITERAL":
                mask[value] = True
            case "RANGE":
                mask[value[0] : value[1] + 1] = True
            case "CATEGORY":
                for begin, end in characters(_in_set(name, value), flags & ~re.IGNORECASE):
                    mask[begin:end] = True
    if items[0][0] == "NEGATE":
        mask = ~mask
    if flags & re.IGNORECASE:  # which changes what is meant for letters that have another case, and for no others
        mask[list(map(ord, _cased()))] = False
        mask[_cased_in(f"[{''.join(_in_set(*item) for item in items)}]", flags)] = True
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2)
    return tuple((int(begin), int(end)) for begin, end in edges)


def _in_set(name: str, value: Any) -> str:
    """A part of a set of characters, as it is written between brackets."""
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


def _cased_in(pattern: str, flags: int) -> list[int]:
    """Return the characters that have another case and that a set means."""
    return [ord(character) for character in re.compile(pattern, flags).findall(_cased())]


@cache
def _cased() -> str:
    """Return every character that has another case."""
    return "".join(c for c in _every_character() if c.lower() != c or c.upper() != c)
