"""Open the table that a file holds, and read texts from its rows."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol, runtime_checkable

from penwright.data.files import SourceFile
from penwright.data.headers import TEXT_NAMES
from penwright.data.paths import suffix_of
from penwright.data.readers.delimited import is_tabbed
from penwright.data.readers.grid import SAMPLE, Row, delimited_grid, sheet_grid
from penwright.data.readers.parquet import parquet_table
from penwright.data.readers.records import json_table
from penwright.data.readers.spreadsheets import sheet_rows
from penwright.data.sources import Broken

TSV, CSV, JSON, PARQUET = (".tsv", ".tab"), (".csv",), (".jsonl", ".ndjson", ".json"), (".parquet", ".pq")
SHEETS = ("xlsx", "ods")  # formats
TABLE_SUFFIXES = (*TSV, *CSV, *JSON, *PARQUET)


@runtime_checkable
class Table(Protocol):
    """Rows with columns that have names, or numbers from 1 for names."""

    @property
    def name(self) -> str: ...

    @property
    def files(self) -> tuple[SourceFile, ...]: ...

    @property
    def columns(self) -> tuple[str, ...]: ...

    def rows(self, columns: Sequence[int]) -> Iterator[Row | Broken]:
        """Yield these columns, counted from 0, of every row; for one that cannot be read, why."""

    def place(self, row: int) -> str:
        """Return where the row with this number, from 0, is."""


def is_table_file(file: SourceFile) -> bool:
    """Return whether a file is a table by its format or its name."""
    by_name = not file.format and suffix_of(file.path) in TABLE_SUFFIXES
    return by_name or file.is_parquet or file.format in SHEETS


def open_table(file: SourceFile, names: Sequence[str] = ()) -> Table:
    """Open the table in a file. A first row that holds one of `names` is its header."""
    suffix = suffix_of(file.path)
    if file.is_parquet:
        return parquet_table(file)
    if file.format in SHEETS:
        return sheet_grid(file, lambda: sheet_rows(file.lines()), names)
    if suffix in JSON:
        return json_table(file)
    return delimited_grid(file, None if suffix in CSV else "\t", names)


def delimited_table(file: SourceFile, delimiter: str | None, names: Sequence[str] = ()) -> Table:
    """Open a file as delimited text, whatever its name, unless it is a Parquet file."""
    return parquet_table(file) if file.is_parquet else delimited_grid(file, delimiter, names)


def table_in(file: SourceFile, names: Sequence[str] = ()) -> Table | None:
    """Open the table that a file holds by its name or by the tabs in nearly all of its lines; None for running text."""
    if is_table_file(file):
        return open_table(file, names)
    return delimited_grid(file, "\t", names) if has_tabs(file) and not file.format else None


def has_tabs(file: SourceFile) -> bool:
    """Return whether tabs divide nearly all lines of a file into the same number of cells."""
    return is_tabbed(file.first_lines(SAMPLE))


def names_text(table: Table) -> bool:
    """Return whether a column is called what columns of text are called."""
    return any(name.lower() in TEXT_NAMES for name in table.columns)


def select(table: Table, first: Sequence[int], second: int) -> Iterator[tuple[str, str] | Broken]:
    """Yield two sides of every row without the spaces around them. The columns of the first are joined by a space."""
    for row in table.rows([*first, second]):
        if isinstance(row, Broken):
            yield row
        elif len(row) == 2:
            yield row[0].strip(), row[1].strip()
        else:
            yield " ".join(filter(None, map(str.strip, row[:-1]))), row[-1].strip()


def sample_of(table: Table) -> list[Row]:
    """Return the first rows with all columns, without the broken ones."""
    rows = table.rows(range(len(table.columns)))
    return [row for row in islice(rows, SAMPLE) if isinstance(row, tuple) and any(row)]
