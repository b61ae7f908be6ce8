"""A recipe in the making: what is given stands, and what is chosen beside it is written down with its reason."""

from collections.abc import Sequence
from typing import NamedTuple

from penwright.config import Table, merge


class Choice(NamedTuple):
    """One setting that was chosen, and why."""

    key: str
    value: object
    reason: str


class Choices:
    """Lays suggestions under what is given, and keeps the reason of each that is taken."""

    def __init__(self, given: Table):
        self.table = given
        self.made: list[Choice] = []

    def suggest(self, key: str, value: object, reason: str) -> None:
        """Take this value unless one is given; the key is that of an override, such as model.d_model."""
        path = key.split(".")
        below = self.table
        for table in path[:-1]:
            below = below.get(table, {})
        if path[-1] not in below:
            self.table = _filled_in(self.table, path, value)
            self.made.append(Choice(key, value, reason))

    def revise(self, key: str, value: object, reason: str) -> None:
        """Take another value for what was suggested; what is given stands."""
        for place, choice in enumerate(self.made):
            if choice.key == key:
                self.table = _filled_in(self.table, key.split("."), value)
                self.made[place] = Choice(key, value, reason)

    def suggest_type(self, name: str, variant: Table, reason: str) -> None:
        """Take this variant of a table, with its settings below those that are given, unless a type is given."""
        given = self.section(name)
        if "type" not in given:
            self.table = merge(self.table, {name: merge(variant, given)})
            self.made.append(Choice(f"{name}.type", variant["type"], reason))

    def withdraw(self, name: str, key: str) -> None:
        """Have a setting count as not given."""
        self.table = {**self.table, name: {each: value for each, value in self.section(name).items() if each != key}}

    def section(self, name: str) -> Table:
        """One of the tables, as far as it is known."""
        found: Table = self.table.get(name, {})
        return found

    def number(self, key: str, default: float = 0.0) -> float:
        """A setting such as training.minutes; the default where there is none, or one that is no number."""
        name, _, inner = key.partition(".")
        value = self.section(name).get(inner, default)
        return float(value) if isinstance(value, int | float) else default


def _filled_in(table: Table, path: Sequence[str], value: object) -> Table:
    """With this value added; unlike in merge(), a type that is added leaves its neighbours as they are."""
    first, *rest = path
    return {**table, first: _filled_in(table.get(first, {}), rest, value) if rest else value}


def in_words(count: float) -> str:
    """1.2 million, 530 thousand."""
    for limit, unit in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= limit:
            return f"{rounded(count / limit)} {unit}"
    return f"{count:.0f}"


def rounded(value: float) -> str:
    """Two digits, but all of a whole number: 0.28, 5.3, 530."""
    return f"{value:.2g}" if value < 99.5 else f"{value:,.0f}"
