"""Tables, read row by row."""

import csv
import io
import json
from datetime import datetime

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penwright.data.corpus import Broken
from penwright.data.files import SourceFile, examine
from penwright.data.readers.records import EMPTY_LIST
from penwright.data.readers.tables import Table, has_tabs, holds_json, open_table
from penwright.data.text import open_text
from penwright.errors import PenwrightError


def table_of(folder, name: str, text: str) -> Table:
    (folder / name).write_bytes(text.encode())
    return open_table(examine(folder / name, "utf-8"))


def rows(table: Table) -> list:
    return list(table.rows(range(len(table.columns))))


def rows_or_reasons(found: list) -> list:
    return [row.reason if isinstance(row, Broken) else row for row in found]


def test_quote_in_a_tsv_field_does_not_swallow_lines(tmp_path):
    table = table_of(tmp_path, "a.tsv", 'one\t"two\nthree\tfour\n"five"\tsix "so"\n')
    assert rows(table) == [("one", '"two'), ("three", "four"), ('"five"', 'six "so"')]


def test_tsv_with_csv_quoting_is_unquoted(tmp_path):
    table = table_of(tmp_path, "a.tsv", '"say ""a""\tb"\tx\nplain\ty\n"two\nlines"\tz\n')
    assert rows(table) == [('say "a"\tb', "x"), ("plain", "y"), ("two\nlines", "z")]


def test_csv_field_may_contain_commas_quotes_and_newlines(tmp_path):
    table = table_of(tmp_path, "a.csv", '"a,b","say ""c"""\r\n"two\r\nlines",d\r\n')
    assert rows(table) == [("a,b", 'say "c"'), ("two\nlines", "d")]


def test_semicolon_delimiter_is_detected(tmp_path):
    assert rows(table_of(tmp_path, "a.csv", "Hund, der;dog\nKatze;cat\n")) == [("Hund, der", "dog"), ("Katze", "cat")]


def test_field_longer_than_the_csv_module_allows_is_read(tmp_path):
    assert rows(table_of(tmp_path, "a.csv", f'a,"{"x" * 200_000}"\n')) == [("a", "x" * 200_000)]


def test_unclosed_quote_is_an_ordinary_character(tmp_path):
    lines = ['"c d,e' if number % 90 == 30 else 'f "g",h' for number in range(3000)]
    found = rows(table_of(tmp_path, "a.csv", "\n".join([*lines, '"i, ""j""",k', '"l\nm",n'])))
    assert found == [*(tuple(line.split(",")) for line in lines), ('i, "j"', "k"), ("l\nm", "n")]


def test_stray_quotes_do_not_swallow_lines(tmp_path):
    text = 'text,label\n"open,x\n' + "a b,x\n" * 50 + 'size 5",y\n'
    assert len(rows(table_of(tmp_path, "a.csv", text))) == 52


def test_unescaped_quotes_inside_a_quoted_cell_are_kept(tmp_path):
    text = 'id,text,label\n1,"he said "well, no" then",x\n2,"a, b",y\n3,"so ""it"" is",y\n'
    assert [row[1] for row in rows(table_of(tmp_path, "a.csv", text))] == [
        'he said "well, no" then',
        "a, b",
        'so "it" is',
    ]


def test_lone_carriage_return_stays_in_its_cell(tmp_path):
    assert rows(table_of(tmp_path, "a.csv", "a,b\nc\rc,d\ne,f\n")) == [("a", "b"), ("c\rc", "d"), ("e", "f")]


DIALECTS = [
    ("sep.csv", '\ufeffsep=;\r\ntext;label\r\n"a; b";x\r\nc, d;y\r\n'),  # Excel
    ("pipe.csv", "text|label\na; b|x\nc, d|y\n"),
    ("multi.csv", "text::label\na; b::x\nc, d::y\n"),
    ("spaced.csv", 'text, label\n"a; b", x\n"c, d", y\n'),
    ("backslash.csv", 'text,label,n\n"a; b","x","\\"1\\""\n"c, d","y","\\\\2"\n'),  # MySQL
    ("single.csv", "text,label\n'a; b','x'\n'c, d','y'\n"),
    ("pandas.csv", ',text,label\n0,a; b,x\n1,"c, d",y\n'),
    ("comment.csv", '# made by hand\n# in May\ntext,label\na; b,x\n"c, d",y\n'),
    ("trailing.csv", 'text,label,,\na; b,x,,\n"c, d",y,,\n'),
    ("long_rows.csv", 'text,label\na; b,x,,\n"c, d",y\n'),
    ("copy.tsv", "text\tlabel\tnote\na; b\tx\t\\N\nc, d\ty\tone\\ttab\n"),  # PostgreSQL
    ("row_names.csv", '"text","label"\n"1","a; b","x"\n"2","c, d","y"\n'),  # R
    ("repeated.csv", 'text,label\na; b,x\ntext,label\n"c, d",y\n\ufefftext,label\n'),
]


@pytest.mark.parametrize(("name", "text"), DIALECTS, ids=[name for name, _ in DIALECTS])
def test_table_dialects_of_many_programs_are_read(tmp_path, name, text):
    table = table_of(tmp_path, name, text)
    wanted = [table.columns.index("text"), table.columns.index("label")]
    found = [tuple(cell.strip() for cell in row) for row in table.rows(wanted) if isinstance(row, tuple)]
    assert found == [("a; b", "x"), ("c, d", "y")]


def test_skipped_rows_give_reason_and_place(tmp_path):
    text = "# a list\ntext,label\n" + "a,x\n" * 40 + "text,label\nb\nc, d,x\n" + "e,y\n" * 40
    table = table_of(tmp_path, "a.csv", text)
    broken = {row.reason: table.location(number) for number, row in enumerate(rows(table)) if isinstance(row, Broken)}
    assert [place.rpartition(" ")[2] for place in broken.values()] == ["1", "43", "44", "45"]
    assert ["before" in reason or "header" in reason for reason in broken] == [True, True, False, False]


def test_long_cell_with_newlines_is_read(tmp_path):
    cell = "It was, as they say, late.\n\n" * 4000
    assert rows(table_of(tmp_path, "a.csv", f'text,label\n"{cell}",x\nb,y\n')) == [(cell, "x"), ("b", "y")]


def test_single_column_is_not_split_at_commas(tmp_path):
    text = "text\nWell, well, well.\nNo.\nYes, and no, and so on, to the end.\n"
    assert rows(table_of(tmp_path, "a.csv", text)) == [(line,) for line in text.splitlines()[1:]]


CLAUSES = ["It rained", "It rained, and we went home", "No", "Yes, and no, and so on, to the end"] * 10


@pytest.mark.parametrize("header", ["text\n", ""])
@pytest.mark.parametrize("clauses", [CLAUSES, [*CLAUSES[:2], CLAUSES[1], CLAUSES[1]] * 10])
def test_clauses_of_a_single_column_are_not_columns(tmp_path, header, clauses):
    lines = [f"{clause} {n}." for n, clause in enumerate(clauses)]
    assert rows(table_of(tmp_path, "a.csv", header + "\n".join(lines))) == [(line,) for line in lines]


@pytest.mark.parametrize("n_clauses", [(1, 2, 2), (1, 3, 3), (1, 1, 2), (2, 3, 4)])
def test_commas_in_a_last_column_of_text_are_kept(tmp_path, n_clauses):
    texts = [", ".join(f"clause {n} of {row}" for n in range(n_clauses[row % 3])) for row in range(60)]
    table = table_of(tmp_path, "a.csv", "label,text\n" + "".join(f"{'xy'[n % 2]},{t}\n" for n, t in enumerate(texts)))
    assert table.columns == ("label", "text")
    assert [row[1] for row in rows(table)] == texts


def test_commas_in_another_column_are_errors(tmp_path):
    lines = "".join(f"a text{', and more' * (n % 3 > 0)},{'xy'[n % 2]}\n" for n in range(60))
    table = table_of(tmp_path, "a.csv", f"text,label\n{lines}")
    assert table.columns == ("text", "label")
    assert {row for row in rows(table) if isinstance(row, tuple)} == {("a text", "x"), ("a text", "y")}
    assert sum(isinstance(row, Broken) and "too many fields" in row.reason for row in rows(table)) == 40


def test_row_names_before_a_text_with_commas_are_a_column(tmp_path):
    body = "".join(f'"{n}","x","text {n}, and more"\n' for n in range(30))
    table = table_of(tmp_path, "a.csv", f'"label","text"\n{body}')
    assert table.columns == ("1", "label", "text")
    assert [row[-1] for row in rows(table)] == [f"text {n}, and more" for n in range(30)]


CELLS = st.text(st.sampled_from("aé文 .'\"\\,;\t|\n\u2028#-1"), max_size=12)
QUOTINGS = [
    {"quoting": csv.QUOTE_MINIMAL},
    {"quoting": csv.QUOTE_ALL},
    {"quoting": csv.QUOTE_ALL, "doublequote": False, "escapechar": "\\"},
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rows_in_a_random_csv_dialect_survive_a_round_trip(tmp_path, data):
    width = data.draw(st.integers(2, 5))
    row = st.lists(CELLS, min_size=width, max_size=width).filter(lambda cells: any(map(str.strip, cells)))
    written = data.draw(st.lists(row, min_size=2, max_size=12))
    file = io.StringIO()
    options = {
        "delimiter": data.draw(st.sampled_from(",;\t|")),
        "lineterminator": data.draw(st.sampled_from(["\n", "\r\n"])),
    }
    writer = csv.writer(file, **options, **data.draw(st.sampled_from(QUOTINGS)))
    writer.writerows([["text", "label", "one", "two", "three"][:width], *written])
    found = rows(table_of(tmp_path, "a.csv", file.getvalue()))
    assert len(found) == len(written)
    if not any("\\" in cell for cells in written for cell in cells):  # a backslash may be an escape or not
        assert [list(cells) for cells in found] == written


HEADERS = [
    ("headline_en,is_funny", "{n} words of a longer line,{odd}"),
    ("recenzja filmu,ocena", "{n} words of a longer line,{word}"),
    ("Timestamp,What did you think of it?,Rating", "2024/05/0{odd} 10:00:00,{n} words of a longer line,{odd}"),
    (",text,label", "{n},{n} words of a longer line,{word}"),
    ("x,x,x", "{n},{n},{n}"),
]


@pytest.mark.parametrize(("first", "row"), HEADERS)
def test_header_with_unknown_names_is_detected_from_the_rows_below(tmp_path, first, row):
    body = [row.format(n=n, odd=n % 2 + 1, word=("good", "bad")[n % 2]) for n in range(40)]
    assert len(rows(table_of(tmp_path, "a.csv", "\n".join([first, *body])))) == 40
    assert len(rows(table_of(tmp_path, "b.csv", "\n".join(body)))) == 40


@pytest.mark.parametrize(
    ("first", "header"),
    [("label,sentence", True), ("de,en", True), ("id,my_text,label", True), ("AA,AA,prop", False), ("Go.,Ve.", False)],
)
def test_header_is_distinguished_from_a_row(tmp_path, first, header):
    table = table_of(tmp_path, "a.csv", f"{first}\n" + ",".join("xyz"[: first.count(",") + 1]) + "\n")
    assert table.columns == (tuple(first.split(",")) if header else tuple("123"[: first.count(",") + 1]))
    assert table.location(0) == f"{tmp_path / 'a.csv'} row {2 if header else 1}"


def test_short_rows_are_broken_and_blank_rows_are_blank(tmp_path):
    table = table_of(tmp_path, "a.tsv", "a\tb\nc\n\nd\te\n")
    assert rows_or_reasons(rows(table)) == [("a", "b"), "too few fields", ("", ""), ("d", "e")]


def test_json_values_become_text(tmp_path):
    values = '"x", "b": 3', '"y", "b": true', 'null, "b": NaN', '["x"], "b": 1.5', '"z"', '["x", "y"], "b": {}'
    found = rows(table_of(tmp_path, "a.jsonl", "".join(f'{{"a": {each}}}\n' for each in values)))
    assert found[:4] == [("x", "3"), ("y", "true"), ("", ""), ("x", "1.5")]
    assert found[4] == ("z", "")
    assert isinstance(found[5], Broken)


def test_invalid_json_line_is_a_broken_row(tmp_path):
    table = table_of(tmp_path, "a.jsonl", '{"a": \n{"a": "x"}\nnull\n[1]\n')
    assert rows_or_reasons(rows(table)) == ["bad JSON", ("x",), "not a JSON object", "not a JSON object"]
    assert table.location(0).endswith("line 1")


def test_values_after_a_json_list_are_read(tmp_path):
    first, second = ([{"text": f"{name} {n}"} for n in range(3)] for name in ("first", "second"))
    both = [(row["text"],) for row in (*first, *second)]
    indented = json.dumps(first, indent=1)
    assert rows(table_of(tmp_path, "a.json", f"{indented}\n{json.dumps(second)}\n")) == both
    assert rows(table_of(tmp_path, "b.json", f"{indented}\n{json.dumps(second[0])}\n")) == both[:4]
    with pytest.raises(PenwrightError, match="after 3 values, Expecting value"):
        table_of(tmp_path, "c.json", f"{indented}\n]\n")


def test_lines_that_are_lists_of_messages_are_conversations(tmp_path):
    roles = ("user", "assistant")
    talks = [[{"role": role, "content": f"{role} {n}"} for role in roles] for n in range(9)]
    table = table_of(tmp_path, "a.jsonl", "".join(f"{json.dumps(talk)}\n" for talk in talks))
    assert table.columns == ("messages",)
    assert [json.loads(row[0]) for row in rows(table)] == talks


def test_text_in_parts_is_joined(tmp_path):
    values = '["See ", {"type": "link", "text": "x.org"}, "."]', '[{"text": "x"}, {"text": "y"}]', '["a", "b"]'
    found = rows(table_of(tmp_path, "a.jsonl", "".join(f'{{"text": {each}}}\n' for each in values)))
    assert [row[0] for row in found] == ["See x.org.", *values[1:]]


def test_long_number_is_read(tmp_path):
    assert len(rows(table_of(tmp_path, "a.csv", f"{'1' * 50_000}x,2\n" * 9))) == 9


def test_nested_json_objects_become_columns(tmp_path):
    table = table_of(tmp_path, "a.jsonl", '{"id": 1, "translation": {"de": "Hund", "en": "dog"}}\n')
    assert table.columns == ("id", "de", "en")
    table = table_of(tmp_path, "b.jsonl", '{"q": {"text": "one", "n": {"k": 1}}, "a": {"text": "two"}}\n')
    assert table.columns == ("q.text", "k", "a.text")
    assert rows(table) == [("one", "1", "two")]


@pytest.mark.parametrize(
    "text",
    [
        '[{"a": "x", "b": "1"},\n {"a": "y", "b": "2"}]',
        '[\n  {\n    "a": "x",\n    "b": 1\n  },\n  {\n    "a": "y",\n    "b": 2\n  }\n]\n',
        '{"a": "x", "b": 1}\n{"a": "y", "b": 2}',
        '{\n"a": "x",\n"b": 1}\n{"a": "y",\n"b": 2}',
        '{"a": ["x", "y"], "b": [1, 2]}',
        '{"a": {"0": "x", "1": "y"}, "b": {"0": 1, "1": 2}}',
        '{"0": {"a": "x", "b": 1}, "1": {"a": "y", "b": 2}}',
        '{"version": "1", "data": [{"a": "x", "b": 1}, {"a": "y", "b": 2}]}',
        '{"columns": ["a", "b"], "index": [0, 1], "data": [["x", 1], ["y", 2]]}',
    ],
)
def test_every_json_table_layout_is_read(tmp_path, text):
    table = table_of(tmp_path, "a.json", text)
    assert table.columns == ("a", "b")
    assert rows(table) == [("x", "1"), ("y", "2")]


def test_json_list_longer_than_a_block_is_read(tmp_path):
    texts = [f"{number} " + "w" * 50_000 for number in range(60)]
    assert rows(table_of(tmp_path, "a.json", json.dumps([{"a": text} for text in texts]))) == [
        (text,) for text in texts
    ]


def test_only_objects_with_many_names_become_cells(tmp_path):
    lines = [{"message": {"content": f"text {n}"}, "scores": {f"{n}-{i}": i for i in range(9)}} for n in range(300)]
    table = table_of(tmp_path, "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert table.columns == ("content", "scores")


def test_text_that_begins_like_json_is_not_read_whole(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text('{"a" is no JSON\n' + "some words\n" * 1_000_000, encoding="utf-8")
    file, read = examine(tmp_path / "a.txt"), []
    blocks = SourceFile.blocks
    monkeypatch.setattr(SourceFile, "blocks", lambda self: (read.append(len(b)) or b for b in blocks(self)))
    assert not holds_json(file) and sum(read) < file.n_characters / 2


@pytest.mark.parametrize("text", ['{"Hund": "dog", "Katze": "cat"}', "no json\nat all\n", "[1, 2"])
def test_json_without_a_table_is_refused(tmp_path, text):
    with pytest.raises(PenwrightError, match=r"a\.json .*(JSON|rows)"):
        rows(table_of(tmp_path, "a.json", text))


def test_parquet_is_read_in_order_with_class_names(tmp_path):
    path = tmp_path / "it's [a].parquet"
    features = {"info": {"features": {"label": {"names": ["no", "yes"]}}}}
    table = pyarrow.table({"text": [f"text {n}" for n in range(3000)], "label": [n % 2 for n in range(3000)]})
    pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), path)
    assert rows(open_table(examine(path))) == [(f"text {n}", ("no", "yes")[n % 2]) for n in range(3000)]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(PenwrightError, match=r"\[a\]\.parquet .*Download or write it again"):
        open_table(examine(path))


def test_parquet_values_are_those_of_other_formats(tmp_path):
    path, names = tmp_path / "a.parquet", ["no", "yes"]
    features = {"sets": {"feature": {"names": names}, "_type": "List"}, "score": {"dtype": "float32"}, "old": [{}]}
    columns = {
        "sets": [[0, 1], [], None],
        "score": pyarrow.array([0.1, None, 2], pyarrow.float32()),
        "day": [datetime(2024, 1, 2), datetime(2024, 1, 2, 3, 4), None],
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pyarrow.parquet.write_table(pyarrow.table(columns).replace_schema_metadata(metadata), path)
    expected = [('["no", "yes"]', "0.1", "2024-01-02"), (EMPTY_LIST, "", "2024-01-02 03:04:00"), ("", "2.0", "")]
    assert rows(open_table(examine(path))) == expected


def test_tabs_in_nearly_all_lines_indicate_a_table(tmp_path):
    texts = ["a\tb\n" * 30, "text\n\tindented\n" * 20, "\tindented\n" * 30, "ended\t\n" * 30, "\tboth\t\n" * 30]
    paths = [tmp_path / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    assert [has_tabs(examine(path)) for path in paths] == [True, False, False, False, False]


@pytest.mark.parametrize("content", ["text\n", ",,,\n", "text,more\n"])
def test_table_without_rows_is_refused(tmp_path, content):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(PenwrightError, match="rows"):
        open_text([tmp_path / "a.csv"])
