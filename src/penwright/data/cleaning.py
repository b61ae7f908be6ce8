"""The rules that drop items from a corpus: broken items, blank or too long ones, and duplicates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penwright.data.report import Dropped
from penwright.data.splits import Hashes, Mask

Rule = tuple[str, Callable[[Mask], Mask]]  # a reason, and a function that returns which of the kept items to drop


@dataclass(frozen=True)
class Cleaning:
    """Rules for dropping examples. Only `deduplicate` applies to documents."""

    max_characters: int = 5000  # maximum number of characters in a side of a pair, or in a labelled text
    max_ratio: float | None = 9.0  # largest ratio of the lengths of the sides; checked if a side exceeds 30 characters
    deduplicate: bool = True


STANDARD = Cleaning()
KEEP_ALL = Cleaning(max_characters=10**12, max_ratio=None, deduplicate=False)  # rules that keep all usable examples


def broken_rules(numbers: NDArray[np.integer[Any]], reasons: Mapping[str, int]) -> list[Rule]:
    """Return one rule for each reason. The rule drops the items that are broken for this reason."""

    def rule(number: int) -> Callable[[Mask], Mask]:
        return lambda _: numbers == number

    return [(reason, rule(number)) for reason, number in reasons.items()]


def leave_out(rules: Sequence[Rule], keep: Mask, place: Callable[[int], str]) -> list[Dropped]:
    """Apply the rules in order, removing items from `keep`. Return the number of items that each rule drops."""
    dropped = []
    for reason, rule in rules:
        fails = rule(keep) & keep
        if fails.any():
            dropped.append(Dropped(reason, int(fails.sum()), place(int(np.argmax(fails)))))
            keep &= ~fails
    return dropped


def duplicates(hashes: Hashes, keep: Mask) -> Mask:
    """Return a mask of the kept items that repeat the hash of an earlier item."""
    kept = np.flatnonzero(keep)
    found = keep.copy()
    found[kept[np.unique(hashes[kept], return_index=True)[1]]] = False
    return found
