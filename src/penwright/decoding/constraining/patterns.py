"""What Python's `re` means by a pattern, as an expression; what is no regular expression in it is refused."""

import re
from functools import cache
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]  # Hypothesis reads patterns through it too
from typing import Any

from penwright.decoding.constraining.expressions import N_CODE_POINTS, Expression, Expressions, Span
from penwright.errors import UsageError

LONGEST = 1_000  # characters of a pattern
_FLAGS = re.IGNORECASE | re.DOTALL | re.ASCII  # that change which characters are meant
_CHARACTERS = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN)
_BEGINS = [(_constants.AT, at) for at in (_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING)]
_ENDS = [(_constants.AT, at) for at in (_constants.AT_END, _constants.AT_END_STRING)]
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
        tree = _parser.parse(pattern)
        return _Reader(expressions).whole(list(tree), tree.state.flags)
    except (re.error, OverflowError) as error:
        raise UsageError(f"the pattern '{pattern}' is not a regular expression: {error}") from None
    except RecursionError:
        raise UsageError("the pattern is nested too deeply") from None


def characters(pattern: str) -> tuple[Span, ...]:
    """The characters that a pattern such as \\w means."""
    ((name, value),) = _parser.parse(pattern)
    return _matching(name, value, 0)


class _Reader:
    """Goes through the tree of a pattern."""

    def __init__(self, expressions: Expressions):
        self._make = expressions

    def whole(self, items: list[Any], flags: int) -> Expression:
        """The whole pattern, or an alternative of it: ^ and $ around it say nothing that is not so anyway."""
        items = items[1:] if items and items[0] in _BEGINS else items
        items = items[:-1] if items and items[-1] in _ENDS else items
        if len(items) == 1 and items[0][0] == _constants.BRANCH:
            return self._make.either(*(self.whole(list(branch), flags) for branch in items[0][1][1]))
        return self.sequence(items, flags)

    def sequence(self, items: list[Any], flags: int) -> Expression:
        return self._make.then(*(self._item(name, value, flags) for name, value in items))

    def _item(self, name: Any, value: Any, flags: int) -> Expression:
        if name in _CHARACTERS:
            return self._make.one_of(_matching(name, value, flags & _FLAGS))
        match str(name):
            case "BRANCH":
                return self._make.either(*(self.sequence(list(branch), flags) for branch in value[1]))
            case "SUBPATTERN":
                _, added, removed, inner = value
                return self.sequence(list(inner), (flags | added) & ~removed)
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = value
                part = self.sequence(list(inner), flags)
                return self._make.repeat(part, least, None if most == _constants.MAXREPEAT else int(most))
            case other:
                what = _REFUSED.get(other, other)
                raise UsageError(f"a pattern for writing cannot hold {what}: it must tell what may come next")


def _matching(name: Any, value: Any, flags: int) -> tuple[Span, ...]:
    """The characters that are meant, by asking `re` about every one."""
    if name == _constants.LITERAL and not flags & re.IGNORECASE:
        return ((value, value + 1),)
    state = _parser.State()
    state.flags = flags | (0 if flags & re.ASCII else re.UNICODE)
    single = _parser.SubPattern(state, [(name, value)])
    runs = _parser.SubPattern(state, [(_constants.MAX_REPEAT, (1, _constants.MAXREPEAT, single))])
    return tuple(match.span() for match in _compiler.compile(runs, state.flags).finditer(_every_character()))


@cache
def _every_character() -> str:
    return "".join(map(chr, range(N_CODE_POINTS)))
