"""Delimited text: find the delimiter and the quoting of a file, then split it into rows of cells."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from penwright.data.readers.header_row import is_known_header

Cells = list[str]
SEPARATOR_LINE = re.compile(r'"?sep=(..?)"?', re.IGNORECASE)  # the first line of some files that Excel wrote
DELIMITERS = ("\t", ";", "|", ",", "^", "~", "::", "||", "|||")
STAND_IN = "\ue000"  # replaces a delimiter of several characters, which the csv module cannot split at
MOST_LINES = 100_000  # of one row: a quote mark that is not closed by then is an ordinary character
SWALLOWED = 4  # lines: that so many have the cells of a row each is no chance
LONGEST_CELL = 2**31 - 1
FEW_FIT = 0.3  # of the rows, where the first one is a header
TABBED = 0.95  # of the lines of a table that only its tabs show
MANY_FIT = 0.6  # of the rows, where nothing else shows that there are columns
BACKSLASH = re.compile(r'\\(["\\])|\\')
COPY_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
COPY_CODES = {"n": "\n", "t": "\t", "r": "\r", "N": ""}


@dataclass(frozen=True)
class Dialect:
    """How the cells of a row are written. A delimiter of "" stands for a single column."""

    delimiter: str
    quote: str = ""
    escape: str = ""  # a backslash before quote marks, or before delimiters where nothing is quoted
    is_spaced: bool = False  # a space stands between a delimiter and a quote mark


@dataclass(frozen=True)
class Fit:
    """How well a dialect fits some lines."""

    dialect: Dialect
    width: int  # cells of most rows
    share: float  # of the rows that have this width or, if it is large, one close to it
    proper: float  # share of the rows whose quote marks are all in place
    first: Cells

    def rank(self, text: str) -> tuple[float, float, bool, int, float, int]:
        """Return a sort key for fits with several delimiters, the best last."""
        mark = self.dialect.delimiter
        n_prose = text.count(f"{mark} ") / text.count(mark)  # as punctuation stands
        known = self.is_named, len(mark), -round(n_prose, 1), -DELIMITERS.index(mark)
        return round(self.share, 3), round(self.proper, 1), *known

    @property
    def is_named(self) -> bool:
        """Whether the first row is a header of common names, as wide as the other rows."""
        return len(self.first) == self.width and is_known_header(self.first)


def find_dialect(lines: Sequence[str], delimiter: str | None = None, *, is_cut: bool = False) -> Dialect:
    """Return the dialect that splits these lines into the most even rows.

    A `delimiter` that is given is taken if any line has it. `is_cut` says that the file goes on after these lines.
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
    """Yield the cells of each row. `width`, the number of columns, helps to mend rows with stray quote marks.

    If the lines are cut off, a row that does not end within them is left out.
    """
    delimiter = dialect.delimiter
    if dialect.quote:
        return iter(_Quoted(lines, dialect, width, is_cut))
    if dialect.escape:
        return _copied(lines, delimiter)
    return (line.split(delimiter) for line in lines) if delimiter else ([line] for line in lines)


def is_tabbed(lines: Sequence[str]) -> bool:
    """Return whether tabs divide nearly all lines into the same number of cells, as in a table.

    Lines that begin or end with a tab are running text: at least two columns must be filled in most lines.
    """
    rows = [line.split("\t") for line in lines if line.strip()]
    widths = Counter(map(len, rows))
    width = max(widths, key=lambda width: widths[width], default=1)
    whole = [row for row in rows if len(row) == width]
    n_filled = sum(2 * sum(bool(row[column].strip()) for row in whole) > len(whole) for column in range(width))
    return n_filled > 1 and len(whole) >= TABBED * len(rows)


def _best_quoting(lines: Sequence[str], delimiter: str, is_cut: bool) -> Fit | None:
    """The dialect with this delimiter that fits best. Doubtful quote marks belong to the text in a TSV file only."""
    plain = _fit(lines, Dialect(delimiter), is_cut)
    quoted = [fit for dialect in _quotings(lines, delimiter) if (fit := _fit(lines, dialect, is_cut))]
    best = max(quoted, key=lambda fit: (fit.share, fit.proper, fit.dialect.quote != ""), default=plain)
    if plain is None or best is None or best.dialect.quote == "":
        return best if plain is None else plain
    is_escaped = best.dialect.escape != "" and best.proper == 1
    is_doubtful = (delimiter == "\t" and not is_escaped) or best.dialect.quote == "'"
    if best.share == plain.share and is_doubtful:
        return best if _are_written(lines, best.dialect) else plain
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
            yield replace(quoted, is_spaced=True)
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


def _are_written(lines: Sequence[str], dialect: Dialect) -> bool:
    """Whether a CSV writer put the quote marks: all are in place, and some cannot belong to the text."""
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


def _copied(lines: Iterable[str], delimiter: str) -> Iterator[Cells]:
    """Rows as PostgreSQL's COPY and MySQL write them: a backslash stands before special characters, \\N for nothing."""
    cell = re.compile(rf"(?:[^\\{delimiter}]|\\.)*", re.DOTALL)
    held = ""
    for line in lines:
        held += line
        if (len(line) - len(line.rstrip("\\"))) % 2:  # the newline is part of the cell
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
    """Rows with quoted cells.

    The csv module reads each row strictly. If it cannot, or finds another number of cells than there are columns, the
    first line is read by itself, with stray quote marks as ordinary characters. The lines after it are then read again.
    """

    def __init__(self, lines: Iterable[str], dialect: Dialect, width: int | None, is_cut: bool) -> None:
        csv.field_size_limit(LONGEST_CELL)
        self.is_proper = True  # the row that was read last: all its quote marks are in place
        self._dialect, self._width, self._is_cut = dialect, width, is_cut
        self._mark = dialect.delimiter if len(dialect.delimiter) == 1 else STAND_IN
        self._is_replaced = len(dialect.delimiter) > 1
        self._lines = (
            (line.replace(dialect.delimiter, STAND_IN) for line in lines) if self._is_replaced else iter(lines)
        )
        self._is_over = False  # all lines have been read, perhaps to be read again
        self._ahead: Cells = []  # lines to read again, the next one last
        self._taken: Cells = []  # lines of the row that is being read
        self._patterns = [re.compile(pattern, re.DOTALL) for pattern in _lenient(self._mark, dialect)]

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
            if is_escaped and "\\" in line:  # a backslash before another character is an ordinary one
                line = BACKSLASH.sub(lambda found: found[0] if found[1] else "\\\\", line)
            yield f"{line}\n"

    def _strict_rows(self) -> "Iterator[Cells]":
        return csv.reader(
            self._feed(),
            delimiter=self._mark,
            quotechar=self._dialect.quote,
            escapechar=self._dialect.escape or None,
            skipinitialspace=self._dialect.is_spaced,
            strict=True,
        )

    def _settle(self, cells: Cells | None) -> tuple[Cells, bool]:
        """The cells of the row that begins with the lines just taken, given those that the csv module finds."""
        first, *others = self._taken
        mended = self._mend(first)
        if cells is not None and (mended is None or (others and not self._swallows(cells))):
            return cells, True
        self._ahead += reversed(others)
        return mended or first.split(self._mark), False

    def _swallows(self, cells: Cells) -> bool:
        """Whether the lines just taken for one row are rather rows themselves, the first with a stray quote mark."""
        if self._width is None:
            return False
        if len(cells) != self._width:
            return True
        return len(self._taken) >= SWALLOWED and all(self._mend(line) for line in self._taken)

    def _mend(self, line: str) -> Cells | None:
        """The cells of a line by itself, stray quote marks kept; None if there are too few or too many."""
        doubled, quote = self._dialect.quote * 2, self._dialect.quote
        for pattern in self._patterns:
            cells, place = [], 0
            while place <= len(line):
                found = pattern.match(line, place)
                assert found is not None  # its last alternative fits anything
                cells.append(found[2] if found[1] is None else self._unescape(found[1].replace(doubled, quote)))
                place = found.end() + 1
            if self._width in (None, len(cells)):
                return cells
        cells = line.split(self._mark)
        return cells if len(cells) == self._width else None

    def _unescape(self, cell: str) -> str:
        return re.sub(r'\\(["\\])', r"\1", cell) if self._dialect.escape else cell


def _lenient(mark: str, dialect: Dialect) -> list[str]:
    """Patterns for a cell with stray quote marks: quoted, doubled marks or not, else without quotes."""
    quote, mark = re.escape(dialect.quote), re.escape(mark)
    space, escaped = " ?" if dialect.is_spaced else "", r"\\.|" if dialect.escape else ""
    other = rf"{mark}(?!{space}{quote})"  # a delimiter before a quote mark ends the cell
    inside = [
        rf"(?>{escaped}{quote}{quote}|[^{quote}{mark}]|{other}|{quote}(?!{mark}|$))*?",
        rf"(?>{escaped}[^{mark}]|{other})*?",
    ]
    return [rf"{space}{quote}({each}){quote}(?={mark}|$)|([^{mark}]*)" for each in inside]
