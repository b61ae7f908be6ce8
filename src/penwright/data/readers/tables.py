"""Tables of text: delimited files, spreadsheet sheets, and detection of a table in any file."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Protocol, runtime_checkable

from penwright.data.corpus import Broken, Row
from penwright.data.files import SourceFile
from penwright.data.paths import suffix_of
from penwright.data.readers.delimited import MOST, MOST_LINES, SEPARATOR_LINE, Dialect, FileTable, read_cells
from penwright.data.readers.formats import CSV, JSON, TABLE_SUFFIXES
from penwright.data.readers.layout import SAMPLE_ROWS, TEXT_NAMES, find_dialect, find_header, is_known_header, is_tabbed
from penwright.data.readers.parquet import parquet_table
from penwright.data.readers.records import EMPTY_LIST, json_table
from penwright.data.readers.spreadsheets import sheet_rows
from penwright.errors import PenwrightError

ReadCells = Callable[[], Iterator[list[str]]]
FEW = 20  # minimum number of rows in a sample
COMMON = 0.05  # a number of cells is common, not a mistake, if at least this share of the rows has it
SOME = 3  # a number of cells is common only if at least this many rows have it
TOO_FEW = Broken("too few fields")
TOO_MANY = Broken("too many fields (possibly a delimiter in a text without quotes)")
REPEATED = Broken("a repeated header")
BEFORE = Broken("a row before the header")
SHEETS = ("xlsx", "ods")  # spreadsheet formats
JSON_START = re.compile(r'\ufeff?\s*(\[\s*)?\{\s*"')
MARKS = re.compile(r'"?[,;|\t]"?')  # delimiters of a header, with quote marks beside them


@runtime_checkable
class Table(Protocol):
    """A table whose columns have names, or are numbered from 1."""

    @property
    def name(self) -> str:
        """The name of the table in messages."""
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
        """Yield the given columns (counted from 0) of every row, or the reason why a row is broken."""

    def location(self, row: int) -> str:
        """Describe the location of a row (counted from 0), for messages."""


def is_table_file(file: SourceFile) -> bool:
    """Return whether a file is a table, judging by its format, its suffix, or JSON in it."""
    by_name = not file.format and (suffix_of(file.path) in TABLE_SUFFIXES or holds_json(file))
    return by_name or file.is_parquet or file.format in SHEETS


def open_table(file: SourceFile, names: Sequence[str] = ()) -> Table:
    """Open the table in a file. A row near the top that contains one of `names` is the header."""
    suffix = suffix_of(file.path)
    if file.is_parquet:
        return parquet_table(file)
    if file.format in SHEETS:
        return sheet_grid(file, lambda: sheet_rows(file.lines()), names)
    if suffix in JSON or holds_json(file):
        return json_table(file)
    return delimited_grid(file, None if suffix in CSV else "\t", names)


def delimited_table(file: SourceFile, delimiter: str | None, names: Sequence[str] = ()) -> Table:
    """Open a file as delimited text, whatever its suffix, unless it is a Parquet file."""
    return parquet_table(file) if file.is_parquet else delimited_grid(file, delimiter, names)


def find_table(file: SourceFile, names: Sequence[str] = ()) -> Table | None:
    """Open the table in a file, or return None for running text.

    It is recognized by its name, by JSON, by tabs in nearly all lines, or by a header of common names.
    """
    if is_table_file(file):
        return open_table(file, names)
    if file.format:
        return None
    return delimited_grid(file, "\t", names) if has_tabs(file) else _named_grid(file, names)


def holds_json(file: SourceFile) -> bool:
    """Return whether a file begins with a JSON object in each line, a list of objects, or an object of columns."""
    lines = [] if file.is_parquet else [line for line in file.first_lines(FEW) if line.strip()]
    if not JSON_START.match("\n".join(lines[:3])):
        return False
    if _is_object(lines[0]) and len(lines) > 1:
        return sum(map(_is_object, lines)) >= MOST * len(lines)
    try:
        return bool(json_table(file).columns)
    except PenwrightError:
        return False


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _named_grid(file: SourceFile, names: Sequence[str]) -> Table | None:
    """Open delimited text whose first line is a header of common names or of `names`, if nearly all lines fit it."""
    lines = file.first_lines(SAMPLE_ROWS)
    heads = [head.strip() for head in MARKS.split(lines[0].strip('\ufeff" '))] if lines else []
    if len(heads) < 2 or not (is_known_header(heads) or {*heads} & {*names}):
        return None
    grid = delimited_grid(file, None, names)
    sample = list(islice(grid.read(), SAMPLE_ROWS))
    n_whole = sum(len(cells) == len(heads) or (len(cells) > len(heads) and grid.joint != "") for cells in sample)
    return grid if len(grid.columns) == len(heads) and n_whole >= MOST * len(sample) else None


def has_tabs(file: SourceFile) -> bool:
    """Return whether tabs split nearly all lines of a file into the same number of cells."""
    return is_tabbed(file.first_lines(SAMPLE_ROWS))


def has_text_column(table: Table) -> bool:
    """Return whether a column has a common name for text columns."""
    return any(name.lower() in TEXT_NAMES for name in table.columns)


def select(table: Table, first: Sequence[int], second: int, between: str = " ") -> Iterator[tuple[str, str] | Broken]:
    """Yield the two sides of every row, stripped of surrounding spaces.

    The first side joins the cells of the columns in `first`, except blank ones.
    """
    for row in table.rows([*first, second]):
        if isinstance(row, Broken):
            yield row
        elif len(row) == 2:
            yield text_of(row[0]), row[1].strip()
        else:
            yield between.join(filter(None, map(text_of, row[:-1]))), row[-1].strip()


def text_of(cell: str) -> str:
    """Return the text of a cell, stripped of surrounding spaces. An empty list, as in SQuAD, is no text."""
    return "" if cell == EMPTY_LIST else cell.strip()


@dataclass(frozen=True)
class Grid(FileTable):
    """A table whose rows are lists of cells. Its columns are named by the header, or numbered from 1."""

    read: ReadCells
    columns: tuple[str, ...]
    header: tuple[str, ...] | None = None
    n_before: int = 0  # number of rows before the header
    fewest: int = 1  # minimum number of cells in a complete row; empty cells at the end may be missing
    unit: str = "row"
    n_skipped: int = 0  # number of lines before the first row
    delimiter: str = ""  # delimiter of the cells; "" in spreadsheets, and if there is one column
    joint: str = ""  # joins surplus cells to the last column, a text without quotes; "": they are errors

    def rows(self, columns: Sequence[int]) -> Iterator[Row | Broken]:
        """Yield the given columns (counted from 0) of every row, or the reason why a row is broken."""
        wanted, needed = _picker(columns), max(columns) + 1
        fewest, most = self.fewest, len(self.columns)
        blank, filler = ("",) * len(columns), [""] * most
        rows, last = self.read(), None
        if self.header is not None:
            yield from (BEFORE for _ in islice(rows, self.n_before))
            next(rows, None)
            last = self.header[-1]
        for cells in rows:
            n = len(cells)
            if fewest <= n <= most:
                if cells[-1] == last and self._is_header(cells):
                    yield REPEATED
                elif n >= needed:
                    yield wanted(cells)
                else:
                    yield wanted([*cells, *filler]) if any(cells) else blank
            elif not any(cells):
                yield blank
            elif n < fewest:
                yield TOO_FEW
            elif self.joint and any(cells[most:]):
                yield wanted([*cells[: most - 1], self.joint.join(cells[most - 1 :])])
            else:
                yield TOO_MANY if any(cells[most:]) else wanted(cells)

    def location(self, row: int) -> str:
        """Describe the location of a row (counted from 0), for messages."""
        after = self.header is not None and row >= self.n_before
        return f"{self.name} {self.unit} {row + 1 + after + self.n_skipped:,}"

    def _is_header(self, cells: Sequence[str]) -> bool:
        return self.header == (cells[0].removeprefix("\ufeff"), *cells[1:])


def delimited_grid(file: SourceFile, delimiter: str | None, names: Sequence[str] = ()) -> Grid:
    """Open delimited text as a table, detecting its dialect and header.

    A given `delimiter` is used unless the first line names a different one (`sep=;`).
    """
    dialect, sample, n_skipped = _detect_dialect(file, delimiter, SAMPLE_ROWS)
    if len(sample) < FEW and file.n_lines > SAMPLE_ROWS:  # rows span so many lines that the sample is too small
        dialect, sample, n_skipped = _detect_dialect(file, delimiter, MOST_LINES)
    columns, header, n_before, fewest = _layout(sample, names, strays=dialect.delimiter == "\t")
    joint = dialect.delimiter + " " * dialect.has_space_after_delimiter
    if dialect.delimiter == "\t" or header is None or columns[-1].lower() not in TEXT_NAMES:
        joint = ""

    def read() -> Iterator[list[str]]:
        return read_cells(islice(file.lines(), n_skipped, None), dialect, len(columns))

    unit = "row" if dialect.quote or dialect.escape else "line"
    return Grid(file, read, columns, header, n_before, fewest, unit, n_skipped, dialect.delimiter, joint)


def _detect_dialect(file: SourceFile, delimiter: str | None, n: int) -> tuple[Dialect, list[list[str]], int]:
    """Return the dialect of the first `n` lines, their rows, and the number of lines before the first row."""
    lines, n_skipped = file.first_lines(n), 0
    is_cut = len(lines) < file.n_lines
    if lines and (separator := SEPARATOR_LINE.fullmatch(lines[0].strip())):
        lines, n_skipped, delimiter = lines[1:], 1, separator[1]
    dialect = find_dialect(lines, delimiter, is_cut=is_cut)
    return dialect, list(read_cells(lines, dialect, is_cut=is_cut)), n_skipped


def sheet_grid(file: SourceFile, read: ReadCells, names: Sequence[str] = ()) -> Grid:
    """Open a spreadsheet sheet as a table, detecting its header. `read` returns its rows."""
    columns, header, n_before, fewest = _layout(list(islice(read(), SAMPLE_ROWS)), names, strays=True)
    return Grid(file, read, columns, header, n_before, fewest)


def _layout(
    sample: Sequence[Sequence[str]], names: Sequence[str], *, strays: bool
) -> tuple[tuple[str, ...], tuple[str, ...] | None, int, int]:
    """Return the column names, the header, the number of rows before it, and the minimum width of a complete row.

    The width of the table is the most common width of its rows, and wider rows are assumed to contain stray delimiters.
    If the first row is a narrower header of common names, and the rows differ in width, it is the width of the header.
    With `strays`, it is the largest width that is not rare.
    """
    widths = Counter(len(row) for row in sample if any(map(str.strip, row)))
    if not widths:
        return (), None, 0, 1
    width = max(widths, key=lambda width: (widths[width], width))
    usual = [width, *(other for other, n in widths.items() if n >= max(SOME, COMMON * widths.total()))]
    first = next(row for row in sample if any(map(str.strip, row)))
    if strays:
        width = max(usual)
    elif len(first) < width and len(set(usual)) > 1 and is_known_header(first):
        width = len(first)
        usual.append(width)
    header_row = find_header(sample, width, names)
    if header_row is None:
        return tuple(map(str, range(1, width + 1))), None, 0, min(usual)
    header = tuple(sample[header_row])
    titles = [cell.replace("\ufeff", "").strip() for cell in header]
    if len(titles) == width - 1 and _are_row_names([row[0] for row in sample[header_row + 1 :] if len(row) == width]):
        titles = ["", *titles]
    titles += [""] * (width - len(titles))
    return _unique(titles), header, header_row, min(usual)


def _are_row_names(values: Sequence[str]) -> bool:
    """Return whether an unnamed first column numbers or names the rows, as in files written by R."""
    return len(values) > 1 and len(set(values)) == len(values)


def _unique(titles: Sequence[str]) -> tuple[str, ...]:
    """Return unique column names: the number for an unnamed column, and a suffix (".1") for a repeated name."""
    taken: dict[str, None] = {}
    for number, title in enumerate(titles, 1):
        name, again = title or str(number), 0
        while name in taken:
            again += 1
            name = f"{title or number}.{again}"
        taken[name] = None
    return tuple(taken)


def _picker(columns: Sequence[int]) -> Callable[[Sequence[str]], Row]:
    if len(columns) == 1:
        only = columns[0]
        return lambda cells: (cells[only],)
    return itemgetter(*columns)
