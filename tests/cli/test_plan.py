import json
from pathlib import Path

from .conftest import Command


def test_a_plan_says_what_may_be_expected_and_trains_nothing(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    done = penwright("plan", corpora / "novel.txt", "--minutes", 1)
    assert done.returncode == 0, done.stderr
    assert "model.size = " in done.stdout and "bits a byte" in done.stdout and "more time" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_plan_for_programs(penwright: Command, corpora: Path) -> None:
    options = ["--minutes", 1, "--set", "model.size=nano", "--json"]  # whose pace is soon measured
    plan = json.loads(penwright("plan", corpora / "novel.txt", *options).stdout)
    assert plan["epochs"] > 0 and 0 < plan["outlook"]["low"] < plan["outlook"]["high"]


def test_where_nothing_can_be_expected_a_plan_says_so(penwright: Command, corpora: Path) -> None:
    done = penwright("plan", corpora / "pairs.tsv", "--minutes", 1, "--set", "model.size=nano")
    assert done.returncode == 0 and "cannot be told" in done.stdout
