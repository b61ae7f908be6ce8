import json
from inspect import signature
from pathlib import Path

from penwright.cli import plan, train

from .conftest import Command


def test_plan_shows_a_forecast_and_trains_nothing(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    done = penwright("plan", corpora / "novel.txt", "--minutes", 1)
    assert done.returncode == 0, done.stderr
    assert "model.size = " in done.stdout and "bits per byte" in done.stdout and "more time" in done.stdout
    assert not list(tmp_path.iterdir())


def test_plan_as_json_has_a_forecast(penwright: Command, corpora: Path) -> None:
    options = ["--minutes", 1, "--set", "model.size=nano", "--json"]  # quick to time
    plan = json.loads(penwright("plan", corpora / "novel.txt", *options).stdout)
    assert plan["epochs"] > 0 and 0 < plan["outlook"]["low"] < plan["outlook"]["high"]


def test_too_large_model_is_planned_but_not_trained(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    options = [corpora / "novel.txt", "--size", "llama3-8b", "--minutes", 60]
    done = penwright("plan", *options)
    assert done.returncode == 0 and "too large: the model does not fit in the memory of this machine" in done.stdout
    refused = penwright("train", *options, "--run", tmp_path / "run")
    assert refused.returncode == 1 and "training needs about" in refused.stderr and not (tmp_path / "run").exists()


def test_plan_without_a_forecast_says_so(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    held_out = tmp_path / "held-out.tsv"
    held_out.write_text("a new house\tein neues Haus\n")
    options = ["--validation", held_out, "--task", "translate", "--epochs", 2, "--size", "nano"]
    done = penwright("plan", corpora / "pairs.tsv", *options)
    assert done.returncode == 0 and "no forecast" in done.stdout and "reads the text about 2 times" in done.stdout


def test_plan_and_train_share_their_options() -> None:
    of_training, of_the_plan = (signature(each.command).parameters for each in (train, plan))
    assert set(of_training) - set(of_the_plan) == {
        *("run", "seed", "balance", "ensemble", "from_", "keep_old", "group", "trim_vocabulary", "add_tokens", "lora"),
        *("resume", "processes", "max_restarts", "why", "dry_run", "print_recipe"),
    }
    shared = set(of_the_plan) - {"gpus", "gpu"}
    assert all(of_the_plan[name].annotation == of_training[name].annotation for name in shared)
