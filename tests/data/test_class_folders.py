"""Labelled texts with one folder per class."""

import zipfile
from pathlib import Path

import pytest

from penwright.data.corpus import Columns, Labelled, ReadingOptions
from penwright.data.detection import detect_task
from penwright.data.labelled import open_evaluation_labelled, open_labelled
from penwright.data.readers.archives import data_members
from penwright.errors import PenwrightError, Undecided


def make(folder: Path, *classes: str, n: int = 12) -> Path:
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(n):
            (folder / name / f"{number}.txt").write_text(f"A {name} text\nwith number {number}.\n")
    return folder


def test_each_folder_is_a_class_and_each_file_a_text(tmp_path: Path) -> None:
    folder = make(tmp_path / "data", "pos", "neg/deeper")
    corpus = open_labelled([folder])
    assert (corpus.labels, corpus.n_training + len(corpus.held_out)) == (("neg", "pos"), 24)
    assert Labelled("A pos text\nwith number 3.", "pos") in [*corpus.training, *corpus.held_out]
    assert len(open_evaluation_labelled([folder]).held_out) == 24
    names = ReadingOptions(Columns(label_names={"pos": "good"}))
    assert open_labelled([folder], names).labels == ("good", "neg")
    notes = open_labelled([folder], ReadingOptions(Columns(label_names={"Pos": "good"}))).report.notes
    assert "data.label_names: no text of the training files has the label 'Pos'" in notes


def test_classes_change_the_fingerprint(tmp_path: Path) -> None:
    """Otherwise the cached labels of another reading would be used."""
    folder, validation = make(tmp_path / "data", "a", "b", "c", n=20), make(tmp_path / "own", "b", "c")
    columns = [Columns(label_names={"a": name}) for name in "bc"]
    readings = [ReadingOptions(each, validation=own) for each in columns for own in ([], [validation])]
    found = [open_labelled([folder], reading) for reading in readings]
    found += [open_evaluation_labelled([folder], reading) for reading in readings[::2]]
    assert len({corpus.fingerprint for corpus in found}) == 6


def test_training_split_is_read_when_there_are_split_folders(tmp_path: Path) -> None:
    for part in ("train", "test"):
        make(tmp_path / "data" / part, "pos", "neg")
    make(tmp_path / "data" / "train", "unsup")
    corpus = open_labelled([tmp_path / "data"])
    assert (corpus.labels, corpus.n_training + len(corpus.held_out)) == (("neg", "pos"), 24)
    notes = " ".join(corpus.report.notes)
    assert f"not read: {tmp_path / 'data' / 'test'}" in notes and "unsup (no labels)" in notes


def test_label_like_folder_names_ask_and_other_names_are_mentioned(tmp_path: Path) -> None:
    with pytest.raises(Undecided, match="--task classify"):
        detect_task([make(tmp_path / "films", "pos", "neg")])
    task, reason = detect_task([make(tmp_path / "books", "austen", "dickens")])
    assert task == "generate" and "--task classify" in reason
    assert "--task" not in detect_task([make(tmp_path / "one", "austen")])[1]


def test_folder_with_one_class_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(PenwrightError, match="Put the texts of each class into a folder"):
        open_labelled([make(tmp_path / "data", "only")])


def test_emails_and_files_without_suffix_are_read_and_other_files_noted(tmp_path: Path) -> None:
    folder = make(tmp_path / "data", "spam", "ham")
    for number, name in enumerate(["49960", "a.eml", "0001.7c53336b37003a9286aba55d2945844c", "0002.17"]):
        (folder / "spam" / name).write_text(f"Buy number {number} now.")
    (folder / "ham" / "scan.jpg").write_bytes(b"")
    corpus = open_labelled([folder])
    assert corpus.n_training + len(corpus.held_out) == 28
    assert "not read: 1 file of other types in the class folders (.jpg)" in " ".join(corpus.report.notes)


def test_folders_named_after_a_split_are_not_classes(tmp_path: Path) -> None:
    for part in ("news-train", "news-test"):
        make(tmp_path / "data" / part, "sport", "politics")
    assert open_labelled([tmp_path / "data"]).labels == ("politics", "sport")


def test_archive_of_class_folders_asks_to_be_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "films.zip", "w") as archive:
        for number in range(20):
            archive.writestr(f"{('pos', 'neg')[number % 2]}/{number}.txt", f"A text with number {number}.")
    with pytest.raises(PenwrightError, match=r"unpack it and pass the folder"):
        open_labelled([tmp_path / "films.zip"])
    with pytest.raises(Undecided, match="neg, pos"):
        detect_task([tmp_path / "films.zip"])


def test_only_whole_words_mark_files_of_an_archive_as_no_data(tmp_path: Path) -> None:
    names = ["capital.txt", "manifesto.txt"]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in [*names, "README", "MANIFEST.json", "license_en.txt"]:
            archive.writestr(name, "x")
    assert [path.name for path in data_members(tmp_path / "a.zip")] == names
