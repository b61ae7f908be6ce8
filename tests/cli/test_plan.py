import json
import re
from inspect import signature
from pathlib import Path

import pytest

from penwright.cli import plan, train
from penwright.cli.plan_report import plan_in_words
from penwright.config import Recipe, Table, TokenizerSettings, merge, validate, write_toml
from penwright.data.labelled import open_labelled
from penwright.run.folder import Run
from penwright.workflows.finetune import has_few_labels, share_of_few
from penwright.workflows.plan import prepare

from .conftest import QUICK, Command


def test_plan_shows_a_forecast_and_trains_nothing(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    done = penwright("plan", corpora / "novel.txt", "--minutes", 1)
    assert done.returncode == 0, done.stderr
    assert "model.size = " in done.stdout and "bits per byte" in done.stdout and "more time" in done.stdout
    assert not list(tmp_path.iterdir())


def test_plan_as_json_has_a_forecast(penwright: Command, corpora: Path) -> None:
    options = ["--minutes", 1, "--set", "model.size=nano", "--json"]  # quick to time
    plan = json.loads(penwright("plan", corpora / "novel.txt", *options).stdout)
    assert plan["epochs"] > 0 and 0 < plan["outlook"]["low"] < plan["outlook"]["high"]


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_plan_as_json_shows_the_tokens_of_a_passage(penwright: Command, corpora: Path, kind: str) -> None:
    options = ["--steps", 5, *QUICK, "--set", f"tokenizer.type={kind}", "--json"]
    passage = json.loads(penwright("plan", corpora / "novel.txt", *options).stdout)["passage"]
    text = (corpora / "novel.txt").read_text("utf-8")
    assert "".join(passage) in text and text.index("".join(passage)) > len(text) // 4, "not its first lines"
    assert (max(map(len, passage)) == 1) == (kind == "characters") and "".join(passage).count("\n") > 3
    assert json.loads(penwright("plan", corpora / "pairs.tsv", *options).stdout)["passage"] == []


def test_forecast_of_a_classifier_is_the_accuracy_of_a_linear_one(penwright: Command, tmp_path: Path) -> None:
    words = {"good": "fine", "bad": "dull"}
    rows = [f"a {words[label]} film number {n}\t{label}" for n in range(100) for label in words]
    rows[::8] = [row.replace("fine", "dull") for row in rows[::8]]  # a quarter of the good ones look bad
    (tmp_path / "films.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    options = ["--minutes", 1, "--set", "model.size=nano"]
    found = json.loads(penwright("plan", tmp_path / "films.tsv", *options, "--json").stdout)
    texts = [row.split("\t") for row in rows]
    best = 100 * sum(("fine" in text) == (label == "good") for text, label in texts) / len(texts)
    assert best < 90 and found["outlook"]["accuracy"] == pytest.approx(best, abs=15)
    assert {each["share"] for each in found["budgets"]} == {None}
    said = penwright("plan", tmp_path / "films.tsv", *options).stdout
    assert f"expected: about {found['outlook']['accuracy']:.0f}% accuracy or more" in said


def test_plan_of_a_translator_gives_a_share_of_its_best(penwright: Command, corpora: Path) -> None:
    options = ["--task", "translate", "--size", "nano"]
    done = penwright("plan", corpora / "pairs.tsv", *options, "--epochs", 2)
    assert "expected: 65% to 94% of the best BLEU for this text" in done.stdout
    found = json.loads(penwright("plan", corpora / "pairs.tsv", *options, "--minutes", 1, "--json").stdout)
    lows = [each["share"][0] for each in found["budgets"] if each["share"]]
    assert len(lows) > 1 and lows == sorted(lows), "more minutes, a higher share"


def test_too_large_model_is_planned_but_not_trained(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    vocabulary = ["--set", "tokenizer.type=bpe", "--set", "tokenizer.vocab_size=400"]
    options = [corpora / "novel.txt", "--size", "llama3-8b", "--minutes", 60, *vocabulary]
    done = penwright("plan", *options)
    assert done.returncode == 0 and "too large: the model does not fit in the memory of this machine" in done.stdout
    assert "Choose a smaller --size" in done.stdout
    assert re.search(r"model: [\d,]+ parameters with 400 tokens, .* about \d{2,} GB", done.stdout)
    refused = penwright("train", *options, "--run", tmp_path / "run")
    assert refused.returncode == 1 and "training needs about" in refused.stderr and not (tmp_path / "run").exists()


def test_too_large_base_advises_adapters(runs: Path, corpora: Path, monkeypatch) -> None:
    monkeypatch.setattr("penwright.workflows.plan.available_memory", lambda: 0)
    settings = {"data": {"train": [str(corpora / "novel.txt")]}, "training": {"steps": 1, "device": "cpu"}}
    prepared = prepare(settings | {"finetuning": {"base": str(runs / "writer")}})
    assert any("too large" in line and "Train adapters (--lora 8)" in line for line in plan_in_words(prepared))


def test_plan_without_a_forecast_says_so(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    held_out = tmp_path / "held-out.tsv"
    held_out.write_text("a new house\tein neues Haus\n")
    options = ["--validation", held_out, "--task", "translate", "--epochs", 0.2, "--size", "nano"]
    done = penwright("plan", corpora / "pairs.tsv", *options)
    assert done.returncode == 0 and "no forecast" in done.stdout and "through the text about 0.2 times" in done.stdout


def test_plan_recommends_a_pretrained_encoder_beside_the_text(
    penwright: Command, corpora: Path, runs: Path, tmp_path: Path
) -> None:
    recipe = Run.open(runs / "classifier").recipe
    imported = recipe.model_copy(update={"tokenizer": TokenizerSettings(type="imported")})
    for folder, content in (("minilm", write_toml(imported)), ("own", write_toml(recipe)), ("damaged", "task = 3")):
        (tmp_path / "runs" / folder).mkdir(parents=True)
        (tmp_path / "runs" / folder / "recipe.toml").write_text(content, encoding="utf-8")
    found = {}
    for text in ("labels.csv", "pairs.tsv"):
        made = penwright("plan", corpora / text, "--steps", 3, *QUICK, cwd=tmp_path)
        assert made.returncode == 0, made.stderr
        found[text] = [line for line in made.stdout.splitlines() if line.startswith("better start:")]
    assert [("--from runs/minilm" in line) for line in found["labels.csv"]] == [True] and not found["pairs.tsv"]
    (tmp_path / "runs" / "minilm").rename(tmp_path / "minilm")
    options = [corpora / "labels.csv", "--steps", 3, *QUICK]
    assert "better start:" not in penwright("plan", *options, cwd=tmp_path).stdout
    encoder = penwright("train", corpora / "novel.txt", "--task", "encode", "--steps", 1, *QUICK, cwd=tmp_path)
    assert encoder.returncode == 0, encoder.stderr
    assert "--from runs/novel" in penwright("plan", *options, cwd=tmp_path).stdout


def test_plan_obeys_balance_and_groups(penwright: Command, tmp_path: Path) -> None:
    rows = "".join(f"{word} film number {n},{word},author {n // 4}\n" for n in range(60) for word in ("fine", "dull"))
    (tmp_path / "labels.csv").write_text(f"text,label,author\n{rows}", encoding="utf-8")
    options = ["--balance", "--group", "author", "--steps", 3, *QUICK]
    made = penwright("plan", tmp_path / "labels.csv", *options, "--json")
    assert made.returncode == 0, made.stderr
    recipe = json.loads(made.stdout)["recipe"]
    assert recipe["model"]["balanced"] and recipe["data"]["group"] == "author"


@pytest.mark.parametrize(
    ("changes", "are_few", "holds_out"),
    [
        ({}, True, True),
        ({"finetuning": {"contrastive": False}}, True, False),
        ({"training": {"steps": 3}}, False, True),
        ({"data": {"held_out": 0.2}}, True, False),
        ({"data": {"validation": ["own.csv"]}}, True, False),
        ({"tokenizer": {"type": "bpe"}}, False, True),
    ],
)
def test_few_labels_are_not_held_out_for_a_pretrained_encoder(
    corpora: Path, changes: Table, are_few: bool, holds_out: bool
) -> None:
    text = str(corpora / "labels.csv")
    given: Table = {"task": "classify", "data": {"train": [text]}, "tokenizer": {"type": "imported"}}
    given = merge(given, {"finetuning": {"base": "runs/minilm"}}, changes)
    rest: Table = {"model": {"size": "nano"}, "schedule": {"type": "constant"}, "optimizer": {"type": "adamw"}}
    recipe = validate(
        Recipe, merge({"training": {"minutes": 1}} if "training" not in given else {}, rest, given), "here"
    )
    assert has_few_labels(recipe, given, open_labelled([text])) is are_few
    assert bool(share_of_few(recipe, given)) is holds_out


def test_plan_and_train_share_their_options() -> None:
    of_training, of_the_plan = (signature(each.command).parameters for each in (train, plan))
    assert set(of_training) - set(of_the_plan) == {
        *("run", "seed", "ensemble", "from_", "keep_old", "trim_vocabulary", "add_tokens", "lora"),
        *("resume", "processes", "max_restarts", "why", "dry_run", "print_recipe"),
    }
    shared = set(of_the_plan) - {"gpus", "gpu"}
    assert all(of_the_plan[name].annotation == of_training[name].annotation for name in shared)
