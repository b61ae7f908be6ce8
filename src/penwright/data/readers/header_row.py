"""Decide whether a table begins with a header row, by the names in it and by what stands below."""

import re
from collections.abc import Sequence

from penwright.data.headers import HEADER_NAMES, TELLING_NAMES

Cells = Sequence[str]
LONGEST_KNOWN = 30  # characters of a common name
LONGEST_NAME = 100  # characters, since surveys have whole questions as names
MOST_BEFORE = 20  # rows before a header: titles and comments
ENOUGH = 3  # rows that show how long the texts of a column are
LONG = 20  # characters of a text
REPEATS = 0.05  # of the rows may repeat the header
ALIKE = 0.9  # of the values of a column that are numbers, for example
KINDS = {
    "number": re.compile(r"[-+]?[$€£]?\d[\d.,\s]*%?|[-+]?\d*\.?\d+(e[-+]?\d+)?|nan", re.IGNORECASE),
    "time": re.compile(r"\d{1,4}[-/.:]\d{1,2}([-/.:]\d{1,4})?([T ,]+\d{1,2}:\d{2}.*)?"),
    "link": re.compile(r"(https?://|www\.)\S+", re.IGNORECASE),
}


def find_header(rows: Sequence[Cells], width: int, names: Sequence[str] = ()) -> int | None:
    """Return the place of the header among the first rows of a table that is `width` cells wide, or None.

    A row with one of `names` is a header.
    """
    found = None
    for place, row in enumerate(rows[:MOST_BEFORE]):
        cells = [cell.strip() for cell in row]
        n_filled = sum(map(bool, cells))
        if any(cell in names for cell in cells if cell):
            return place
        if not n_filled or len(cells) < max(2, width - 1) <= width or (n_filled == 1 and width > 2):
            continue  # a title, or a comment
        if found is not None and list(row) == list(rows[found]):
            return found
        if is_header(cells, rows[place + 1 :]):
            found = place  # unless the next row is a header too, below a title
            if is_known_header(cells):
                return found
        elif n_filled > 1:
            return found
    return found


def is_known_header(cells: Cells) -> bool:
    """Return whether the names are all common ones, or one of them tells what its column is for."""
    names = [cell.strip().strip("\ufeff").lower().replace(" ", "_") for cell in cells]
    names = [name for name in names if name]
    if not names or max(map(len, names)) > LONGEST_KNOWN:
        return False
    unique = len(set(names)) == len(names)
    identifiers = all(re.fullmatch(r"#?\w+", name) for name in names)
    return (unique and HEADER_NAMES.issuperset(names)) or (identifiers and not TELLING_NAMES.isdisjoint(names))


def is_header(cells: Cells, below: Sequence[Cells]) -> bool:
    """Return whether these cells are names of columns rather than values as in the rows below."""
    if is_known_header(cells):
        return True
    if max(map(len, cells)) > LONGEST_NAME:
        return False
    others = [row for row in below if list(row) != list(cells)]
    if len(below) - len(others) <= REPEATS * len(below):  # the header may be repeated
        below = others
    votes = 0
    for column, name in enumerate(cells):
        values = [row[column].strip() for row in below if len(row) > column]
        vote = _vote(name, [value for value in values if value], len(values))
        if vote is None:
            return False
        votes += vote
    return votes > 0


def _vote(name: str, values: Sequence[str], n_rows: int) -> int | None:
    """How much a column speaks for a name above it; None if the name is a value like the others."""
    if not values:
        return 0
    kind, different = _kind_of(values), set(values)
    if kind:
        is_index = kind == "number" and len(values) == n_rows
        return None if KINDS[kind].fullmatch(name) else 2 if name or is_index else 0
    if len(different) <= max(1, n_rows // 5):
        return None if name in different else 2 if name and n_rows >= 2 * ENOUGH else 0
    return _vote_of_texts(name, values) if name and len(values) >= ENOUGH else 0


def _vote_of_texts(name: str, values: Sequence[str]) -> int:
    shortest = sorted(map(len, values))[len(values) // 20]
    if shortest < LONG:
        return 0
    if len(name) >= shortest:
        return -1
    return 1 if 2 * len(name) <= shortest and not name.endswith((".", "!", "?", "…", "。")) else 0


def _kind_of(values: Sequence[str]) -> str | None:
    return next(
        (kind for kind, form in KINDS.items() if sum(map(bool, map(form.fullmatch, values))) >= ALIKE * len(values)),
        None,
    )
