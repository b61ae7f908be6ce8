"""Tables: TSV, CSV and JSON lines, read row by row, with their columns found out."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from operator import itemgetter

from penwright.data.files import SourceFile
from penwright.data.headers import HEADER_NAMES, TELLING_NAMES, TEXT_NAMES
from penwright.data.paths import suffix_of
from penwright.data.readers.spreadsheets import sheet_rows
from penwright.errors import PenwrightError

Row = tuple[str, ...]
SAMPLE = 1000  # rows that are looked at to find out what the columns are
MOST = 0.95  # of the lines of a table without a header's or a suffix's word for it
MOST_LINES = 2000  # of one row: more are swallowed by a quote mark that is not closed
LONGEST_FIELD = 2**31 - 1
TSV, CSV, JSON = (".tsv", ".tab"), (".csv",), (".jsonl", ".ndjson", ".json")
SHEETS = ("xlsx", "ods")  # formats
TABLE_SUFFIXES = (*TSV, *CSV, *JSON)
SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Delimited:
    """A table of lines of fields; quote marks are ordinary characters unless `quoted`."""

    file: SourceFile
    delimiter: str
    quoted: bool
    header: bool
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.file.path

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return (self.file,)

    def rows(self, columns: Sequence[int]) -> Iterator[Row | None]:
        """The fields of these columns, counted from 0, of every row; None where it has too few."""
        wanted, widest = _picker(columns), max(columns)
        blank = ("",) * len(columns)
        for fields in islice(_split(self.file.lines(), self.delimiter, self.quoted, self.name), int(self.header), None):
            if len(fields) > widest:
                yield wanted(fields)
            else:
                yield None if any(fields) else blank

    def place(self, row: int) -> str:
        """Where the row with this number, from 0, stands."""
        return f"{self.file.path} {'row' if self.quoted else 'line'} {row + 1 + self.header:,}"


def delimited_table(file: SourceFile, delimiter: str | None, names: Sequence[str] = ()) -> Delimited:
    """Find out the delimiter (unless given), the quoting and the header of a file."""
    lines = file.first_lines(SAMPLE)
    if delimiter is None:
        delimiter = max(",;\t|", key=lambda mark: _agreement(_split(lines, mark, quoted=True)))
        quoted = True
    else:
        quoted = _needs_quotes(lines, delimiter, len(lines) < file.n_lines)
    rows = [row for row in _split(lines, delimiter, quoted) if any(row)]
    first = [cell.strip() for cell in rows[0]] if rows else []
    width = max((len(row) for row in rows), default=0)
    if any(cell in names for cell in first) or _is_header(first):
        filled = [*first, *(str(number) for number in range(len(first) + 1, width + 1))]
        return Delimited(file, delimiter, quoted, True, tuple(filled))
    return Delimited(file, delimiter, quoted, False, tuple(str(number) for number in range(1, width + 1)))


@dataclass(frozen=True)
class Records:
    """A table of rows with named fields, from JSON lines or a data set; nested fields are columns too."""

    name: str
    files: tuple[SourceFile, ...]
    read: Callable[[], Iterator[Mapping[str, object] | None]]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for record in islice(self.read(), SAMPLE):
            found |= dict.fromkeys(_flat(record)) if record else {}
        return tuple(found)

    def rows(self, columns: Sequence[int]) -> Iterator[Row | None]:
        names = [self.columns[column] for column in columns]
        for record in self.read():
            if record is None:
                yield None
                continue
            fields = _flat(record)
            texts = [_text(fields.get(name, MISSING)) for name in names]
            yield tuple(text for text in texts if text is not None) if None not in texts else None

    def place(self, row: int) -> str:
        return f"{self.name} {'row' if self.name.startswith('hub:') else 'line'} {row + 1:,}"


Table = Delimited | Records


def is_table_file(file: SourceFile) -> bool:
    """Whether a file is a table by its format or its name."""
    return file.format in SHEETS or (not file.format and suffix_of(file.path) in TABLE_SUFFIXES)


def open_table(file: SourceFile, names: Sequence[str] = ()) -> Table:
    """The table in a file; a first row that holds one of these names is its header."""
    suffix = suffix_of(file.path)
    if file.format in SHEETS:
        return _sheet_table(file, names)
    if suffix in JSON:
        return json_table(file)
    return delimited_table(file, "\t" if suffix not in CSV else None, names)


def table_in(file: SourceFile) -> Table | None:
    """The table that a file holds by its name, or by the tabs in nearly all of its lines; None for running text."""
    if is_table_file(file):
        return open_table(file)
    return delimited_table(file, "\t") if has_tabs(file) and not file.format else None


def names_text(table: Table) -> bool:
    """Whether a column is called what columns of text are called."""
    return any(name.lower() in TEXT_NAMES for name in table.columns)


def text_column(table: Table) -> int:
    """The column of running text: by its name, else the longest."""
    names = [name.lower() for name in table.columns]
    for name in TEXT_NAMES:
        if name in names:
            return names.index(name)
    if not names:
        raise PenwrightError(f"{table.name}: there are no rows")
    sizes = [sum(len(row[0]) for row in islice(table.rows([i]), SAMPLE) if row) for i in range(len(names))]
    return sizes.index(max(sizes))


def has_tabs(file: SourceFile) -> bool:
    """Whether nearly all lines have the same number of tabs, as a table has and running text has not."""
    lines = [line for line in file.first_lines(SAMPLE) if line.strip()]
    return _agreement(line.split("\t") for line in lines) >= MOST


def select(table: Table, first: Sequence[int], second: int) -> Iterator[tuple[str, str] | None]:
    """Two sides of every row, without the spaces around them; the columns of the first are joined by a space."""
    for row in table.rows([*first, second]):
        if row is None:
            yield None
        elif len(row) == 2:
            yield row[0].strip(), row[1].strip()
        else:
            yield " ".join(filter(None, map(str.strip, row[:-1]))), row[-1].strip()


def sample_of(table: Table) -> list[Row]:
    """The first rows, all columns, without the broken ones."""
    rows = table.rows(range(len(table.columns)))
    return [row for row in islice(rows, SAMPLE) if row is not None and any(row)]


def _sheet_table(file: SourceFile, names: Sequence[str]) -> Records:
    first = next(sheet_rows(file.lines()))
    header = any(cell in names for cell in first) or _is_header(first)
    width = max(len(row) for row in islice(sheet_rows(file.lines()), SAMPLE))
    titles = [cell.strip() for cell in first] if header else []
    columns = [title or str(place + 1) for place, title in enumerate([*titles, *[""] * (width - len(titles))])]

    def read() -> Iterator[Mapping[str, object] | None]:
        for row in islice(sheet_rows(file.lines()), int(header), None):
            yield dict(zip(columns, [*row, *[""] * (len(columns) - len(row))], strict=False))

    return Records(file.path, (file,), read)


def json_table(file: SourceFile) -> Records:
    """JSON lines, or one JSON list of objects."""
    start = next(file.chunks(), "").lstrip()[:1]
    if suffix_of(file.path) == ".json" and start == "{" and file.n_lines < 2:
        raise PenwrightError(f"{file.path} is a single JSON object; rows are needed, as JSON lines or one JSON list")
    table = Records(file.path, (file,), lambda: _json_list(file) if start == "[" else map(_record, file.lines()))
    if not table.columns:
        raise PenwrightError(
            f'{file.path} holds no rows: a .jsonl file has one object in a line, such as {{"text": "..."}}'
        )
    return table


MISSING = object()


def _record(line: str) -> Mapping[str, object] | None:
    if not line or line.isspace():
        return {}
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _json_list(file: SourceFile) -> Iterator[Mapping[str, object] | None]:
    try:
        rows = json.loads("".join(file.blocks()))
    except (ValueError, RecursionError) as error:
        raise PenwrightError(f"{file.path} is neither JSON lines nor one JSON list: {error}") from None
    return (row if isinstance(row, dict) else None for row in rows)


def _flat(record: Mapping[str, object]) -> Mapping[str, object]:
    if not any(isinstance(value, dict) for value in record.values()):
        return record
    inner = [value.items() if isinstance(value, dict) else [(key, value)] for key, value in record.items()]
    return dict(chain.from_iterable(inner))


def _text(value: object) -> str | None:
    """A JSON value as text; None for lists, objects and what is missing."""
    if isinstance(value, str):
        # JSON can escape half of a character, which no text may hold
        return value if value.isascii() or not SURROGATES.search(value) else SURROGATES.sub("\ufffd", value)
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, bool | int | float) else None


def _split(lines: Iterable[str], delimiter: str, quoted: bool, name: str = "") -> Iterator[list[str]]:
    return _parsed(lines, delimiter, name) if quoted else (line.split(delimiter) for line in lines)


def _parsed(lines: Iterable[str], delimiter: str, name: str) -> Iterator[list[str]]:
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter)
    while True:
        before = reader.line_num
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:  # a carriage return inside a field without quotes: count the row as broken
            row = ["?"]
        if reader.line_num - before > MOST_LINES:
            raise PenwrightError(
                f"{name}: the row that begins in line {before + 1:,} does not end within {MOST_LINES:,} lines; "
                'is a quote mark (") there not closed? Double it inside of fields, or use tabs and a .tsv file'
            )
        yield row


def _picker(columns: Sequence[int]) -> Callable[[list[str]], Row]:
    if len(columns) == 1:
        only = columns[0]
        return lambda fields: (fields[only],)
    return itemgetter(*columns)


def _agreement(rows: Iterable[list[str]]) -> float:
    """The share of rows with the commonest number of fields, 0 when that is one."""
    widths = [len(row) for row in rows if row]
    common = max(set(widths), key=widths.count, default=1)
    return 0.0 if common == 1 else widths.count(common) / len(widths)


def _needs_quotes(lines: Sequence[str], delimiter: str, there_are_more: bool) -> bool:
    """Whether quote marks were put by a CSV writer: all are in their places, and some cannot be the text's own."""
    if not any('"' in line for line in lines):
        return False
    cells = [cell for line in lines for cell in line.split(delimiter) if cell.startswith('"')]
    proper = [len(cell) > 1 and cell.endswith('"') and '"' not in cell[1:-1].replace('""', "") for cell in cells]
    if cells and all(proper):
        everywhere = len(cells) == sum(line.count(delimiter) + 1 for line in lines if line)
        return everywhere or any('""' in cell[1:-1] for cell in cells)
    if _agreement(_split(lines, delimiter, quoted=False)) == 1:
        return False
    rows = list(_split(lines, delimiter, quoted=True))
    return _agreement(rows[:-1] if there_are_more else rows) == 1  # the sample may end inside a field


def _is_header(cells: Sequence[str]) -> bool:
    """Whether these are names of columns: all are common ones, or one tells what the column is for."""
    names = [cell.lower().replace(" ", "_") for cell in cells]
    if not names or len(set(names)) < len(names) or not all(names) or max(map(len, names)) > 30:
        return False
    identifiers = all(re.fullmatch(r"\w+", name) for name in names)
    return HEADER_NAMES.issuperset(names) or (identifiers and not TELLING_NAMES.isdisjoint(names))
