"""Rows of spreadsheets: the first sheet with content in an Excel workbook or OpenDocument spreadsheet."""

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from io import BufferedIOBase
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

from penwright.data.readers.archives import XmlTarget, open_zip, parse_xml
from penwright.errors import PenwrightError, import_extra

MOST_ROWS = 1 << 20  # maximum number of rows of a sheet, as in Excel
MOST_CHARACTERS = 16 << 20  # maximum number of characters of a row
MOST_CELLS = 50_000_000  # maximum number of cells of a sheet that is read as a whole
MOST_REPEATED = 1000  # maximum number of repetitions of a cell or row in an OpenDocument spreadsheet
TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
LITERAL = re.compile(r'"[^"]*"|\\.')  # text in a number format of Excel
NUMBERS = ("float", "currency", "percentage")  # types of cells with a number in an OpenDocument spreadsheet
Cells = list[str]


def read_sheet(path: Path, format_name: str) -> list[Cells]:
    """Return the rows of the first sheet with content. Blank rows between others are kept."""
    with path.open("rb") as file, open_zip(file, str(path)) as opened:
        rows = _rows(file, opened, str(path), format_name)
        found, sheet, n_cells = list[Cells](), None, 0
        for name, row in rows:
            sheet = name if sheet is None and row else sheet
            if name == sheet:
                n_cells += len(row)
                require_few_cells(str(path), n_cells)
                found.append(row)
    while found and not found[-1]:
        found.pop()
    if not found:
        raise PenwrightError(f"{path} has no sheet with content")
    return found


def require_few_cells(name: str, n_cells: int) -> None:
    """Raise PenwrightError if a table has more than MOST_CELLS cells."""
    if n_cells > MOST_CELLS:
        raise PenwrightError(f"{name} has more than {MOST_CELLS:,} cells, blank ones included. Split the table")


def _rows(file: BinaryIO | BufferedIOBase, opened: ZipFile, name: str, format_name: str) -> Iterator[tuple[str, Cells]]:
    """Yield each row of every sheet, with the name of its sheet.

    Raises PenwrightError if a sheet has too many rows, or a row too many characters.
    """
    last, number = "", 0
    for sheet, row in _xlsx_rows(file, name) if format_name == "xlsx" else _ods_rows(opened, name):
        number = number + 1 if sheet == last else 1
        last = sheet
        if number > MOST_ROWS:
            raise PenwrightError(f"{name}: '{sheet}' has more than {MOST_ROWS:,} rows, blank ones included. Split it")
        if sum(map(len, row)) > MOST_CHARACTERS:
            raise PenwrightError(
                f"{name}: row {number:,} of '{sheet}' has more than {MOST_CHARACTERS:,} characters, repeated cells "
                "included. Shorten its cells"
            )
        yield sheet, row


def sheet_lines(file: BufferedIOBase, name: str, format_name: str) -> Iterator[str]:
    """Yield the rows of the first sheet with content as JSON lists of strings, then a line with all sheet names."""
    with open_zip(file, name) as opened:
        rows = _rows(file, opened, name, format_name)
        sheets: list[str] = []
        for sheet, row in rows:
            if row and sheet not in sheets:
                sheets.append(sheet)
            if row and sheet == sheets[0]:
                yield json.dumps(row, ensure_ascii=False)
        if not sheets:
            raise PenwrightError(f"{name} has no sheet with content")
        yield json.dumps({"sheets": sheets})


def sheets_read(last_line: str) -> str:
    """Return a remark that names the sheet that is read, and the other sheets."""
    first, *others = json.loads(last_line)["sheets"]
    return f"sheet '{first}'" + (f" (not read: {', '.join(others)})" if others else "")


def sheet_rows(lines: Iterator[str]) -> Iterator[Cells]:
    """Yield the rows in the output of `sheet_lines`."""
    return (row for row in map(json.loads, lines) if isinstance(row, list))


def _xlsx_rows(file: BinaryIO | BufferedIOBase, name: str) -> Iterator[tuple[str, Cells]]:
    openpyxl = import_extra("openpyxl", "documents", "Excel workbooks")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # openpyxl warns about styles and other parts that are not read
        try:
            workbook = openpyxl.load_workbook(file, read_only=True, data_only=True)
            for sheet in workbook.worksheets:
                sheet.reset_dimensions()  # some programs write wrong sheet dimensions
                for row in sheet.iter_rows():
                    yield sheet.title, _trimmed([_shown(cell.value, _is_percent(cell)) for cell in row])
            workbook.close()
        except PenwrightError:
            raise
        except Exception as error:  # a damaged file raises many kinds of errors
            raise PenwrightError(
                f"{name} is damaged ({type(error).__name__}: {error}). Save or download it again"
            ) from None


def _ods_rows(opened: ZipFile, name: str) -> Iterator[tuple[str, Cells]]:
    for sheet, row, times in parse_xml(opened, "content.xml", name, _Sheets()):
        yield from repeat((sheet, row), times)


def _is_percent(cell: Any) -> bool:
    """Return whether a cell of an Excel workbook holds a number that is displayed as a percentage."""
    is_number = isinstance(cell.value, int | float) and not isinstance(cell.value, bool)
    return is_number and "%" in LITERAL.sub("", cell.number_format)


def _shown(value: Any, is_percent: bool = False) -> str:
    """Return a cell as people read it: whole numbers without a decimal point, dates in ISO 8601, 0.56 as 56%."""
    if is_percent:
        return f"{100 * value:.12g}%"
    match value:
        case None:
            return ""
        case bool():
            return str(value).upper()
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case datetime():
            return value.isoformat(" ", "seconds").removesuffix(" 00:00:00")
        case _:
            return str(value)


def _trimmed(cells: Cells) -> Cells:
    """Return a row without the empty cells at its end."""
    last = max((place for place, cell in enumerate(cells, 1) if cell.strip()), default=0)
    return cells[:last]


class _Sheets(XmlTarget[tuple[str, Cells, int]]):
    """A parser target that collects the rows of all sheets in an OpenDocument spreadsheet, with their repetitions."""

    def __init__(self) -> None:
        super().__init__()
        self.sheet = ""
        self.cells: Cells = []
        self.cell: list[str] = []
        self.value: str | None = None
        self.depth = 0  # number of open paragraphs
        self.times = {"row": 1, "column": 1}

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin a sheet, row, cell, or paragraph of a cell."""
        match tag.removeprefix(TABLE):
            case "table":
                self.sheet = attributes.get(f"{TABLE}name", "")
            case "table-row":
                self.cells, self.times["row"] = [], _repetitions(attributes, "rows")
            case "table-cell" | "covered-table-cell":
                self.cell, self.value = [], _exact(attributes)
                self.times["column"] = _repetitions(attributes, "columns")
        if tag == f"{TEXT}p":
            self.cell += ["\n"] if self.cell else []
            self.depth += 1

    def data(self, text: str) -> None:
        """Add text to the cell."""
        if self.depth:
            self.cell.append(text)

    def end(self, tag: str) -> None:
        """End a paragraph, cell or row."""
        if tag == f"{TEXT}p":
            self.depth -= 1
        match tag.removeprefix(TABLE):
            case "table-cell" | "covered-table-cell":
                shown = self.value or "".join(self.cell)
                times = min(self.times["column"], MOST_REPEATED)
                self.cells += [shown] * times if len(self.cells) < 1 << 14 else []
                self.cell = []
            case "table-row":
                cells = _trimmed(self.cells)
                self.items.append((self.sheet, cells, min(self.times["row"], MOST_REPEATED)))


def _exact(attributes: Mapping[str, str]) -> str | None:
    """Return the date or number in a cell of an OpenDocument spreadsheet; None for a cell that is read as displayed."""
    kind, number = attributes.get(f"{OFFICE}value-type"), attributes.get(f"{OFFICE}value", "")
    if kind in NUMBERS:
        with suppress(ValueError):
            return _shown(int(number) if number.lstrip("-").isdecimal() else float(number), kind == "percentage")
    date = attributes.get(f"{OFFICE}date-value")
    return date and date.removesuffix("T00:00:00").replace("T", " ")


def _repetitions(attributes: Mapping[str, str], which: str) -> int:
    """Return how many times a cell or row is repeated. `which` is "columns" or "rows"."""
    number = attributes.get(f"{TABLE}number-{which}-repeated", "1")
    return int(number) if number.isdecimal() and len(number) < 10 else 1
