"""Delimited text (CSV, TSV and the like): its dialect is detected, then its lines are split into rows of cells."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from penwright.data.readers.header_row import is_known_header

Cells = list[str]
SEPARATOR_LINE = re.compile(r'"?sep=(..?)"?', re.IGNORECASE)  # the first line of some Excel exports
DELIMITERS = ("\t", ";", "|", ",", "^", "~", "::", "||", "|||")
STAND_IN = "\ue000"  # replaces a multi-character delimiter, which the csv module does not support
MOST_LINES = 100_000  # per row; a quote mark that is still open after these is an ordinary character
SWALLOWED = 4  # lines in one quoted row; if each is a complete row by itself, the quote mark is a stray one
LONGEST_CELL = 2**31 - 1
FEW_FIT = 0.3  # share of rows that must fit if the first one is a header
TABBED = 0.95  # share of lines with the same number of tabs, if nothing else suggests a table
MANY_FIT = 0.6  # share of rows that must fit if there is no header
BACKSLASH = re.compile(r'\\(["\\])|\\')
COPY_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
COPY_CODES = {"n": "\n", "t": "\t", "r": "\r", "N": ""}


@dataclass(frozen=True)
class Dialect:
    """The delimiter, quote mark and escape character of a file. A delimiter of "" means a single column."""

    delimiter: str
    quote: str = ""
    escape: str = ""  # a backslash, before quote marks or, if nothing is quoted, before delimiters
    has_space_after_delimiter: bool = False  # whether a space separates a delimiter from a quote mark


@dataclass(frozen=True)
class Fit:
    """The result of splitting some lines with a dialect."""

    dialect: Dialect
    width: int  # number of cells in most rows
    share: float  # share of rows with this width; wide rows (10 cells or more) may differ slightly
    proper: float  # share of rows with all quote marks in place
    first: Cells

    def rank(self, text: str) -> tuple[float, float, bool, int, float, int]:
        """Return a sort key that compares delimiters. The best fit sorts last."""
        mark = self.dialect.delimiter
        n_prose = text.count(f"{mark} ") / text.count(mark)  # a space follows punctuation
        known = self.is_named, len(mark), -round(n_prose, 1), -DELIMITERS.index(mark)
        return round(self.share, 3), round(self.proper, 1), *known

    @property
    def is_named(self) -> bool:
        """Whether the first row is a header of common names, as wide as the other rows."""
        return len(self.first) == self.width and is_known_header(self.first)


def find_dialect(lines: Sequence[str], delimiter: str | None = None, *, is_cut: bool = False) -> Dialect:
    """Return the dialect that splits these lines into rows of the most equal width.

    If a `delimiter` is given, only the quoting is detected. `is_cut` means that the file continues after these lines.
    """
    lines = [line for line in lines if line.strip()]
    marks = (
        [delimiter] if delimiter is not None else [mark for mark in DELIMITERS if any(mark in line for line in lines)]
    )
    fits = [fit for mark in marks if (fit := _best_quoting(lines, mark, is_cut))]
    if delimiter is not None:
        return fits[0].dialect if fits else Dialect(delimiter)
    fits = [fit for fit in fits if fit.width > 1 and fit.share >= (FEW_FIT if fit.is_named else MANY_FIT)]
    text = "\n".join(lines)
    best = max(fits, key=lambda fit: fit.rank(text), default=None)
    return best.dialect if best else Dialect("", '"')


def read_cells(
    lines: Iterable[str], dialect: Dialect, width: int | None = None, *, is_cut: bool = False
) -> Iterator[Cells]:
    """Yield the cells of each row. The number of columns, `width`, helps to repair rows with stray quote marks.

    `is_cut` means that the file continues after these lines: a row that does not end within them is dropped.
    """
    delimiter = dialect.delimiter
    if dialect.quote:
        return iter(_Quoted(lines, dialect, width, is_cut))
    if dialect.escape:
        return _copy_rows(lines, delimiter)
    return (line.split(delimiter) for line in lines) if delimiter else ([line] for line in lines)


def is_tabbed(lines: Sequence[str]) -> bool:
    """Return whether tabs split nearly all lines into the same number of cells, as in a table.

    At least two columns must be filled in most lines, since running text may begin or end with tabs.
    """
    rows = [line.split("\t") for line in lines if line.strip()]
    widths = Counter(map(len, rows))
    width = max(widths, key=lambda width: widths[width], default=1)
    whole = [row for row in rows if len(row) == width]
    n_filled = sum(2 * sum(bool(row[column].strip()) for row in whole) > len(whole) for column in range(width))
    return n_filled > 1 and len(whole) >= TABBED * len(rows)


def _best_quoting(lines: Sequence[str], delimiter: str, is_cut: bool) -> Fit | None:
    """Return the best fit with this delimiter; None if there are no rows.

    In a TSV file, quote marks count as text unless a CSV writer clearly put them there. So do single quotes anywhere.
    """
    plain = _fit(lines, Dialect(delimiter), is_cut)
    quoted = [fit for dialect in _quotings(lines, delimiter) if (fit := _fit(lines, dialect, is_cut))]
    best = max(quoted, key=lambda fit: (fit.share, fit.proper, fit.dialect.quote != ""), default=plain)
    if plain is None or best is None or best.dialect.quote == "":
        return best if plain is None else plain
    is_escaped = best.dialect.escape != "" and best.proper == 1
    is_doubtful = (delimiter == "\t" and not is_escaped) or best.dialect.quote == "'"
    if best.share == plain.share and is_doubtful:
        return best if _has_written_quotes(lines, best.dialect) else plain
    return best if best.share >= plain.share else plain


def _quotings(lines: Sequence[str], delimiter: str) -> Iterator[Dialect]:
    text = "\n".join(lines)
    if delimiter == "\t" and ("\\\t" in text or re.search(r"(^|\t)\\N(\t|$)", text, re.MULTILINE)):
        yield Dialect(delimiter, escape="\\")
    quoted = Dialect(delimiter, '"')
    if '"' in text or delimiter != "\t":
        yield quoted
        if '\\"' in text:
            yield replace(quoted, escape="\\")
        if f'{delimiter} "' in text:
            yield replace(quoted, has_space_after_delimiter=True)
    if re.search(rf"(^|{re.escape(delimiter)})'", text, re.MULTILINE):
        yield Dialect(delimiter, "'")


def _fit(lines: Sequence[str], dialect: Dialect, is_cut: bool) -> Fit | None:
    if dialect.quote:
        reader = _Quoted(lines, dialect, None, is_cut)
        rows = [(cells, reader.is_proper) for cells in reader]
    else:
        rows = [(cells, True) for cells in read_cells(lines, dialect)]
    if not rows:
        return None
    widths = Counter(len(cells) for cells, _ in rows)
    width = max((width for width in widths if width > 1), key=lambda width: (widths[width], width), default=1)
    proper = sum(is_proper for _, is_proper in rows) / len(rows)
    near = sum(n for other, n in widths.items() if abs(other - width) <= width // 10)
    return Fit(dialect, width, near / len(rows), proper, rows[0][0])


def _has_written_quotes(lines: Sequence[str], dialect: Dialect) -> bool:
    """Return whether a CSV writer put the quote marks: all are in place, and they cannot all belong to the text."""
    if not dialect.quote:
        return True
    quote = dialect.quote
    rows = [line.split(dialect.delimiter) for line in lines]
    cells = [cell for row in rows for cell in row if cell.startswith(quote)]
    proper = [
        len(cell) > 1 and cell.endswith(quote) and quote not in cell[1:-1].replace(2 * quote, "") for cell in cells
    ]
    if not cells or not all(proper):
        return False
    width = max(map(len, rows))
    everywhere = len(cells) == sum(map(len, rows)) if quote == '"' else len(cells) >= len(rows) - 1 > width
    return everywhere or any(2 * quote in cell[1:-1] for cell in cells)


def _copy_rows(lines: Iterable[str], delimiter: str) -> Iterator[Cells]:
    r"""Yield the rows of PostgreSQL's COPY and of MySQL, which escape special characters and write \N for NULL."""
    cell = re.compile(rf"(?:[^\\{delimiter}]|\\.)*", re.DOTALL)
    held = ""
    for line in lines:
        held += line
        if (len(line) - len(line.rstrip("\\"))) % 2:  # an escaped newline belongs to the cell
            held += "\n"
            continue
        if "\\" not in held:
            yield held.split(delimiter)
        else:
            cells, place = [], 0
            while place <= len(held):
                found = cell.match(held, place)
                end = found.end() if found else len(held)
                cells.append(COPY_ESCAPE.sub(lambda code: COPY_CODES.get(code[1], code[1]), held[place:end]))
                place = end + 1
            yield cells
        held = ""
    if held:
        yield held.removesuffix("\n").split(delimiter)


class _Quoted:
    """An iterable over rows with quoted cells.

    The csv module parses each row strictly. If it fails, or does not find `width` cells, the first line is parsed by
    itself, with stray quote marks as ordinary characters. The lines after it are then read again.
    """

    def __init__(self, lines: Iterable[str], dialect: Dialect, width: int | None, is_cut: bool) -> None:
        csv.field_size_limit(LONGEST_CELL)
        self.is_proper = True  # whether all quote marks of the last row were in place
        self._dialect, self._width, self._is_cut = dialect, width, is_cut
        self._mark = dialect.delimiter if len(dialect.delimiter) == 1 else STAND_IN
        self._is_replaced = len(dialect.delimiter) > 1
        self._lines = (
            (line.replace(dialect.delimiter, STAND_IN) for line in lines) if self._is_replaced else iter(lines)
        )
        self._is_over = False  # whether all lines have been read once
        self._ahead: Cells = []  # lines to read again, in reverse order
        self._taken: Cells = []  # lines of the current row
        self._patterns = [re.compile(pattern, re.DOTALL) for pattern in _lenient_patterns(self._mark, dialect)]

    def __iter__(self) -> Iterator[Cells]:
        taken, width, rows = self._taken, self._width, self._strict_rows()
        while True:
            taken.clear()
            cells: Cells | None
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error:
                if self._is_over and self._is_cut and len(taken) > 1:
                    return
                cells, rows = None, self._strict_rows()
            if cells is None or len(taken) > 1 or (width is not None and len(cells) != width):
                cells, self.is_proper = self._settle(cells)
            else:
                self.is_proper = True
            yield [cell.replace(STAND_IN, self._dialect.delimiter) for cell in cells] if self._is_replaced else cells

    def _feed(self) -> Iterator[str]:
        ahead, lines, taken, is_escaped = self._ahead, self._lines, self._taken, self._dialect.escape != ""
        while len(taken) < MOST_LINES:
            line = ahead.pop() if ahead else next(lines, None)
            if line is None:
                self._is_over = True
                return
            taken.append(line)
            if is_escaped and "\\" in line:  # before any other character, a backslash is literal
                line = BACKSLASH.sub(lambda found: found[0] if found[1] else "\\\\", line)
            yield f"{line}\n"

    def _strict_rows(self) -> "Iterator[Cells]":
        return csv.reader(
            self._feed(),
            delimiter=self._mark,
            quotechar=self._dialect.quote,
            escapechar=self._dialect.escape or None,
            skipinitialspace=self._dialect.has_space_after_delimiter,
            strict=True,
        )

    def _settle(self, cells: Cells | None) -> tuple[Cells, bool]:
        """Return the cells of a doubtful row, and whether its quote marks are in place.

        `cells` is what the csv module found in the taken lines; None if it failed.
        """
        first, *others = self._taken
        mended = self._mend(first)
        if cells is not None and (mended is None or (others and not self._swallows(cells))):
            return cells, True
        self._ahead += reversed(others)
        return mended or first.split(self._mark), False

    def _swallows(self, cells: Cells) -> bool:
        """Return whether the lines taken for one row are separate rows, the first with a stray quote mark."""
        if self._width is None:
            return False
        if len(cells) != self._width:
            return True
        return len(self._taken) >= SWALLOWED and all(self._mend(line) for line in self._taken)

    def _mend(self, line: str) -> Cells | None:
        """Split one line by itself, keeping stray quote marks; return None if the number of cells is wrong."""
        doubled, quote = self._dialect.quote * 2, self._dialect.quote
        for pattern in self._patterns:
            cells, place = [], 0
            while place <= len(line):
                found = pattern.match(line, place)
                assert found is not None  # its last alternative matches anything
                cells.append(found[2] if found[1] is None else self._unescape(found[1].replace(doubled, quote)))
                place = found.end() + 1
            if self._width in (None, len(cells)):
                return cells
        cells = line.split(self._mark)
        return cells if len(cells) == self._width else None

    def _unescape(self, cell: str) -> str:
        return re.sub(r'\\(["\\])', r"\1", cell) if self._dialect.escape else cell


def _lenient_patterns(mark: str, dialect: Dialect) -> list[str]:
    """Return patterns for a cell with stray quote marks: quoted, with or without doubled marks, or unquoted."""
    quote, mark = re.escape(dialect.quote), re.escape(mark)
    space, escaped = " ?" if dialect.has_space_after_delimiter else "", r"\\.|" if dialect.escape else ""
    other = rf"{mark}(?!{space}{quote})"  # a delimiter before a quote mark ends the cell
    inside = [
        rf"(?>{escaped}{quote}{quote}|[^{quote}{mark}]|{other}|{quote}(?!{mark}|$))*?",
        rf"(?>{escaped}[^{mark}]|{other})*?",
    ]
    return [rf"{space}{quote}({each}){quote}(?={mark}|$)|([^{mark}]*)" for each in inside]
