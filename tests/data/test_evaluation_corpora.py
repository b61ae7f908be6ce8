"""Corpora for evaluation, and the fingerprints that keep their cached tokens apart."""

import hashlib
import json
from pathlib import Path

import pytest

from penwright.data.corpus import Columns, LabelKind, ReadingOptions, fingerprint_of
from penwright.data.labelled import open_evaluation_labelled, open_labelled
from penwright.data.parallel import open_evaluation_pairs, open_pairs
from penwright.data.text import open_evaluation_text, open_text


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "test.tsv"
    path.write_text("yes\tja\nyes\tja\nno\tnein\n\tleer\nno way out of here at all, not for us\tx\n", encoding="utf-8")
    return path


def test_evaluation_pairs_keep_duplicates_and_unusual_lengths(pairs: Path) -> None:
    corpus = open_evaluation_pairs([pairs])
    assert [pair.source for pair in corpus.held_out] == ["yes", "yes", "no", "no way out of here at all, not for us"]
    assert len(corpus.training) == 0 and list(corpus.training) == []


def test_validation_pairs_keep_duplicates_and_unusual_lengths(pairs: Path, tmp_path: Path) -> None:
    training = tmp_path / "train.tsv"
    training.write_text("".join(f"word {n}\tWort {n}\n" for n in range(50)), encoding="utf-8")
    assert len(open_pairs([training], ReadingOptions(validation=[pairs])).held_out) == 4


def test_evaluation_text_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "test.txt"
    path.write_text("One line.\nAnother.\n", encoding="utf-8")
    corpus = open_evaluation_text([path])
    assert "".join(chunk for document in corpus.held_out for chunk in document.chunks) == "One line.\nAnother.\n"
    assert corpus.held_out_bytes == 19


def test_labels_are_renamed_by_label_names(tmp_path: Path) -> None:
    path = tmp_path / "test.csv"
    path.write_text(
        "1,a text of some length\n2,another text of some length\n1,a text of some length\n", encoding="utf-8"
    )
    columns = Columns(label=1, text=2, label_names={"1": "World", "2": "Sports"})
    labels = [example.label for example in open_evaluation_labelled([path], ReadingOptions(columns)).held_out]
    assert labels == ["World", "Sports", "World"]


@pytest.mark.parametrize(
    ("label", "renamed"),
    [("1", "one"), ("1.0", "one"), ("TRUE", "yes"), ("True", "yes"), ("false", "false"), ("01.50", "01.50")],
)
def test_numbers_and_truth_values_are_renamed_in_any_notation(tmp_path: Path, label: str, renamed: str) -> None:
    path = tmp_path / "test.csv"
    path.write_text(
        f"text,label\na text of some length,{label}\na text of another length,[{label}]\n", encoding="utf-8"
    )
    names = {"1": "one", "true": "yes", "Good": "good"}
    for kind in (LabelKind(), LabelKind("multi_label_classification")):
        columns = Columns(label="label", text="text", label_names=names, label_kind=kind)
        corpus = open_evaluation_labelled([path], ReadingOptions(columns))
        assert next(iter(corpus.held_out)).label == renamed


def test_scores_are_renamed_and_dropped_by_label_names(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    rows = (f"text number {n} of the file,{[-1, 2, '3.5'][n % 3]}\n" for n in range(60))
    path.write_text("text,score\n" + "".join(rows), encoding="utf-8")
    columns = Columns(label="score", label_names={"-1.0": "", "2": "2,5"}, label_kind=LabelKind("regression"))
    corpus = open_labelled([path], ReadingOptions(columns))
    assert corpus.label_values == ("2.5", "3.5") and corpus.report.dropped[0].count == 20


@pytest.mark.parametrize("kind", [LabelKind(), LabelKind("multi_label_classification", "|"), LabelKind("regression")])
def test_label_names_that_no_text_has_are_noted(tmp_path: Path, kind: LabelKind) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path, labels in zip(paths, ["12", "34"], strict=True):
        rows = "".join(f"text number {n} of {path.name},{labels[n % 2]}\n" for n in range(40))
        path.write_text(f"text,label\n{rows}", encoding="utf-8")
    columns = Columns(label="label", text="text", label_kind=kind, label_names={"1": "7", "3.0": "8", "sports": "9"})
    notes = [note for note in open_labelled(paths, ReadingOptions(columns)).report.notes if note.startswith("data.")]
    assert notes == ["data.label_names: no text of the training files has the label 'sports'"]


def test_label_names_change_the_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("".join(f"{n % 2},text number {n} of the file\n" for n in range(40)), encoding="utf-8")
    plain = open_labelled([path], ReadingOptions(Columns(label=1, text=2)))
    renamed = open_labelled([path], ReadingOptions(Columns(label=1, text=2, label_names={"0": "even"})))
    assert plain.fingerprint != renamed.fingerprint and renamed.labels == ("1", "even")


def test_columns_change_the_fingerprint(tmp_path: Path) -> None:
    """Otherwise cached tokens of one reading would be used for another."""
    table = tmp_path / "test.csv"
    table.write_text("title,body,label\n" + "".join(f"t {n},a body {n},{n % 2}\n" for n in range(9)), encoding="utf-8")
    titles, bodies = (
        open_evaluation_labelled([table], ReadingOptions(Columns(text=name))) for name in ("title", "body")
    )
    assert titles.fingerprint != bodies.fingerprint
    forward, backward = (
        open_evaluation_pairs([table], ReadingOptions(Columns(*sides)))
        for sides in (("title", "body"), ("body", "title"))
    )
    assert forward.fingerprint != backward.fingerprint


def test_table_and_plain_text_of_the_same_bytes_differ_in_fingerprint(tmp_path: Path) -> None:
    rows = "text\n" + "".join(f"This is row number {n} of all.\n" for n in range(30))
    table, lines = tmp_path / "a.csv", tmp_path / "a.txt"
    for path in (table, lines):
        path.write_text(rows, encoding="utf-8")
    assert open_evaluation_text([table]).fingerprint != open_evaluation_text([lines]).fingerprint
    assert open_text([table]).fingerprint != open_text([lines]).fingerprint


def test_columns_of_validation_files_change_the_fingerprint(tmp_path: Path) -> None:
    train, validation = tmp_path / "train.csv", tmp_path / "own.csv"
    train.write_text("text,label\n" + "".join(f"a text {n},{n % 2}\n" for n in range(40)), encoding="utf-8")
    found = set()
    for header in ("text,label,other", "other,label,text"):
        validation.write_text(f"{header}\nsome text,1,some other\nsecond,0,third\n", encoding="utf-8")
        found.add(open_labelled([train], ReadingOptions(validation=[validation])).fingerprint)
    assert len(found) == 2


@pytest.mark.parametrize("version", [1, 2, 4])
def test_fingerprints_of_earlier_versions_are_not_used_again(version: int) -> None:
    """Their cached tokens may have other labels: they dropped texts with the labels `[]`, or ignored class folders."""
    before = hashlib.sha256(json.dumps([version, [], {"task": "labelled texts"}]).encode()).hexdigest()
    assert fingerprint_of([], task="labelled texts") != before
