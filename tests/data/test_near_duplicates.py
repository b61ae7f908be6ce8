"""Held-out texts that are nearly the same as a training text."""

from importlib.metadata import Distribution, PackageNotFoundError
from itertools import islice, repeat
from pathlib import Path
from threading import Event

import pytest

from penwright.config import Table, merge
from penwright.data import near_duplicates
from penwright.data.near_duplicates import near_duplicates_note
from penwright.workflows import leaks
from penwright.workflows.plan import prepare

LONG = "the quick brown fox jumps over the lazy dog near the river bank"


def test_case_digits_and_punctuation_do_not_count() -> None:
    note = near_duplicates_note(["Order 12 has ARRIVED!", "something else"], ["order 977, has arrived", "another text"])
    assert note.startswith("1 of 2 held-out texts is nearly the same as a training text")
    assert "'Order 12 has ARRIVED!' and 'order 977, has arrived'" in note and "--group COLUMN" in note


def test_most_sequences_of_words_must_agree() -> None:
    assert near_duplicates_note([LONG], [LONG.replace("river", "green river")])
    assert not near_duplicates_note([LONG], ["the quick brown fox sleeps under the old tree by the river bank"])
    assert not near_duplicates_note(["what is a fear of shadows"], ["what is a fear of thunder"])
    assert not near_duplicates_note(["12", "?"], ["13", "!"]), "texts without words are not compared"
    assert not near_duplicates_note([], [LONG])


def test_every_copy_of_a_template_counts() -> None:
    note = near_duplicates_note([LONG], [f"{LONG} {n}" for n in range(500)])
    assert note.startswith("500 of 500 held-out texts"), "digits do not count"
    spelled = [f"{LONG} {chr(97 + n // 26) * 3}{chr(97 + n % 26)}" for n in range(200)]
    assert near_duplicates_note(spelled, spelled).startswith("200 of 200 held-out texts")


def test_only_the_first_texts_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_duplicates, "MOST_CHARACTERS", 10 * len(LONG))
    texts = islice(repeat(LONG), 1000)
    assert near_duplicates_note([LONG], texts).startswith("10 of the first 10 held-out texts are nearly")
    assert len(list(texts)) >= 900, "the other held-out texts are not kept"
    assert near_duplicates_note([LONG], [LONG] * 10).startswith("10 of 10 held-out texts")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Settings for a table of similar texts, each with a group, and an empty cache."""
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.csv"
    rows = [f"{LONG} {'abcde'[n % 5]} {n},{'xy'[n % 2]},{n % 10}\n" for n in range(200)]
    path.write_text("text,label,topic\n" + "".join(rows), encoding="utf-8")
    return {"data": {"train": [str(path)], "text": "text", "label": "label"}, "training": {"steps": 1}}


def test_note_is_made_once_for_each_split(settings: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []

    def note(*_: object) -> str:
        notes.append(f"note {len(notes)}")
        return notes[-1]

    monkeypatch.setattr(leaks, "near_duplicates_note", note)
    for seed in (1, 2):  # as for two members of an ensemble, which share the held-out texts
        member = merge(settings, {"seed": seed, "data": {"seed": 1}})
        assert "note 0" in prepare(member).corpus.report.notes
    for change in ({"seed": 2}, {"group": "topic"}, {"held_out": 0.3}):
        assert notes[-1] not in prepare(merge(settings, {"data": change})).corpus.report.notes
    assert len(notes) == 4


def test_slow_comparison_is_announced(settings: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    compared, announced = Event(), Event()

    def say(text: str) -> None:
        assert not compared.is_set() or "comparing" not in text
        if "comparing the held-out texts" in text:
            announced.set()

    def note(*_: object) -> str:
        assert announced.wait(60)
        compared.set()
        return ""

    monkeypatch.setattr(leaks, "SECONDS_IN_SILENCE", 0.01)
    monkeypatch.setattr(leaks, "near_duplicates_note", note)
    prepare(settings, say)
    assert announced.is_set()


def test_two_examples_are_shown(settings: Table) -> None:
    corpus = prepare(settings).corpus
    note = next(each for each in corpus.report.notes if "nearly the same" in each)
    assert note.startswith(f"{len(corpus.held_out)} of {len(corpus.held_out)} held-out texts")
    assert note.count(" and 'the quick") == 2 and len(note) < 500


def test_planning_works_from_a_source_folder(settings: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    find = Distribution.from_name

    def not_installed(name: str) -> Distribution:
        if name == "penwright":
            raise PackageNotFoundError(name)
        return find(name)

    monkeypatch.setattr(Distribution, "from_name", not_installed)
    assert prepare(settings).corpus.report.notes


@pytest.mark.parametrize(
    ("task", "unit", "rows"),
    [
        ("translate", "sources", [f"{LONG} {'abcde'[n % 5]} {n}!\t{LONG} {n}\n" for n in range(200)]),
        ("generate", "lines", [f"{LONG} {n % 20}\n" for n in range(200)]),
    ],
)
def test_copies_among_pairs_and_lines_are_counted(settings: Table, task: str, unit: str, rows: list[str]) -> None:
    path = Path(settings["data"]["train"][0]).with_suffix(".tsv" if task == "translate" else ".txt")
    path.write_text("".join(rows), encoding="utf-8")
    notes = prepare({"task": task, "data": {"train": [str(path)]}, "training": {"steps": 1}}).corpus.report.notes
    (note,) = (note for note in notes if "may be too optimistic" in note)
    assert f"held-out {unit} " in note and "--group" not in note


@pytest.mark.parametrize(("dash", "is_noted"), [("\N{EM DASH}", True), ("-", False), ("", False)])
def test_new_characters_of_the_held_out_end_are_counted(
    dash: str, *, is_noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "cache"))
    novel = tmp_path / "novel.txt"
    lines = [f"On day {n} it rained - and it rained the whole day.\n" for n in range(900)]
    novel.write_text("".join(lines) + f"{dash} the day rained.\n" * 100, encoding="utf-8")
    report = prepare({"data": {"train": [str(novel)], "held_out": 0.1}, "training": {"steps": 1}}).corpus.report
    notes = [note for note in report.notes if "held-out characters" in note]
    assert len(notes) == is_noted
    assert all(note.startswith("100 of ") and f"such as '{dash}'" in note for note in notes)


def test_few_new_characters_are_not_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "cache"))
    novel = tmp_path / "novel.txt"
    novel.write_text("".join(f"On day {n} it rained.\n" for n in range(2000)) + "\N{EM DASH}\n", encoding="utf-8")
    report = prepare({"data": {"train": [str(novel)]}, "training": {"steps": 1}}).corpus.report
    assert not [note for note in report.notes if "held-out characters" in note]
