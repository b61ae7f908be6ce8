"""The sources of a corpus, with all items numbered consecutively, and the rules that drop items."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from penwright.data.examples import Roles
from penwright.data.files import SourceFile
from penwright.data.report import Dropped
from penwright.data.splits import Mask

Item = TypeVar("Item")


UNKNOWN = "broken"


@dataclass(frozen=True)
class Broken:
    """An unreadable row or document, with the reason."""

    reason: str


@dataclass(frozen=True)
class Source(Generic[Item]):
    """The documents or rows of one file, folder or table, or of two aligned files."""

    files: tuple[SourceFile, ...]
    read: Callable[[], Iterator[Item | Broken | None]]  # None: unreadable for an unknown reason
    place: Callable[[int], str]  # describes where an item is
    choice: str = ""  # of the columns, in words; part of the fingerprint
    names: tuple[str, ...] = ()  # of the two sides: columns or languages
    remark: str = ""  # on what was not read
    roles: Roles = field(default_factory=dict)  # of the columns that were chosen


@dataclass(frozen=True)
class Sources(Generic[Item]):
    """All sources of a corpus, with the number of items in each."""

    each: tuple[Source[Item], ...]
    n_items: tuple[int, ...]

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files of all sources."""
        return tuple(file for source in self.each for file in source.files)

    @property
    def choices(self) -> tuple[str, ...]:
        """The chosen columns of each source, in words."""
        return tuple(source.choice for source in self.each)

    @property
    def roles(self) -> Roles:
        """The columns of each role if all sources have the same ones, else nothing."""
        first, *others = (source.roles for source in self.each)
        return first if all(each == first for each in others) else {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the columns chosen in each file, and on what was not read."""
        chosen = [f"{source.files[0].path}: {source.choice}" for source in self.each if source.choice]
        return (*chosen, *(line for source in self.each for line in source.remark.splitlines()))

    def read(self, chosen: Mask) -> Iterator[Item]:
        """Yield the chosen items in order, without broken ones."""
        every = chain.from_iterable(source.read() for source in self.each)
        return (item for item in compress(every, chosen.tobytes()) if item is not None and not isinstance(item, Broken))

    def place(self, number: int) -> str:
        """Return where the item with this number is."""
        for source, n in zip(self.each, self.n_items, strict=True):
            if number < n:
                return source.place(number)
            number -= n
        raise IndexError(number)


Rule = tuple[str, Callable[[Mask], Mask]]  # the reason, and which items it drops, given the items still kept


def number_reason(item: object, reasons: dict[str, int]) -> int:
    """Return 0 for a readable item, else the number of the reason why it is broken. Adds new reasons to `reasons`."""
    if item is not None and not isinstance(item, Broken):
        return 0
    return reasons.setdefault(UNKNOWN if item is None else item.reason, len(reasons) + 1)


def broken_rules(numbers: NDArray[np.integer[Any]], reasons: Mapping[str, int]) -> list[Rule]:
    """Return one rule for each reason, which drops the items with its number."""

    def rule(number: int) -> Callable[[Mask], Mask]:
        return lambda _: numbers == number

    return [(reason, rule(number)) for reason, number in reasons.items()]


def leave_out(rules: Sequence[Rule], keep: Mask, place: Callable[[int], str]) -> list[Dropped]:
    """Apply the rules in order, removing items from `keep` in place. Return what each of them drops."""
    dropped = []
    for reason, rule in rules:
        fails = rule(keep) & keep
        if fails.any():
            dropped.append(Dropped(reason, int(fails.sum()), place(int(np.argmax(fails)))))
            keep &= ~fails
    return dropped
