"""Delimited text (CSV, TSV and the like) split into rows of cells, and lines that begin or end with a label."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from penwright.data.corpus import Broken, Row
from penwright.data.files import SourceFile

Cells = list[str]
SEPARATOR_LINE = re.compile(r'"?sep=(..?)"?', re.IGNORECASE)  # the first line of some Excel exports
STAND_IN = "\ue000"  # replaces a multi-character delimiter, which the csv module does not support
MOST_LINES = 100_000  # maximum number of lines per row; a quote mark that stays open longer counts as text
SWALLOWED = 4  # a quote mark is stray if it joins at least this many lines that are complete rows
LONGEST_CELL = 2**31 - 1
BACKSLASH = re.compile(r'\\(["\\])|\\')
COPY_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
COPY_CODES = {"n": "\n", "t": "\t", "r": "\r", "N": ""}
PREFIX = "__label__"
SAMPLE = 1000  # number of lines that are examined
MOST = 0.98  # minimum share of lines in the expected form
FEWEST = 20  # minimum number of lines for detecting labels; also the minimum number of lines per label
LONGEST_LABEL = 30  # maximum length of a label, in characters
MOST_WORDS = 3  # maximum number of words in a label
SENTENCE_ENDS = tuple(".!?…。！？।؟")
CLOSING_QUOTES = "\"'”’»"
_FASTTEXT = re.compile(rf"\s*((?:{PREFIX}\S+\s*)+)(.*)", re.DOTALL)
Parse = Callable[[str], tuple[str, str]]  # function that splits a line into label and text


@dataclass(frozen=True)
class Dialect:
    """The delimiter, quote mark and escape character of a file. A delimiter of "" means a single column."""

    delimiter: str
    quote: str = ""
    escape: str = ""  # a backslash that escapes quote marks (or delimiters, if nothing is quoted), or ""
    has_space_after_delimiter: bool = False  # whether a space separates a delimiter from a quote mark


def read_cells(
    lines: Iterable[str], dialect: Dialect, width: int | None = None, *, is_cut: bool = False
) -> Iterator[Cells]:
    """Yield the cells of each row. The number of columns, `width`, helps to repair rows with stray quote marks.

    `is_cut` means that the file continues after these lines: a row that does not end within them is dropped.
    """
    delimiter = dialect.delimiter
    if dialect.quote:
        return iter(QuotedRows(lines, dialect, width, is_cut))
    if dialect.escape:
        return _copy_rows(lines, delimiter)
    return (line.split(delimiter) for line in lines) if delimiter else ([line] for line in lines)


def _copy_rows(lines: Iterable[str], delimiter: str) -> Iterator[Cells]:
    r"""Yield the rows of files from PostgreSQL's COPY or MySQL: special characters are escaped, and \N is NULL."""
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
            cells, position = [], 0
            while position <= len(held):
                match = cell.match(held, position)
                end = match.end() if match else len(held)
                cells.append(COPY_ESCAPE.sub(lambda code: COPY_CODES.get(code[1], code[1]), held[position:end]))
                position = end + 1
            yield cells
        held = ""
    if held:
        yield held.removesuffix("\n").split(delimiter)


class QuotedRows:
    """An iterable over rows with quoted cells.

    The csv module parses each row strictly. If it fails, or does not find `width` cells, the first line is parsed by
    itself, with stray quote marks as ordinary characters. The lines after it are then read again.
    """

    def __init__(self, lines: Iterable[str], dialect: Dialect, width: int | None, is_cut: bool) -> None:
        csv.field_size_limit(LONGEST_CELL)
        self.is_proper = True  # whether all quote marks in the latest row are correctly placed
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
            if is_escaped and "\\" in line:  # a backslash before any other character is literal
                line = BACKSLASH.sub(lambda match: match[0] if match[1] else "\\\\", line)
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
        """Return the cells of a doubtful row, and whether its quote marks are correctly placed.

        `cells` are the cells that the csv module found in these lines; None if it failed.
        """
        first, *others = self._taken
        mended = self._mend(first)
        if cells is not None and (mended is None or (others and not self._swallows(cells))):
            return cells, True
        self._ahead += reversed(others)
        return mended or first.split(self._mark), False

    def _swallows(self, cells: Cells) -> bool:
        """Return whether a stray quote mark has joined several rows into one."""
        if self._width is None:
            return False
        if len(cells) != self._width:
            return True
        return len(self._taken) >= SWALLOWED and all(self._mend(line) for line in self._taken)

    def _mend(self, line: str) -> Cells | None:
        """Split a line, treating stray quote marks as text. Return None if the number of cells is wrong."""
        doubled, quote = self._dialect.quote * 2, self._dialect.quote
        for pattern in self._patterns:
            cells, position = [], 0
            while position <= len(line):
                match = pattern.match(line, position)
                assert match is not None  # each pattern ends with an alternative that matches any text
                cells.append(match[2] if match[1] is None else self._unescape(match[1].replace(doubled, quote)))
                position = match.end() + 1
            if self._width in (None, len(cells)):
                return cells
        cells = line.split(self._mark)
        return cells if len(cells) == self._width else None

    def _unescape(self, cell: str) -> str:
        return re.sub(r'\\(["\\])', r"\1", cell) if self._dialect.escape else cell


def _lenient_patterns(mark: str, dialect: Dialect) -> list[str]:
    """Return two regular expressions for a cell, quoted or not, that may contain stray quote marks.

    In a quoted cell, the first pattern recognizes doubled quote marks; the second does not.
    """
    quote, mark = re.escape(dialect.quote), re.escape(mark)
    space, escaped = " ?" if dialect.has_space_after_delimiter else "", r"\\.|" if dialect.escape else ""
    other = rf"{mark}(?!{space}{quote})"  # a delimiter before a quote mark ends the cell
    inside = [
        rf"(?>{escaped}{quote}{quote}|[^{quote}{mark}]|{other}|{quote}(?!{mark}|$))*?",
        rf"(?>{escaped}[^{mark}]|{other})*?",
    ]
    return [rf"{space}{quote}({each}){quote}(?={mark}|$)|([^{mark}]*)" for each in inside]


@dataclass(frozen=True)
class FileTable:
    """A base class for tables that are stored in one file. The table has the name of the file."""

    file: SourceFile

    @property
    def name(self) -> str:
        """The path of the file."""
        return self.file.path

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The only file of the table, as a tuple."""
        return (self.file,)


@dataclass(frozen=True)
class LabelledLines(FileTable):
    """A file of labelled lines, as a table with the columns `label` and `text`."""

    parse: Parse
    form: str  # description, such as "lines begin with a label and a comma"
    columns: tuple[str, ...] = ("label", "text")
    n_skipped: int = 0  # number of lines of the header

    def rows(self, columns: Sequence[int]) -> Iterator[Row | Broken]:
        """Yield the given columns (counted from 0) of every line. Several labels become a JSON list."""
        for line in islice(self.file.lines(), self.n_skipped, None):
            label, text = self.parse(line)
            if PREFIX in label:
                label = json.dumps([each.strip() for each in label.split(PREFIX)], ensure_ascii=False)
            yield tuple((label, text)[column] for column in columns)

    def location(self, row: int) -> str:
        """Describe the location of a row (counted from 0), for messages."""
        return f"{self.file.path} line {row + 1 + self.n_skipped:,}"


def labelled_lines(file: SourceFile, fewest: int = FEWEST) -> LabelledLines | None:
    """Return the table in a file of labelled lines, or None if they are not clearly labelled."""
    lines = [line for line in file.first_lines(SAMPLE) if line.strip()]
    if lines and sum(line.lstrip().startswith(PREFIX) for line in lines) >= MOST * len(lines):
        return LabelledLines(file, _fasttext, f"lines begin with {PREFIX}")
    forms: tuple[tuple[Parse, str], ...] = (
        (_label_first, "lines begin with a label and a comma"),
        (_label_last, "lines end with a comma and a label"),
    )
    formats = (LabelledLines(file, parse, form) for parse, form in forms if _are_labelled(lines, parse))
    return next(formats, None) if len(lines) >= fewest else None


def _fasttext(line: str) -> tuple[str, str]:
    match = _FASTTEXT.fullmatch(line)
    return (match[1].strip().removeprefix(PREFIX), match[2]) if match else ("", line)


def _label_first(line: str) -> tuple[str, str]:
    label, _, text = line.partition(",")
    return label, text


def _label_last(line: str) -> tuple[str, str]:
    text, _, label = line.rpartition(",")
    return label, text


def _are_labelled(lines: Sequence[str], parse: Parse) -> bool:
    """Return whether nearly all lines have a text and a short label, with few different labels."""
    cells = [(label.strip(), text.strip()) for label, text in map(parse, lines)]
    labels = [label for label, text in cells if label and text and _may_be_label(label)]
    often = 2 <= len(set(labels)) <= max(2, len(lines) // FEWEST)
    return len(labels) >= MOST * len(lines) and often


def _may_be_label(label: str) -> bool:
    """Return whether a part of a line may be a label: short, and not a clause such as `and she was happy.`."""
    is_short = len(label) <= LONGEST_LABEL and len(label.split()) <= MOST_WORDS
    return is_short and not label.rstrip(CLOSING_QUOTES).endswith(SENTENCE_ENDS)
