"""`penwright train text.txt --task encode`: an encoder trained on plain text, and a classifier fine-tuned from it."""

import json
from pathlib import Path

import pytest

import penwright as api
from penwright.classification.classifier import Classifier

from .conftest import QUICK, Command
from .test_finetune import settings


def test_encoder_learns_from_plain_text_and_becomes_a_classifier(
    penwright: Command, corpora: Path, tmp_path: Path
) -> None:
    every = ["--set", "training.evaluate_every=10"]
    novel, run = corpora / "novel.txt", tmp_path / "encoder"
    made = penwright("train", novel, "--task", "encode", "--run", run, "--steps", 40, *QUICK, *every)
    assert made.returncode == 0, made.stderr
    assert "to beat: nats per hidden token" in made.stderr and f"penwright embed {run}" in made.stderr
    (scores,) = json.loads(penwright("evaluate", run, "--json").stdout)
    (unigram,) = scores["baselines"]
    assert scores["name"] == "nats per hidden token" and unigram["name"] == "unigram" and unigram["value"] > 0
    learned = [json.loads(line)["nats per hidden token"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert scores["value"] == pytest.approx(min(learned), abs=1e-3) and min(learned) < learned[0] - 0.1
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text("utf-8").splitlines()]
    assert any("[...]" in each["prompt"] for each in samples)
    assert all("It was day" in each["reference"] for each in samples)

    encoder = api.load(run)
    assert isinstance(encoder, Classifier) and encoder.labels == ()
    assert encoder.embed(["the rain fell"]).norm() > 0.99
    refused = penwright("classify", run, "a film")
    assert refused.returncode == 2 and "has no labels" in refused.stderr
    resumed = penwright("train", "--resume", run, "--steps", 3)
    assert resumed.returncode == 0, resumed.stderr

    labels, tuned = corpora / "labels.csv", tmp_path / "tuned"
    made = penwright("train", labels, "--from", run, "--run", tuned, "--steps", 3, *settings())
    assert made.returncode == 0, made.stderr
    assert penwright("classify", tuned, "a fine film number 3").stdout.split("\t")[0] in ("good", "bad")
    refused = penwright("train", novel, "--from", run, "--task", "generate", "--run", tmp_path / "w", "--steps", 1)
    assert refused.returncode == 1 and "trained to encode cannot be trained to generate" in refused.stderr
