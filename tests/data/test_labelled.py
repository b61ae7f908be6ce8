"""Corpora of labelled texts."""

import json
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from penwright.config import Recipe, validate
from penwright.data.cleaning import Cleaning
from penwright.data.corpus import Columns, LabelKind, Labelled, ReadingOptions
from penwright.data.detection import detect_task
from penwright.data.files import examine
from penwright.data.labelled import open_evaluation_labelled, open_labelled
from penwright.data.labels import label_set
from penwright.data.readers.tables import find_table
from penwright.data.scores import NO_NUMBER, comma_in, number_label
from penwright.errors import PenwrightError
from penwright.tasks import reading_of
from penwright.tasks.labelled import label_indices

ROWS = [(f"this film is number {i} of the year", str(i % 2)) for i in range(60)]


def write(folder, name: str, text: str):
    (folder / name).write_bytes(text.encode())
    return folder / name


def write_rows(folder, rows, name: str = "a.tsv"):
    return write(folder, name, "\n".join("\t".join(row) for row in rows) + "\n")


def all_examples(corpus) -> set:
    return {*corpus.training, *corpus.held_out}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "label\tsentence\r\n" + "".join(f"{label}\t{text}\r\n" for text, label in ROWS)),
        ("a.tsv", "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS)),
        ("a.csv", "文本,标签\n" + "".join(f"{text},{label}\n" for text, label in ROWS)),
        ("a.csv", "Метка,Текст\n" + "".join(f"{label},{text}\n" for text, label in ROWS)),
        ("a.csv", "".join(f'"{label}","{text}"\n' for text, label in ROWS)),
        ("a.txt", "".join(f"{text}\t{label}\n" for text, label in ROWS)),
        ("a.jsonl", "".join(json.dumps({"text": text, "label": int(label)}) + "\n" for text, label in ROWS)),
    ],
)
def test_text_and_label_columns_are_found_in_every_layout(tmp_path, name, text):
    corpus = open_labelled([write(tmp_path, name, text)])
    assert all_examples(corpus) == set(map(Labelled._make, ROWS))
    assert corpus.labels == ("0", "1")


def test_text_columns_are_joined_with_a_space(tmp_path):
    path = write(tmp_path, "a.csv", "".join(f'"{i % 3}","Title {i}","And a description."\n' for i in range(30)))
    corpus = open_labelled([path], ReadingOptions(Columns(text=(2, 3), label=1, text_pairs=False)))
    assert Labelled("Title 7 And a description.", "1") in all_examples(corpus)


def test_requested_columns_are_used(tmp_path):
    path = write(
        tmp_path, "a.csv", "one,two,kind\n" + "".join(f"text {i},other {i},{'xyz'[i % 3]}\n" for i in range(30))
    )
    corpus = open_labelled([path], ReadingOptions(Columns(text="two", label="kind")))
    assert Labelled("other 4", "y") in all_examples(corpus)


def test_unknown_column_suggests_the_nearest_name(tmp_path):
    path = write(tmp_path, "a.tsv", "label\tsentence\n" + "0\ta text\n1\tanother text\n" * 3)
    with pytest.raises(PenwrightError, match="no column 'sentnce'; did you mean 'sentence'"):
        open_labelled([path], ReadingOptions(Columns(text="sentnce")))


def test_numeric_labels_are_sorted_numerically_and_counted(tmp_path):
    rows = [(f"text number {i}", str(label)) for i, label in enumerate([10, 9, 2] * 10)]
    corpus = open_labelled([write_rows(tmp_path, rows)])
    assert corpus.labels == ("2", "9", "10")
    assert sum(corpus.label_counts.values()) == corpus.n_training


rows = st.lists(st.tuples(st.text("ab", min_size=1, max_size=3), st.sampled_from("xyz")), min_size=2, max_size=40)


@settings(max_examples=50)
@given(rows, st.integers(0, 3))
def test_held_out_texts_are_not_trained_on_but_every_class_is(tmp_path_factory, rows, seed):
    path = write_rows(tmp_path_factory.mktemp("rows"), rows)
    try:
        corpus = open_labelled([path], ReadingOptions(Columns(text=1, label=2), seed=seed, held_out=0.3))
    except PenwrightError:  # too few texts are left after cleaning
        reject()
    training, held_out = list(corpus.training), list(corpus.held_out)
    assert not {row.text for row in training} & {row.text for row in held_out}
    assert {row.label for row in held_out} <= {row.label for row in training} == set(corpus.labels)
    assert len(training) + len(held_out) == corpus.report.n_kept
    assert corpus.report.n_kept + sum(each.count for each in corpus.report.dropped) == len(rows)


def test_texts_of_the_validation_file_are_left_out_of_training(tmp_path):
    valid = [ROWS[0], ("a new text", "1")]
    reading = ReadingOptions(Columns(text=1, label=2), validation=[write_rows(tmp_path, valid, "valid.tsv")])
    corpus = open_labelled([write_rows(tmp_path, ROWS)], reading)
    assert list(corpus.held_out) == list(map(Labelled._make, valid))
    assert corpus.n_training == 59


def test_label_that_occurs_only_in_validation_is_refused(tmp_path):
    valid = write_rows(tmp_path, [("a text", "positive"), ("b text", "negative")], "valid.tsv")
    with pytest.raises(PenwrightError, match="negative, positive; training labels are: 0, 1"):
        open_labelled([write_rows(tmp_path, ROWS)], ReadingOptions(Columns(text=1, label=2), validation=[valid]))


@pytest.mark.parametrize(("labels", "others"), [(["1.0", "2.0"], ["1", "2"]), (["True", "False"], ["TRUE", "FALSE"])])
def test_labels_of_validation_match_by_notation(tmp_path, labels, others):
    path = write_rows(tmp_path, [(text, labels[n % 2]) for n, (text, _) in enumerate(ROWS)])
    valid = write_rows(tmp_path, [(f"text {n}", others[n % 2]) for n in range(4)], "valid.tsv")
    corpus = open_labelled([path], ReadingOptions(Columns(text=1, label=2), validation=[valid]))
    assert set(corpus.labels) == {*labels} and not any("no scores" in note for note in corpus.report.notes)
    assert {label_indices(corpus.labels)(example.label) for example in corpus.held_out} == {0, 1}


def test_a_single_label_is_refused(tmp_path):
    with pytest.raises(PenwrightError, match="all texts have the label '1'"):
        open_labelled([write_rows(tmp_path, [(text, "1") for text, _ in ROWS])])


def test_table_without_labels_lists_its_columns(tmp_path):
    path = write(tmp_path, "a.csv", "first,text\n" + "".join(f"some words {i},more words {i}\n" for i in range(30)))
    with pytest.raises(PenwrightError, match=r"no column looks like labels.*: first, text"):
        open_labelled([path])


def test_text_column_as_labels_is_refused(tmp_path):
    path = write_rows(tmp_path, [(str(i % 2), f"a whole sentence {i}") for i in range(1500)])
    with pytest.raises(PenwrightError, match="are too many"):
        open_labelled([path], ReadingOptions(Columns(text=1, label=2)))


def test_rows_without_label_or_text_are_dropped(tmp_path):
    corpus = open_labelled([write_rows(tmp_path, [*ROWS, ("no label", " "), (" ", "1")])])
    assert {each.reason: each.count for each in corpus.report.dropped} == {
        "the label is missing": 1,
        "the text is blank": 1,
    }


def test_placeholders_are_pointed_out_and_can_be_dropped(tmp_path):
    path = write_rows(tmp_path, [*ROWS, ("some text", "NA"), ("another text", "NA"), ("a third text", "?")])
    columns = Columns(text=1, label=2)
    note = next(note for note in open_labelled([path], ReadingOptions(columns)).report.notes if "missing" in note)
    assert "training texts with the label '?' or 'NA'" in note
    names = tomllib.loads(note.partition("--set '")[2].rstrip("'"))["data"]["label_names"]
    corpus = open_labelled([path], ReadingOptions(replace(columns, label_names=names)))
    assert corpus.labels == ("0", "1") and corpus.report.dropped[0].count == 3
    assert label_set("NA|a", "|", {"NA": ""}, set()) == "a"


def test_labels_are_read_in_one_line_and_ordered(tmp_path):
    rows = [(text, ["low\nest", "nan", "2", "10"][i % 4]) for i, (text, _) in enumerate(ROWS)]
    lines = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
    corpus = open_labelled([write(tmp_path, "a.jsonl", lines)], ReadingOptions(Columns(text="text", label="label")))
    assert corpus.labels == ("2", "10", "low est", "nan")


def test_error_names_the_setting_if_all_texts_are_too_long(tmp_path):
    path = write_rows(tmp_path, [(text + "!" * 6000, label) for text, label in ROWS])
    with pytest.raises(
        PenwrightError, match=r"longer than 5,000 characters.*--set data\.max_characters=(\d+)"
    ) as error:
        open_labelled([path], ReadingOptions(Columns(text=1, label=2)))
    longest = int(str(error.value).rpartition("=")[2])
    cleaning = Cleaning(max_characters=longest)
    assert len(all_examples(open_labelled([path], ReadingOptions(Columns(text=1, label=2), cleaning=cleaning)))) == 60


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("4,6", "4.6"),
        ("-0,125", "-0.125"),
        ("4.5", "4.5"),
        ("1,234", NO_NUMBER),
        ("1,2,3", NO_NUMBER),
        ("1,234.50", "1234.5"),
        ("-1,234,567", "-1234567.0"),
        ("1 234,5", "1234.5"),
        ("2021 350", NO_NUMBER),
        ("56.0%", "56.0"),
        ("€4.50", "4.5"),
        ("-4,50 €", "-4.5"),
        ("1e39", NO_NUMBER),
    ],
)
def test_scores_may_have_a_decimal_comma(cell, number):
    assert number_label(cell) == number


@pytest.mark.parametrize(
    ("form", "cells", "numbers"),
    [
        ("{text};{score}", ("3,667", "4", "1.234,5"), ("3.667", "4.0", "1234.5")),
        ("{text};{score}", ("3.667", "4", "1.5"), ("3.667", "4.0", "1.5")),
        ('{text},"{score}"', ("3,667", "4,5", "1.000"), ("3.667", "4.5", "1000.0")),
        ('{text},"{score}"', ("0.5", "4", "1.25"), ("0.5", "4.0", "1.25")),
        ('{text},"{score}"', ("$1,234.50", "$4.00", "$2,000"), ("1234.5", "4.0", "2000.0")),
        ("{text};{score}", ("3,5 %", "3,667 %", "4 %"), ("3.5", "3.667", "4.0")),
    ],
)
def test_decimal_mark_is_that_of_the_whole_column(tmp_path, form, cells, numbers):
    path = tmp_path / "a.csv"
    rows = [form.format(text=f"text number {n}", score=cells[n % 3]) for n in range(60)]
    path.write_text("\n".join([form.format(text="text", score="score"), *rows]), encoding="utf-8")
    corpus = open_labelled([path], ReadingOptions(Columns(label="score", label_kind=LabelKind("regression"))))
    assert {example.label for example in corpus.training} == set(numbers)
    assert len(corpus.training) + len(corpus.held_out) == 60


@pytest.mark.parametrize(("other", "comma"), [("", ""), ("n/a", ""), ("900", "thousands")])
def test_only_other_numbers_show_that_commas_separate_thousands(tmp_path, other, comma):
    path = tmp_path / "a.csv"
    path.write_text("text,score\n", encoding="utf-8")
    assert comma_in(find_table(examine(path)), [*(f"1,{n}" for n in range(137, 160)), other]) == comma


def test_commas_in_texts_without_quotes_leave_the_last_cell_as_the_label(tmp_path):
    path = tmp_path / "a.txt"
    lines = [f"I liked number {n}{', really' * (n % 3)},{('good', 'bad')[n % 2]}" for n in range(60)]
    path.write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    corpus = open_labelled([path])
    assert len(corpus.training) + len(corpus.held_out) == 60 and set(corpus.label_counts) == {"good", "bad"}


def test_texts_with_conflicting_labels_are_noted(tmp_path):
    corpus = open_labelled([write_rows(tmp_path, [*ROWS, (ROWS[0][0], "1")])])
    assert "1 text with more than one label" in corpus.report.notes


def test_five_texts_are_enough_and_one_is_refused(tmp_path):
    corpus = open_labelled([write_rows(tmp_path, ROWS[:5])])
    assert (corpus.n_training, len(corpus.held_out)) == (4, 1)
    with pytest.raises(PenwrightError, match="1 labelled text but no class with two different texts"):
        open_labelled([write_rows(tmp_path, ROWS[:1])], ReadingOptions(Columns(text=1, label=2)))


def test_labels_without_held_out_texts_and_numeric_labels_are_noted(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("".join(f"text {i}\t{i % 20 + 0.5}\n" for i in range(400)) + "rare one\t99\nrare two\t99\n")
    notes = " ".join(open_labelled([path]).report.notes)
    assert "no scores for 1 label without held-out texts: 99" in notes and "not as numbers" in notes


def by_author(folder, n_authors: int = 20):
    """Write a table of six texts per author that differ only in their number."""
    rows = [f"author {a} wrote text {n},{'xy'[(a + n) % 2]},a{a}\n" for a in range(n_authors) for n in range(6)]
    return write(folder, "a.csv", "text,kind,author\n" + "".join(rows))


def test_texts_of_a_group_stay_on_one_side_of_the_split(tmp_path):
    path = by_author(tmp_path)

    def authors(group):
        corpus = open_labelled([path], ReadingOptions(Columns(text="text", label="kind", group=group)))
        held_out, training = ({each.text.split()[1] for each in part} for part in (corpus.held_out, corpus.training))
        assert len(list(corpus.held_out)) in range(6, 25) and len(held_out | training) == 20
        share = f"{len(corpus.held_out) / 120:.0%} of the rows, whole groups"
        assert (share in corpus.report.split) == (group is not None)
        return held_out & training

    assert authors("author") == authors(3) == set() != authors(None)
    training = open_labelled([path], ReadingOptions(Columns(text="text", label="kind", group="author"))).training
    pairs = {(each.text.split()[1], group) for each, group in zip(training, training.groups, strict=True)}
    assert len(pairs) == len({author for author, _ in pairs}) == len({group for _, group in pairs})


def test_a_group_in_two_notations_is_one_group(tmp_path):
    def split(*notations, validation=()):
        paths = [
            write(
                tmp_path,
                f"{part}.csv",
                "text,kind,author\n"
                + "".join(
                    f"author {a} wrote text {n},{'xy'[(a + n) % 2]},{a}{end}\n"
                    for a in range(20)
                    for n in (part, part + 2)
                ),
            )
            for part, end in enumerate(notations)
        ]
        reading = ReadingOptions(Columns(text="text", label="kind", group="author"), validation=validation)
        corpus = open_labelled(paths, reading)
        return [{each.text.split()[1] for each in part} for part in (corpus.training, corpus.held_out)]

    for notations in (("", ".0"), (".0", ".00"), (".0", ".0")):
        training, held_out = split(*notations)
        assert not training & held_out and len(training | held_out) == 20, notations
    own = write(tmp_path, "v.csv", "text,kind,author\nauthor 3 again,x,3\nauthor 4 again,y,4.0\n")
    assert not split(".0", ".0", validation=[own])[0] & {"3", "4"}


def test_text_without_a_group_is_its_own_group(tmp_path):
    rows = [f"text number {n},{'xy'[n % 2]},\n" for n in range(60)]
    path = write(tmp_path, "a.csv", "text,kind,author\n" + "".join(rows))
    corpus = open_labelled([path], ReadingOptions(Columns(text="text", label="kind", group="author")))
    assert len(list(corpus.held_out)) == 6


@pytest.mark.parametrize("several", [False, True])
def test_groups_that_have_a_label_to_themselves_stay_in_training(tmp_path, several):
    rows = [
        f"text {n} by {n % 6},{'z' if n % 6 == 3 else 'xy'[n // 6 % 2]}{';x' * several},{n % 6}\n" for n in range(60)
    ]
    path = write(tmp_path, "a.csv", "text,kind,author\n" + "".join(rows))
    kind = LabelKind("multi_label_classification", ";") if several else LabelKind()
    columns = Columns(text="text", label="kind", group="author", label_kind=kind)
    for seed in range(40):
        corpus = open_labelled([path], ReadingOptions(columns, seed=seed))
        assert {each.text.split()[-1] for each in corpus.held_out} - {"3"}
        assert any("z" in each.label for each in corpus.training)


def test_single_group_and_group_equal_to_label_are_refused(tmp_path):
    path = by_author(tmp_path, n_authors=1)
    with pytest.raises(PenwrightError, match="no group can be held out"):
        open_labelled([path], ReadingOptions(Columns(text="text", label="kind", group="author")))
    with pytest.raises(PenwrightError, match="cannot be both the group and the text or label"):
        open_labelled([path], ReadingOptions(Columns(text="text", label="kind", group="kind")))


def test_validation_files_need_no_group_column(tmp_path):
    path, validation = by_author(tmp_path), write(tmp_path, "v.csv", "text,kind\nsomething,x\nother,y\n")
    columns = Columns(text="text", label="kind", group="author")
    assert len(list(open_labelled([path], ReadingOptions(columns, validation=(str(validation),))).held_out)) == 2


def test_group_that_is_held_out_in_a_validation_file_is_not_learned(tmp_path):
    path, columns = by_author(tmp_path), Columns(text="text", label="kind", group="author")
    rows = "author 3 wrote something else,x,a3\nauthor 99 wrote,y,a99\n"
    validation = write(tmp_path, "v.csv", "text,kind,author\n" + rows)
    corpus = open_labelled([path], ReadingOptions(columns, validation=(str(validation),)))
    assert len(corpus.training) == 114 and not any("author 3 " in each.text for each in corpus.training)
    assert "6 dropped: other texts of the group are held out" in "\n".join(corpus.report.lines())
    validation.write_text("text,kind\nsomething,x\nother,y\n", encoding="utf-8")
    corpus = open_labelled([path], ReadingOptions(columns, validation=(str(validation),)))
    assert len(corpus.training) == 120 and any("no group column" in note for note in corpus.report.notes)


def test_evaluated_files_have_the_groups_of_training(tmp_path):
    path, columns = by_author(tmp_path), Columns(text="text", label="kind", group="author")
    corpus = open_labelled([path], ReadingOptions(columns))
    trained = {*corpus.training.groups.tolist(), *corpus.held_out.groups.tolist()}
    tested = open_evaluation_labelled([path], ReadingOptions(replace(columns, as_trained=corpus.roles)))
    assert set(tested.held_out.groups.tolist()) == trained and len(trained) == 20
    without = write(tmp_path, "b.csv", "text,kind\nsomething,x\nother,y\n")
    assert open_evaluation_labelled([without], ReadingOptions(Columns(as_trained=corpus.roles))).held_out.groups is None


@pytest.mark.parametrize(("limits", "most"), [({}, 1_000_000), ({"max_characters": 70}, 70)])
def test_long_labelled_texts_are_kept_unless_the_settings_limit_them(limits, most):
    table = {"data": {"train": ["nowhere"], **limits}, "model": {}, "training": {"steps": 1}}
    labelled, pairs = (
        reading_of(validate(Recipe, {"task": task, **table}, "here")) for task in ("classify", "translate")
    )
    assert labelled.cleaning.max_characters == most
    assert pairs.cleaning.max_characters == min(most, 5000)


def test_test_table_in_an_archive_is_not_trained_on(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for name in ("train", "test", "sample_submission"):
            rows = (f"{number},a {name} text {number},{'ab'[number % 2]}\n" for number in range(60))
            archive.writestr(f"{name}.csv", "id,text,label\n" + "".join(rows))
    corpus = open_labelled([tmp_path / "set.zip"])
    assert [Path(file.path).name for file in corpus.files] == ["train.csv"]
    assert f"not read: {tmp_path / 'set.zip' / 'sample_submission.csv'}" in " ".join(corpus.report.notes)
    assert detect_task([tmp_path / "set.zip"])[0] == "classify"
