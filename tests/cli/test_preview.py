"""The preview and the questions of `train` before it trains."""

import io
import json
import sys
from pathlib import Path

import pytest

from penwright.cli.options import prepare_by_asking
from penwright.errors import Undecided

from .conftest import QUICK, Command


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def ambiguous_table(tmp_path: Path) -> Path:
    """A table with two columns that could be the label."""
    path = tmp_path / "doubtful.jsonl"
    rows = [{"x": f"some words {i} of a text", "toxic": i % 2, "obscene": i // 2 % 2} for i in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("data", "keys", "line"),
    [
        ("novel.txt", ["text"], "  It was day 0, and the rain fell on house 0."),
        ("pairs.tsv", ["source", "target"], "  eins eins eins => one one one"),
        ("labels.csv", ["text", "label"], "  a fine film number 0 => good"),
    ],
)
def test_first_examples_are_shown(penwright: Command, corpora: Path, data: str, keys: list[str], line: str) -> None:
    options = [corpora / data, "--dry-run", "--steps", 5, *QUICK]
    examples = json.loads(penwright("train", *options, "--json").stdout)["examples"]
    assert len(examples) == 3 and all(list(example) == keys for example in examples)
    assert line in penwright("train", *options).stdout.splitlines()


def test_examples_are_escaped_and_shortened(penwright: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(
        "".join(f"\x1b]0;title\x07 {'word ' * 40}{i}\t{'wort ' * 40}{i}\n" for i in range(40)), encoding="utf-8"
    )
    done = penwright("train", path, "--task", "translate", "--dry-run", "--steps", 5, *QUICK)
    assert "\x1b" not in done.stdout and "\\x1b]0;title\\x07 word word" in done.stdout
    assert max(map(len, done.stdout.split("first examples")[1].splitlines()[1:4])) < 220


def test_ambiguous_columns_are_refused_without_a_terminal(penwright: Command, ambiguous_table: Path) -> None:
    done = penwright("train", ambiguous_table, "--dry-run", "--steps", 5, *QUICK)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "--set data.label=toxic" in done.stderr and "--set data.label=obscene" in done.stderr
    told = penwright("train", ambiguous_table, "--dry-run", "--steps", 5, *QUICK, "--set", "data.label=obscene")
    assert told.returncode == 0 and "label = column obscene" in told.stdout


def test_misspelled_data_key_is_named_before_any_question(penwright: Command, ambiguous_table: Path) -> None:
    done = penwright("train", ambiguous_table, "--set", "data.labl=toxic")
    assert done.returncode == 2 and "'labl'; did you mean 'label'?" in done.stderr and "Choose" not in done.stderr


def test_label_column_guessed_from_values_alone_is_pointed_out(penwright: Command, tmp_path: Path) -> None:
    path, rows = tmp_path / "reviews.csv", [f"{i},a film seen on day {i},{('Rex', 'Odeon')[i % 2]}" for i in range(60)]
    path.write_text("\n".join(["id,review,cinema", *rows]), encoding="utf-8")
    done = penwright("train", path, "--task", "classify", "--dry-run", "--steps", 5, *QUICK)
    assert "column cinema" in done.stdout and "--set data.label=NAME" in done.stdout
    path.write_text("\n".join(["id,review,label", *rows]), encoding="utf-8")
    named = penwright("train", path, "--task", "classify", "--dry-run", "--steps", 5, *QUICK)
    assert named.returncode == 0 and "data.label=NAME" not in named.stdout


def settings_for(path: Path) -> dict[str, object]:
    model = {"d_model": 16, "n_layers": 1, "n_heads": 2, "context_length": 32}
    return {"data": {"train": [str(path)]}, "model": model, "training": {"steps": 5, "device": "cpu"}}


@pytest.mark.parametrize("answers", ["2\n", "no\n9\n2\n"])
def test_user_is_asked_at_a_terminal(ambiguous_table: Path, monkeypatch: pytest.MonkeyPatch, answers: str) -> None:
    err = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answers))
    monkeypatch.setattr(sys, "stderr", err)
    settings, prepared = prepare_by_asking(settings_for(ambiguous_table))
    assert settings["data"]["label"] == "obscene" and prepared.corpus.labels == ("0", "1")
    assert "'toxic'" in err.getvalue()


@pytest.mark.parametrize("answer", ["", "\n"])
def test_no_answer_leaves_the_choice_undecided(
    ambiguous_table: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(Undecided):
        prepare_by_asking(settings_for(ambiguous_table))


def test_too_few_rows_give_a_warning_or_an_error(penwright: Command, tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text("text,label\n" + "".join(f"a text number {i},{i % 2}\n" for i in range(8)), encoding="utf-8")
    done = penwright("train", path, "--dry-run", "--steps", 5, *QUICK)
    assert done.returncode == 0 and "too few texts" in done.stdout
    path.write_text("text,label\na text,0\n", encoding="utf-8")
    done = penwright("train", path, "--dry-run", "--steps", 5, *QUICK)
    assert done.returncode != 0 and "Traceback" not in done.stderr and str(path) in done.stderr
