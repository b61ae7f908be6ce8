"""Detection of header rows, from the names in a row and from the rows below it."""

import re
from collections.abc import Sequence

from penwright.data.headers import HEADER_NAMES, TELLING_NAMES

Cells = Sequence[str]
LONGEST_KNOWN = 30  # characters of a common name
LONGEST_NAME = 100  # characters; surveys use whole questions as column names
MOST_BEFORE = 20  # rows that may precede a header: titles and comments
ENOUGH = 3  # values needed to judge the length of a column's texts
LONG = 20  # characters; shorter values are not texts
REPEATS = 0.05  # share of rows that may repeat the header
ALIKE = 0.9  # share of values that must be of one kind, such as numbers
KINDS = {
    "number": re.compile(r"[-+]?[$€£]?\d[\d.,\s]*%?|[-+]?\d*\.?\d+(e[-+]?\d+)?|nan", re.IGNORECASE),
    "time": re.compile(r"\d{1,4}[-/.:]\d{1,2}([-/.:]\d{1,4})?([T ,]+\d{1,2}:\d{2}.*)?"),
    "link": re.compile(r"(https?://|www\.)\S+", re.IGNORECASE),
}


def find_header(rows: Sequence[Cells], width: int, names: Sequence[str] = ()) -> int | None:
    """Return the index of the header among the first rows of a table with `width` columns, or None.

    A row that contains one of `names` is a header.
    """
    header = None
    for place, row in enumerate(rows[:MOST_BEFORE]):
        cells = [cell.strip() for cell in row]
        n_filled = sum(map(bool, cells))
        if any(cell in names for cell in cells if cell):
            return place
        if not n_filled or len(cells) < max(2, width - 1) <= width or (n_filled == 1 and width > 2):
            continue  # a title or a comment
        if header is not None and list(row) == list(rows[header]):
            return header
        if is_header(cells, rows[place + 1 :]):
            header = place  # unless this is a title, and the next row the header
            if is_known_header(cells):
                return header
        elif n_filled > 1:
            return header
    return header


def is_known_header(cells: Cells) -> bool:
    """Return whether all names are common ones, or one of them reveals the purpose of its column."""
    names = [cell.strip().strip("\ufeff").lower().replace(" ", "_") for cell in cells]
    names = [name for name in names if name]
    if not names or max(map(len, names)) > LONGEST_KNOWN:
        return False
    unique = len(set(names)) == len(names)
    identifiers = all(re.fullmatch(r"#?\w+", name) for name in names)
    return (unique and HEADER_NAMES.issuperset(names)) or (identifiers and not TELLING_NAMES.isdisjoint(names))


def is_header(cells: Cells, below: Sequence[Cells]) -> bool:
    """Return whether these cells are column names, rather than values like the ones below them."""
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
    """Return how strongly a column suggests that `name` is its header; None if `name` is a value like the others."""
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
    """Return the vote of a column of texts: a header is much shorter than nearly all of them."""
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
