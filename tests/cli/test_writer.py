"""`penwright generate` and `penwright novelty`: continuations, constraints, and copies of the training text."""

import json
import re
import shutil
from pathlib import Path

import pytest

from penwright.run.folder import Run
from penwright.storage import write_atomically

from .conftest import QUICK, Command


def records(stdout: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in stdout.split("\n")[:-1]]


def test_jsonl_has_the_full_record_of_each_continuation(penwright: Command, runs: Path) -> None:
    done = penwright("generate", runs / "writer", "It", "--n", 3, "--jsonl", "--novelty", "--max-new-tokens", 12)
    found = records(done.stdout)
    assert [record["number"] for record in found] == [0, 1, 2]
    for record in found:
        assert isinstance(record["log_probs"], list) and isinstance(record["tokens"], list)
        assert len(record["log_probs"]) == len(record["tokens"])
        assert record["mean_log_prob"] == pytest.approx(sum(record["log_probs"]) / len(record["log_probs"]))
        assert {"text", "finish", "seed", "warnings", "bits_per_byte", "novelty"} <= set(record)


def test_prompts_are_read_line_by_line_and_continued_in_order(penwright: Command, runs: Path) -> None:
    done = penwright(
        *("generate", runs / "writer", "--prompts", "-", "--n", 2, "--jsonl", "--max-new-tokens", 5),
        stdin="It was\r\n\nday\u20287\nIt was\n",
    )
    found = records(done.stdout)
    prompts = ["It was", "", "day\u20287", "It was"]
    assert [record["prompt"] for record in found] == [prompt for prompt in prompts for _ in range(2)]
    assert [record["number"] for record in found] == [0, 1, 0, 1, 0, 1, 2, 3]


def test_a_text_starts_without_a_newline_if_the_model_knows_none(penwright: Command, tmp_path: Path) -> None:
    (tmp_path / "line.txt").write_text("the rain fell on the house by the sea and " * 60, encoding="utf-8")
    options = ("--steps", 2, "--set", "tokenizer.type=characters", *QUICK)
    assert penwright("train", tmp_path / "line.txt", "--run", tmp_path / "run", *options).returncode == 0
    done = penwright("generate", tmp_path / "run", "--max-new-tokens", 5)
    assert done.returncode == 0 and "does not know" not in done.stderr


def test_pattern_is_matched_when_streaming_and_in_a_batch(penwright: Command, runs: Path) -> None:
    options = ("--pattern", r" [a-z ]{4,9}\.", "--ban", "day", "--temperature", 1.5)
    streamed = penwright("generate", runs / "writer", "It", *options).stdout
    assert re.fullmatch(r"It [a-z ]{4,9}\.\n", streamed)
    for record in records(penwright("generate", runs / "writer", "It", "--n", 4, "--jsonl", *options).stdout):
        assert re.fullmatch(r" [a-z ]{4,9}\.", str(record["text"]))
        assert "day" not in str(record["text"]).split()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pattern", "("), "not a regular expression"),
        (("--pattern", "Łódź"), "characters that the model does not know"),
        (("--pattern", "[ab]{9}", "--max-new-tokens", 3), "at least 9"),
        (("--require", "day", "--ban", "DAY"), "contradict each other"),
        (("--bias", "day"), "TEXT=SCORE"),
        (("--bias", "day=much"), "TEXT=SCORE"),
        (("--set", "dry_bass=2"), "did you mean 'dry_base'"),
        (("--typical-p", 2), "typical-p"),
        (("--typical-p", 0), "typical_p"),
        (("--prompts", "/no/such/file"), "cannot be read"),
    ],
)
def test_invalid_options_are_refused_without_output(
    penwright: Command, runs: Path, options: tuple[object, ...], message: str
) -> None:
    text = [] if "--prompts" in options else ["It"]
    done = penwright("generate", runs / "writer", *text, *options)
    assert done.returncode in (1, 2) and message in done.stderr and done.stdout == ""


def test_text_without_tokens_is_printed_with_its_warnings(penwright: Command, runs: Path) -> None:
    done = penwright("generate", runs / "writer", "Łódź", "--pattern", "")
    assert done.stdout == "Łódź\n" and "characters the model does not know: Ł" in done.stderr


def test_copied_passage_is_located_in_the_training_text(
    penwright: Command, runs: Path, corpora: Path, tmp_path: Path
) -> None:
    lines = (corpora / "novel.txt").read_text("utf-8").split("\n")
    (tmp_path / "copy.txt").write_text("Once. " + "\n".join(lines[100:104]), encoding="utf-8")
    report = json.loads(penwright("novelty", runs / "writer", tmp_path / "copy.txt", "--json").stdout)
    run = report["texts"][0]["longest"]
    assert run["text"] == "\n".join(lines[100:104]) and run["line"] == 101
    said = penwright("novelty", runs / "writer", tmp_path / "copy.txt").stdout
    assert "line 101, longer than any passage that the held-out text shares with the training text" in said


def test_novelty_accepts_piped_continuations(penwright: Command, runs: Path) -> None:
    written = penwright("generate", runs / "writer", "It", "--n", 3, "--jsonl").stdout
    piped = penwright("novelty", runs / "writer", stdin=written).stdout.split("\n")
    asked = penwright("generate", runs / "writer", "It", "--n", 3, "--novelty").stdout.split("\n")
    assert piped == asked[asked.index("--- novelty") + 1 :]
    assert len(piped) == 7


def test_changed_or_missing_training_text_is_named(
    penwright: Command, runs: Path, corpora: Path, tmp_path: Path
) -> None:
    shutil.copytree(runs / "writer", tmp_path / "run")
    shutil.copy(corpora / "novel.txt", tmp_path / "novel.txt")
    recipe = Run(tmp_path / "run").recipe.model_dump_json()
    assert str(corpora / "novel.txt") in recipe
    path = tmp_path / "run" / "recipe.toml"
    write_atomically(path, path.read_text("utf-8").replace(str(corpora), str(tmp_path)))
    assert penwright("novelty", tmp_path / "run", stdin="a text").returncode == 0
    (tmp_path / "novel.txt").write_text("something else\n" * 50, encoding="utf-8")
    assert "was trained on different data" in penwright("novelty", tmp_path / "run", stdin="a text").stderr
    (tmp_path / "novel.txt").unlink()
    gone = penwright("novelty", tmp_path / "run", stdin="a text")
    assert gone.returncode == 1 and "novel.txt" in gone.stderr


@pytest.mark.parametrize("name", ["translator", "classifier"])
def test_novelty_refuses_other_kinds_of_runs(penwright: Command, runs: Path, name: str) -> None:
    done = penwright("novelty", runs / name, stdin="a text")
    assert done.returncode == 2 and "does not generate" in done.stderr


def test_empty_text_for_novelty_is_refused(penwright: Command, runs: Path) -> None:
    assert "no text to measure" in penwright("novelty", runs / "writer", stdin=" \n").stderr
