"""What the files of a corpus hold, numbered through all of them; and which of it is left out, and why."""

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
    """A row or document that cannot be read, and why."""

    reason: str


@dataclass(frozen=True)
class Source(Generic[Item]):
    """Documents or rows of one file, folder or table, or of two aligned files."""

    files: tuple[SourceFile, ...]
    read: Callable[[], Iterator[Item | Broken | None]]  # None: broken for an unknown reason
    place: Callable[[int], str]
    choice: str = ""  # of the columns, in words
    names: tuple[str, ...] = ()  # of the two sides: columns, or languages
    remark: str = ""  # on what was not read
    roles: Roles = field(default_factory=dict)  # of the columns that were chosen


@dataclass(frozen=True)
class Sources(Generic[Item]):
    """All of them, and how much is in each."""

    each: tuple[Source[Item], ...]
    n_of_each: tuple[int, ...]

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return tuple(file for source in self.each for file in source.files)

    @property
    def choices(self) -> tuple[str, ...]:
        """The columns of each, in words: what the same files are read as."""
        return tuple(source.choice for source in self.each)

    @property
    def roles(self) -> Roles:
        """The columns of each role, where all files have the same ones."""
        first, *others = (source.roles for source in self.each)
        return first if all(each == first for each in others) else {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Which columns were chosen, by file, and what was not read."""
        chosen = [f"{source.files[0].path}: {source.choice}" for source in self.each if source.choice]
        return (*chosen, *(line for source in self.each for line in source.remark.splitlines()))

    def read(self, chosen: Mask) -> Iterator[Item]:
        """The chosen items, in order."""
        every = chain.from_iterable(source.read() for source in self.each)
        return (item for item in compress(every, chosen.tobytes()) if item is not None and not isinstance(item, Broken))

    def place(self, number: int) -> str:
        """Where the item with this number stands."""
        for source, n in zip(self.each, self.n_of_each, strict=True):
            if number < n:
                return source.place(number)
            number -= n
        raise IndexError(number)


Rule = tuple[str, Callable[[Mask], Mask]]  # why items are left out, and which, given those still kept


def number_reason(item: object, reasons: dict[str, int]) -> int:
    """Return 0 for a whole item, else the number of the reason why it is broken. A new reason is added to `reasons`."""
    if item is not None and not isinstance(item, Broken):
        return 0
    return reasons.setdefault(UNKNOWN if item is None else item.reason, len(reasons) + 1)


def broken_rules(numbers: NDArray[np.integer[Any]], reasons: Mapping[str, int]) -> list[Rule]:
    """Return a rule for each reason, which leaves out the items with its number."""

    def rule(number: int) -> Callable[[Mask], Mask]:
        return lambda _: numbers == number

    return [(reason, rule(number)) for reason, number in reasons.items()]


def leave_out(rules: Sequence[Rule], keep: Mask, place: Callable[[int], str]) -> list[Dropped]:
    """Take from `keep` what the rules, in their order, leave out; how many each does, and where the first stands."""
    dropped = []
    for reason, rule in rules:
        fails = rule(keep) & keep
        if fails.any():
            dropped.append(Dropped(reason, int(fails.sum()), place(int(np.argmax(fails)))))
            keep &= ~fails
    return dropped
