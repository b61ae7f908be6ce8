"""Tables are read row by row."""

import pytest

from penwright.data.files import examine
from penwright.data.readers.tables import Table, has_tabs, open_table
from penwright.data.text import open_text
from penwright.errors import PenwrightError


def table_of(folder, name: str, text: str) -> Table:
    (folder / name).write_bytes(text.encode())
    return open_table(examine(folder / name, "utf-8"))


def rows(table: Table) -> list:
    return list(table.rows(range(len(table.columns))))


def test_a_quote_mark_in_a_tsv_field_swallows_no_lines(tmp_path):
    table = table_of(tmp_path, "a.tsv", 'one\t"two\nthree\tfour\n"five"\tsix "so"\n')
    assert rows(table) == [("one", '"two'), ("three", "four"), ('"five"', 'six "so"')]


def test_a_tsv_of_a_csv_writer_is_read_with_quoting(tmp_path):
    table = table_of(tmp_path, "a.tsv", '"say ""a""\tb"\tx\nplain\ty\n"two\nlines"\tz\n')
    assert rows(table) == [('say "a"\tb', "x"), ("plain", "y"), ("two\nlines", "z")]


def test_a_csv_field_may_hold_commas_quotes_and_newlines(tmp_path):
    table = table_of(tmp_path, "a.csv", '"a,b","say ""c"""\r\n"two\r\nlines",d\r\n')
    assert rows(table) == [("a,b", 'say "c"'), ("two\nlines", "d")]


def test_semicolons_between_fields_are_found_out(tmp_path):
    assert rows(table_of(tmp_path, "a.csv", "Hund, der;dog\nKatze;cat\n")) == [("Hund, der", "dog"), ("Katze", "cat")]


def test_a_field_longer_than_the_csv_module_allows_is_read(tmp_path):
    assert rows(table_of(tmp_path, "a.csv", f'a,"{"x" * 200_000}"\n')) == [("a", "x" * 200_000)]


def test_a_quote_that_is_never_closed_is_refused(tmp_path):
    table = table_of(tmp_path, "a.csv", "a,b\n" * 1000 + 'c,"d\n' + "e,f\n" * 3000)
    with pytest.raises(PenwrightError, match=r"a\.csv: the row that begins in line 1,001 does not end"):
        rows(table)


def test_a_lone_carriage_return_breaks_only_its_csv_row(tmp_path):
    assert rows(table_of(tmp_path, "a.csv", "a,b\nc\rc,d\ne,f\n")) == [("a", "b"), None, ("e", "f")]


@pytest.mark.parametrize(
    ("first", "header"),
    [("label,sentence", True), ("de,en", True), ("id,my_text,label", True), ("AA,AA,prop", False), ("Go.,Ve.", False)],
)
def test_a_header_is_told_from_a_row(tmp_path, first, header):
    table = table_of(tmp_path, "a.csv", f"{first}\n" + ",".join("xyz"[: first.count(",") + 1]) + "\n")
    assert table.columns == (tuple(first.split(",")) if header else tuple("123"[: first.count(",") + 1]))
    assert table.place(0) == f"{tmp_path / 'a.csv'} row {2 if header else 1}"


def test_rows_with_too_few_fields_are_broken_and_blank_ones_are_blank(tmp_path):
    table = table_of(tmp_path, "a.tsv", "a\tb\nc\n\nd\te\n")
    assert rows(table) == [("a", "b"), None, ("", ""), ("d", "e")]


def test_json_values_become_text(tmp_path):
    table = table_of(
        tmp_path, "a.jsonl", '{"a": "x", "b": 3}\n{"b": true, "a": null}\n{"a": ["x"], "b": 1.5}\n{"a": "y"}'
    )
    assert rows(table) == [("x", "3"), ("", "true"), ('["x"]', "1.5"), None]


def test_bad_json_is_a_broken_row(tmp_path):
    table = table_of(tmp_path, "a.jsonl", '{"a": "x"}\n{"a": \nnull\n[1]\n')
    assert rows(table) == [("x",), None, None, None]


def test_nested_objects_give_their_own_columns(tmp_path):
    table = table_of(tmp_path, "a.jsonl", '{"id": 1, "translation": {"de": "Hund", "en": "dog"}}\n')
    assert table.columns == ("id", "de", "en")


def test_a_json_list_is_a_table_too(tmp_path):
    assert rows(table_of(tmp_path, "a.json", '[{"a": "x"},\n {"a": "y"}]')) == [("x",), ("y",)]


@pytest.mark.parametrize("text", ['{"Hund": "dog", "Katze": "cat"}', "no json\nat all\n", "[1, 2"])
def test_json_that_is_no_table_is_refused(tmp_path, text):
    with pytest.raises(PenwrightError, match=r"a\.json .*(JSON|rows)"):
        table_of(tmp_path, "a.json", text)


def test_tabs_in_nearly_all_lines_make_a_table(tmp_path):
    for name, text in (("a.txt", "a\tb\n" * 30), ("b.txt", "text\n\tindented\n" * 20)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert [has_tabs(examine(tmp_path / name)) for name in ("a.txt", "b.txt")] == [True, False]


@pytest.mark.parametrize("content", ["text\n", ",,,\n", "text,more\n"])
def test_a_table_without_rows_is_refused(tmp_path, content):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(PenwrightError, match="rows"):
        open_text([tmp_path / "a.csv"])
