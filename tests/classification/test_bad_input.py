"""Messy labelled data: inconsistent, rare and numeric labels, very many labels, long and multi-line cells."""

import csv
import io
import json
from pathlib import Path

import pytest
import torch

from penwright.classification import linear
from penwright.classification.linear import LinearClassifier

from ..cli.conftest import QUICK, Command, penwright  # noqa: F401  # a fixture


def table(rows: list[tuple[str, str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([("text", "label"), *rows])
    return out.getvalue()


def alternating(*labels: str, n: int = 60) -> list[tuple[str, str]]:
    return [
        (f"{'fine' if k % len(labels) else 'dull'} text {k}, number {k % 7}", labels[k % len(labels)]) for k in range(n)
    ]


LONG = "word " * 20_000
CASES = {
    "a class with one text": (
        [*alternating("a", "b"), ("a lonely text", "c")],
        "no scores for 1 label without held-out texts: c",
    ),
    "labels that differ in case or blanks": (alternating("Good", "good ", "bad"), "look alike"),
    "numbers as labels": (alternating("0.5", "1.0", "2"), "3 labels to learn: 0.5 (18), 1.0 (18), 2 (18)"),
    "names with commas and spaces": (alternating("very, good", "not so good"), "not so good (27), very, good (27)"),
    "a very long cell": ([*alternating("a", "b"), (LONG, "a")], "61 of 61 labelled texts kept"),
    "newlines in cells": (
        [(f"{text}\nmore, {n}", label) for n, (text, label) in enumerate(alternating("a", "b"))],
        "2 labels",
    ),
    "missing labels": ([*alternating("a", "b"), ("a text without a label", "")], "1 dropped: the label is missing"),
}


@pytest.mark.parametrize("name", CASES)
def test_classifier_is_trained_and_used_on_messy_data(penwright: Command, tmp_path: Path, name: str) -> None:  # noqa: F811
    rows, message = CASES[name]
    (tmp_path / "labels.csv").write_text(table(rows), encoding="utf-8")
    options = ["--set", "data.label=label", "--steps", 2, *QUICK]
    done = penwright("train", tmp_path / "labels.csv", "--run", tmp_path / "run", *options)
    assert done.returncode == 0, done.stderr
    assert message in done.stdout + done.stderr
    (tmp_path / "in.csv").write_text(table([(text, "") for text, _ in rows]), encoding="utf-8")
    done = penwright("classify", tmp_path / "run", "--csv", tmp_path / "in.csv", "--text", "text")
    found = list(csv.reader(io.StringIO(done.stdout, newline="")))
    labels = set(json.loads((tmp_path / "run" / "corpus.json").read_text("utf-8"))["card"]["labels"])
    assert [row[0] for row in found[1:]] == [text for text, _ in rows]
    assert {row[2] for row in found[1:]} <= labels
    assert penwright("evaluate", tmp_path / "run").returncode == 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (alternating("a"), "all texts have the label 'a'"),
        (alternating("a", "b", n=2), "no class with two different texts"),
        (alternating(*(f"{n / 1000:.3f}" for n in range(200)), n=400), "numbers on a scale"),
    ],
)
def test_unlearnable_labels_are_refused(
    penwright: Command,  # noqa: F811
    tmp_path: Path,
    rows: list[tuple[str, str]],
    message: str,
) -> None:
    (tmp_path / "labels.csv").write_text(table(rows), encoding="utf-8")
    done = penwright("train", tmp_path / "labels.csv", "--run", tmp_path / "run", "--task", "classify", *QUICK)
    assert done.returncode == 1 and message in done.stderr
    assert not (tmp_path / "run").exists()


def test_ten_thousand_labels_need_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert linear.MOST_WEIGHTS <= 1 << 26
    monkeypatch.setattr(linear, "MOST_WEIGHTS", 1 << 18)  # fitting fewer is quicker
    labels = torch.arange(10_000).repeat(2)[:12_000]
    texts = [f"group {label % 100} item {label}" for label in labels.tolist()]
    fitted = LinearClassifier.fit(texts[:500], labels[:500], 10_000)
    assert any(note.endswith("n-grams (with 10,000 labels, at most 26)") for note in fitted.notes)
    assert fitted.coefficients.weights.numel() <= linear.MOST_WEIGHTS
    assert fitted.outputs(["group 7 item 107"]).isfinite().all()
