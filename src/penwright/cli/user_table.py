"""Tables that users provide. Commands add columns and leave existing cells unchanged."""

import csv
import io
import sys
from collections.abc import Sequence
from typing import NamedTuple

from penwright.cli.options import read_text
from penwright.errors import PenwrightError, UsageError

DELIMITERS = ",;\t|"
LONGEST_CELL = 1 << 27  # maximum number of characters of a cell


class UserTable(NamedTuple):
    """A table with a header."""

    path: str
    header: list[str]
    rows: list[list[str]]
    delimiter: str

    @classmethod
    def read(cls, path: str) -> "UserTable":
        """Read a table (- for standard input). The delimiter is the one that splits the header into the most cells."""
        text = read_text(path).removeprefix("\ufeff")
        csv.field_size_limit(LONGEST_CELL)
        firsts = {each: next(csv.reader(io.StringIO(text, newline=""), delimiter=each), []) for each in DELIMITERS}
        delimiter = max(DELIMITERS, key=lambda each: len(firsts[each]))
        try:
            header, *rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if text else [[]]
        except csv.Error as error:
            raise PenwrightError(f"{path} cannot be read as a table: {error}") from None
        if not any(header):
            raise PenwrightError(f"{path} has no header line. Insert a first line that names the columns")
        for number, row in enumerate(rows, start=2):
            if len(row) > len(header):
                raise PenwrightError(
                    f"{path}: row {number} has {len(row)} cells, but the header has {len(header)}. "
                    "Put cells that contain the delimiter in quotation marks"
                )
        return cls(path, header, [row + [""] * (len(header) - len(row)) for row in rows], delimiter)

    def texts(self, names: Sequence[str], trained: Sequence[tuple[str, int]], between: str = " ") -> list[str]:
        """Return the text of each row. The cells of several columns are joined by `between`.

        Without column names, the columns that the run was trained on are used.
        """
        columns = [self._column(name) for name in names]
        if not columns and all(name in self.header for name, _ in trained):
            columns = [self.header.index(name) for name, _ in trained]
        if not columns and len(self.header) == 1:
            columns = [0]
        if not columns:
            raise UsageError(
                f"which column of {self.path} is the text? Name it with --text. Columns: {', '.join(self.header)}"
            )
        return [between.join(row[column].replace(between, " ") for column in columns) for row in self.rows]

    def _column(self, name: str) -> int:
        """Return the index of a column, given its name or its number from 1."""
        if name in self.header:
            return self.header.index(name)
        if name.isdecimal() and 1 <= int(name) <= len(self.header):
            return int(name) - 1
        raise UsageError(f"{self.path} has no column '{name}'. Columns: {', '.join(self.header)}")

    def write(self, names: Sequence[str], columns: Sequence[Sequence[str]]) -> None:
        """Write the table with the new columns to standard output. If a name is already taken, append a number."""
        header = list(self.header)
        for name in names:
            taken = (f"{name}_{number}" for number in range(2, len(header) + 3))
            header.append(name if name not in header else next(each for each in taken if each not in header))
        writer = csv.writer(sys.stdout, delimiter=self.delimiter, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([*row, *added] for row, *added in zip(self.rows, *columns, strict=True))
