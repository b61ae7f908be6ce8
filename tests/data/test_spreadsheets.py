"""Spreadsheets as tables."""

from datetime import date, datetime
from pathlib import Path
from zipfile import ZipFile

import odfdo
import openpyxl
import pytest

from penwright.data.detection import detect_task
from penwright.data.files import examine
from penwright.data.labelled import open_labelled
from penwright.data.readers import spreadsheets
from penwright.data.readers.spreadsheets import read_sheet
from penwright.data.readers.tables import open_table
from penwright.errors import PenwrightError

ROWS = [["text", "label", "note"], *([f"text number {n}", "good" if n % 2 else "bad", n] for n in range(30))]


def save_xlsx(path: Path, rows: list[list[object]]) -> None:
    book = openpyxl.Workbook()
    for title, content in (("Data", rows), ("Other", [["x"]])):
        sheet = book.create_sheet(title)  # after an empty one
        for row in content:
            sheet.append(row)
    book.save(path)


def save_ods(path: Path, rows: list[list[object]]) -> None:
    book = odfdo.Document("spreadsheet")
    book.body.clear()
    for title, content in (("Empty", []), ("Data", rows), ("Other", [["x"]])):
        table = odfdo.Table(title)
        table.set_values(content)
        book.body.append(table)
    book.save(path)


@pytest.mark.parametrize("save", [save_xlsx, save_ods])
def test_first_sheet_with_content_is_read_as_a_table(tmp_path: Path, save) -> None:
    path = tmp_path / f"a.{save.__name__[-4:].strip('_')}"
    save(path, ROWS)
    assert detect_task([path])[0] == "classify"
    corpus = open_labelled([path])
    assert (corpus.n_training + len(corpus.held_out), corpus.labels) == (30, ("bad", "good"))
    (file,) = corpus.files
    assert "sheet 'Data' (not read: Other)" in corpus.report.lines()[0]
    assert next(open_table(file).rows([0, 1, 2])) == ("text number 0", "bad", "0")


@pytest.mark.parametrize("save", [save_xlsx, save_ods])
def test_rows_of_a_sheet_include_blank_ones_between_others(tmp_path: Path, save) -> None:
    path = tmp_path / f"a.{save.__name__[-4:].strip('_')}"
    save(path, [["text", "id"], ["one", 1], [None, None], [None, None], ["two"], [None, None]])
    assert read_sheet(path, path.suffix[1:]) == [["text", "id"], ["one", "1"], [], [], ["two"]]


def replace_in(path: Path, part: str, old: str, new: str) -> None:
    """Replace text in an XML part of a spreadsheet."""
    with ZipFile(path) as opened:
        parts = {name: opened.read(name) for name in opened.namelist()}
    assert old.encode() in parts[part]
    with ZipFile(path, "w") as opened:
        for name, content in parts.items():
            opened.writestr(name, content.replace(old.encode(), new.encode()) if name == part else content)


@pytest.mark.parametrize("suffix", ["xlsx", "ods"])
def test_too_many_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    if suffix == "xlsx":
        save_xlsx(path, [["text"], ["one"]])
        replace_in(path, "xl/worksheets/sheet2.xml", 'r="2"', 'r="2000000000"')
    else:
        save_ods(path, [["text"], *[[None], ["one"]] * 3])
        blank, many = "<table:table-row>", '<table:table-row table:number-rows-repeated="900">'
        replace_in(path, "content.xml", blank, many)
    monkeypatch.setattr(spreadsheets, "MOST_ROWS", 2000)
    for read in (lambda: read_sheet(path, suffix), lambda: examine(path)):
        with pytest.raises(PenwrightError, match=r"'Data' has more than 2,000 rows, blank ones included. Split it"):
            read()


@pytest.mark.parametrize("suffix", ["xlsx", "ods"])
def test_too_many_characters_in_a_row_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    if suffix == "xlsx":
        save_xlsx(path, [["text"], ["one"], ["long" * 500]])
    else:
        save_ods(path, [["text"], ["one"], ["long"]])
        cell = "<text:p>long</text:p>"
        one = '<table:table-cell office:value-type="string" calcext:value-type="string" office:string-value="long">'
        many = one.replace("<table:table-cell", '<table:table-cell table:number-columns-repeated="500"')
        replace_in(path, "content.xml", one + cell, many + cell)
    assert len(read_sheet(path, suffix)) == 3
    monkeypatch.setattr(spreadsheets, "MOST_CHARACTERS", 1999)
    for read in (lambda: read_sheet(path, suffix), lambda: examine(path)):
        with pytest.raises(PenwrightError, match=r"row 3 of 'Data' has more than 1,999 characters, repeated cells"):
            read()


@pytest.mark.parametrize("save", [save_xlsx, save_ods])
def test_too_many_cells_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save) -> None:
    path = tmp_path / f"a.{save.__name__[-4:].strip('_')}"
    save(path, [["text"], *[[*[None] * 50, "far"]] * 10])
    monkeypatch.setattr(spreadsheets, "MOST_CELLS", 100)
    with pytest.raises(PenwrightError, match="more than 100 cells, blank ones included"):
        read_sheet(path, path.suffix[1:])


def test_cells_are_read_as_displayed(tmp_path: Path) -> None:
    values = [1.0, 2.5, True, None, date(2024, 2, 3), datetime(2024, 2, 3, 4, 5), "two\nlines", "end"]
    save_xlsx(tmp_path / "a.xlsx", [[f"column {n}" for n in range(len(values))], values, values])
    row = next(open_table(examine(tmp_path / "a.xlsx")).rows(range(len(values))))
    assert row == ("1", "2.5", "TRUE", "", "2024-02-03", "2024-02-03 04:05:00", "two\nlines", "end")


def test_percentages_are_read_as_displayed(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append([0.56, 1, 0.125, 3, "a%", None])
    for cell, form in zip(book.active[1], ["0%", "0%", "0.0 %", '"%" 0', "0%", "0%"], strict=True):
        cell.number_format = form
    book.save(tmp_path / "a.xlsx")
    assert read_sheet(tmp_path / "a.xlsx", "xlsx") == [["56%", "100%", "12.5%", "3", "a%"]]


def test_numbers_of_an_opendocument_spreadsheet_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "a.ods"
    save_ods(path, [["one", "two", "three", "four"]])
    kinds = [
        ("one", "float", "0.125"),
        ("two", "percentage", "0.5625"),
        ("three", "currency", "4"),
        ("four", "float", ""),
    ]
    for text, kind, value in kinds:
        old = f'office:value-type="string" calcext:value-type="string" office:string-value="{text}"'
        replace_in(path, "content.xml", old, f'office:value-type="{kind}" office:value="{value}"')
    assert read_sheet(path, "ods") == [["0.125", "56.25%", "4", "four"]]


@pytest.mark.parametrize("save", [save_xlsx, save_ods])
def test_damaged_spreadsheet_is_refused_by_name(tmp_path: Path, save) -> None:
    path = tmp_path / f"a.{save.__name__[-4:].strip('_')}"
    save(path, ROWS)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], content.replace(b"PK\x03\x04", b"PK\x03\x05", 3)[:-30]):
        path.write_bytes(b"PK\x03\x04" + damaged[4:])
        with pytest.raises(PenwrightError, match=r"a\.\w+ is damaged"):
            examine(path)
