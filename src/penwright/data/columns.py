"""Which columns of a table hold the source and target, or the text and label: as told, or by their looks."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from penwright.data.examples import Columns
from penwright.data.headers import LABEL_NAMES, LANGUAGE_NAMES, SOURCE_NAMES, TARGET_NAMES, TEXT_NAMES
from penwright.data.readers.grid import Row
from penwright.data.readers.tables import Table, sample_of
from penwright.errors import PenwrightError

LONGEST_LABEL = 50  # characters


def names_in(columns: Columns) -> list[str]:
    """The columns told by name."""
    told = [columns.source, columns.target, columns.label, *text_columns(columns)]
    return [column for column in told if isinstance(column, str) and not column.isdecimal()]


def text_columns(columns: Columns) -> tuple[str | int, ...]:
    """The columns of the text, which may be told as one or several."""
    if columns.text is None:
        return ()
    return columns.text if isinstance(columns.text, tuple) else (columns.text,)


def find_column(table: Table, told: str | int) -> int:
    """The place, from 0, of a column told by name or by number from 1."""
    if told in table.columns:
        return table.columns.index(str(told))
    number = int(told) if isinstance(told, int) or told.isdecimal() else None
    if number is not None and 1 <= number <= len(table.columns):
        return number - 1
    nearest = get_close_matches(str(told), table.columns, n=1, cutoff=0.5)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"its columns are: {', '.join(table.columns)}"
    raise PenwrightError(f"{table.name} has no column '{told}'; {hint}")


def pair_columns(table: Table, columns: Columns) -> tuple[int, int]:
    """Source and target: as told, else by their names, else the first two columns."""
    if len(table.columns) < 2:
        raise PenwrightError(
            f"{table.name} has only one column; pairs need two: a table with source and target, "
            "or two files with the same number of lines"
        )
    likely = named_pair(table) or (0, 1)
    source = None if columns.source is None else find_column(table, columns.source)
    target = None if columns.target is None else find_column(table, columns.target)
    if source is None:
        source = next(column for column in likely if column != target)
    if target is None:
        target = next(column for column in (likely[1], likely[0]) if column != source)
    if source == target:
        raise PenwrightError(f"{table.name}: source and target are the same column '{table.columns[source]}'")
    return source, target


def labelled_columns(table: Table, columns: Columns) -> tuple[tuple[int, ...], int]:
    """Texts and label: as told, else by names and looks."""
    texts = tuple(find_column(table, told) for told in text_columns(columns))
    rows = sample_of(table)
    if columns.label is not None:
        label = find_column(table, columns.label)
    else:
        found = label_column(table, rows, without=texts)
        if found is None:
            raise PenwrightError(
                f"{table.name}: no column looks like labels (few different short values); "
                f"say which with --set data.label=..., its columns are: {', '.join(table.columns)}"
            )
        label = found
    if not texts:
        others = [column for column in range(len(table.columns)) if column != label]
        if not others:
            raise PenwrightError(f"{table.name} has only one column; it needs a text and a label")
        named = [column for column in others if table.columns[column].lower() in TEXT_NAMES]
        texts = (max(named or others, key=lambda column: sum(len(row[column]) for row in rows)),)
    if label in texts:
        raise PenwrightError(f"{table.name}: text and label are the same column '{table.columns[label]}'")
    return texts, label


def label_column(table: Table, rows: Sequence[Row], without: Sequence[int] = ()) -> int | None:
    """The column with a label's name, else the one with the fewest different values, if these are few and short."""
    named = named_label_column(table)
    if named is not None and named not in without:
        return named
    values = {
        column: {row[column].strip() for row in rows} - {""}
        for column in range(len(table.columns))
        if column not in without
    }
    likely = [column for column in values if _are_labels(values[column], len(rows))]
    return min(likely, key=lambda column: len(values[column]), default=None)


def named_label_column(table: Table) -> int | None:
    """The column with a label's name."""
    names = _names(table)
    return next((names.index(name) for name in LABEL_NAMES if name in names), None)


def named_pair(table: Table) -> tuple[int, int] | None:
    """The columns with the names of a source and a target, or of two languages."""
    names = _names(table)
    source = next((names.index(name) for name in SOURCE_NAMES if name in names), None)
    target = next((names.index(name) for name in TARGET_NAMES if name in names), None)
    if source is not None and target is not None:
        return source, target
    languages = [place for place, name in enumerate(names) if re.split("[-_]", name)[0] in LANGUAGE_NAMES]
    if len(languages) > 2:
        languages = [place for place in languages if names[place] != "id"]  # numbers, rather than Indonesian
    return (languages[0], languages[1]) if len(languages) >= 2 else None


def _names(table: Table) -> list[str]:
    return [name.lower().replace(" ", "_") for name in table.columns]


def _are_labels(values: set[str], n_rows: int) -> bool:
    few = 1 <= len(values) <= max(2, n_rows // 5) and len(values) < n_rows
    return few and max(map(len, values)) <= LONGEST_LABEL
