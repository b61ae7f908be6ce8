"""Access to the table in a file: opening it, and reading texts from its rows."""

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
SHEETS = ("xlsx", "ods")  # names of formats
TABLE_SUFFIXES = (*TSV, *CSV, *JSON, *PARQUET)


@runtime_checkable
class Table(Protocol):
    """A table whose columns have names, or are numbered from 1."""

    @property
    def name(self) -> str:
        """What messages call the table."""
        ...

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files of the table."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        ...

    def rows(self, columns: Sequence[int]) -> Iterator[Row | Broken]:
        """Yield the given columns (counted from 0) of every row, or why the row is broken."""

    def place(self, row: int) -> str:
        """Return the location of a row (counted from 0) in words, for messages."""


def is_table_file(file: SourceFile) -> bool:
    """Return whether a file is a table, judging by its format or its suffix."""
    by_name = not file.format and suffix_of(file.path) in TABLE_SUFFIXES
    return by_name or file.is_parquet or file.format in SHEETS


def open_table(file: SourceFile, names: Sequence[str] = ()) -> Table:
    """Open the table in a file. Among the first rows, one that contains one of `names` is the header."""
    suffix = suffix_of(file.path)
    if file.is_parquet:
        return parquet_table(file)
    if file.format in SHEETS:
        return sheet_grid(file, lambda: sheet_rows(file.lines()), names)
    if suffix in JSON:
        return json_table(file)
    return delimited_grid(file, None if suffix in CSV else "\t", names)


def delimited_table(file: SourceFile, delimiter: str | None, names: Sequence[str] = ()) -> Table:
    """Open a file as delimited text, whatever its suffix, unless it is a Parquet file."""
    return parquet_table(file) if file.is_parquet else delimited_grid(file, delimiter, names)


def find_table(file: SourceFile, names: Sequence[str] = ()) -> Table | None:
    """Open the table in a file, recognized by its name or by tabs in nearly all lines; return None for running text."""
    if is_table_file(file):
        return open_table(file, names)
    return delimited_grid(file, "\t", names) if has_tabs(file) and not file.format else None


def has_tabs(file: SourceFile) -> bool:
    """Return whether tabs split nearly all lines of a file into the same number of cells."""
    return is_tabbed(file.first_lines(SAMPLE))


def has_text_column(table: Table) -> bool:
    """Return whether a column has a common name of text columns."""
    return any(name.lower() in TEXT_NAMES for name in table.columns)


def select(table: Table, first: Sequence[int], second: int) -> Iterator[tuple[str, str] | Broken]:
    """Yield two sides of every row, stripped of spaces around them. The `first` columns are joined by a space."""
    for row in table.rows([*first, second]):
        if isinstance(row, Broken):
            yield row
        elif len(row) == 2:
            yield row[0].strip(), row[1].strip()
        else:
            yield " ".join(filter(None, map(str.strip, row[:-1]))), row[-1].strip()


def sample_rows(table: Table) -> list[Row]:
    """Return the first rows with all columns, without broken and empty rows."""
    rows = table.rows(range(len(table.columns)))
    return [row for row in islice(rows, SAMPLE) if isinstance(row, tuple) and any(row)]
