"""The table of `penwright classify --csv`: a user's file, read with a header and printed with new columns."""

import csv
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penwright.cli.options import lines_of, read_text, warn
from penwright.errors import PenwrightError, UsageError

DELIMITERS = ",;\t|"
OFFICE = (b"PK", b"\xd0\xcf\x11\xe0")  # first bytes of Office documents, new and old
JSON = re.compile(r'\s*(\[\s*)?\{\s*"')  # start of a JSON object, or of a list of objects
SAVE = "Save the table as .csv, .xlsx or .ods"
SAMPLE = 100  # number of rows to read to decide whether the first row is a header


class UserTable(NamedTuple):
    """A table with a header."""

    path: str
    header: list[str]
    rows: list[list[str]]
    delimiter: str

    @classmethod
    def read(cls, path: str) -> "UserTable":
        """Read a table (- for standard input), or the first sheet with content of a spreadsheet.

        The delimiter is detected as in training; for a spreadsheet, it is a comma.
        """
        if path != "-" and (sheet := _sheet(path)) is not None:
            return cls._of(path, sheet, ",", "Name every column in the first row")
        from penwright.data.readers.delimited import SEPARATOR_LINE, read_cells
        from penwright.data.readers.layout import find_dialect

        text = read_text(path).removeprefix("\ufeff")
        if JSON.match(text):
            raise PenwrightError(f"{path} is JSON, which --csv does not read. {SAVE}")
        lines = lines_of(text if "\n" in text else text.replace("\r", "\n"))
        separator = SEPARATOR_LINE.fullmatch(lines[0].strip()) if lines else None
        lines = lines[1:] if separator else lines
        delimiter = separator[1] if separator and len(separator[1]) == 1 else _delimiter_of(lines)
        every = list(read_cells(lines, find_dialect(lines, delimiter), _header_width(lines, delimiter)))
        return cls._of(path, every, delimiter, "Put cells that contain the delimiter in quotation marks")

    @classmethod
    def _of(cls, path: str, every: Sequence[list[str]], delimiter: str, advice: str) -> "UserTable":
        """Return a table with these rows, the header first. `advice` says how to mend a row that is too long."""
        from penwright.data.readers.spreadsheets import require_few_cells

        header, *rows = every or [[]]
        require_few_cells(path, len(rows) * len(header))
        if not any(header):
            raise PenwrightError(f"{path} has no header line. Insert a first line that names the columns")
        for number, row in enumerate(rows, start=2):
            if len(row) > len(header):
                raise PenwrightError(
                    f"{path}: row {number} has {len(row)} cells, but the header has {len(header)}. {advice}"
                )
        return cls(path, header, [row + [""] * (len(header) - len(row)) for row in rows], delimiter)

    def texts(self, names: Sequence[str], trained: Sequence[tuple[str, int]], between: str = " ") -> list[str]:
        """Return the text of each row. The cells of several columns are joined by `between`.

        Without column names, the columns that the run was trained on are used. As in training, blank cells are
        skipped, except in pairs.
        """
        from penwright.data.readers.layout import find_header

        columns = [self._column(name) for name in names]
        if not columns and all(name in self.header for name, _ in trained):
            columns = [self._column(name) for name, _ in trained]
        if not columns and len(self.header) == 1:
            columns = [0]
            if find_header([self.header, *self.rows[:SAMPLE]], 1) is None:
                warn(f"{self.path}: the first row is read as the name of the column, not as a text: {self.header[0]}")
        if not columns:
            raise UsageError(
                f"which column of {self.path} is the text? Name it with --text. Columns: {', '.join(self.header)}"
            )
        if between == "\t" and len(columns) != 2:
            raise UsageError("this model reads pairs of texts. Name the columns of both: --text FIRST --text SECOND")
        rows = ([row[column].replace(between, " ").strip() for column in columns] for row in self.rows)
        return [between.join(cells if between == "\t" else filter(None, cells)) for cells in rows]

    def _column(self, name: str) -> int:
        """Return the index of a column, given its name or its number from 1. Warn if other columns have its name."""
        if name in self.header:
            first, *others = (number for number, each in enumerate(self.header, 1) if each == name)
            if others:
                numbers = ", ".join(map(str, [first, *others]))
                warn(
                    f"{self.path} has columns {numbers} with the name '{name}'. Column {first} is read. To choose "
                    f"another: --text {others[0]}"
                )
            return first - 1
        if name.isdecimal() and 1 <= int(name) <= len(self.header):
            return int(name) - 1
        raise UsageError(f"{self.path} has no column '{name}'. Columns: {', '.join(self.header)}")

    def write(self, names: Sequence[str], columns: Sequence[Sequence[str]]) -> None:
        """Write the table with the new columns to standard output. If a name is already taken, append a number."""
        header = list(self.header)
        for name in names:
            taken = (f"{name}_{number}" for number in range(2, len(header) + 3))
            header.append(name if name not in header else next(each for each in taken if each not in header))
        writers = [
            csv.writer(sys.stdout, delimiter=self.delimiter, lineterminator="\n", quoting=quoting)
            for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
        ]
        for row in [header, *([*row, *added] for row, *added in zip(self.rows, *columns, strict=True))]:
            writers["\r" in "".join(row)].writerow(row)  # Python quotes a lone carriage return only from 3.13 on


def _delimiter_of(lines: Sequence[str]) -> str:
    """Return the delimiter that fits the rows, as in training. In doubt, it is the one most frequent in the header."""
    from penwright.data.readers.layout import SAMPLE_ROWS, find_dialect

    found = find_dialect(lines[:SAMPLE_ROWS], is_cut=len(lines) > SAMPLE_ROWS).delimiter
    if len(found) == 1 and _header_width(lines, found) > 1:
        return found
    return max(DELIMITERS, key=lambda each: _header_width(lines, each))


def _header_width(lines: Sequence[str], delimiter: str) -> int:
    from penwright.data.readers.delimited import Dialect, read_cells

    return len(next(iter(read_cells(lines, Dialect(delimiter, '"'))), []))


def _sheet(path: str) -> list[list[str]] | None:
    """Return the rows of a spreadsheet, or None for plain text. Raises PenwrightError for other binary formats."""
    from penwright.data.files import format_of
    from penwright.data.readers.spreadsheets import read_sheet
    from penwright.data.readers.tables import SHEETS

    if not Path(path).is_file() or not os.access(path, os.R_OK):
        return None  # a pipe, or a problem that read_text() reports
    with Path(path).open("rb") as file:
        head = file.read(4)
    if head == b"PAR1":
        raise PenwrightError(f"{path} is a Parquet file, which --csv does not read. {SAVE}")
    kind = format_of(Path(path), path) if head.startswith(OFFICE) else None
    if kind is not None and kind.name not in SHEETS:
        raise PenwrightError(f"{path} is {kind.description}, not a table. {SAVE}")
    return read_sheet(Path(path), kind.name) if kind else None
