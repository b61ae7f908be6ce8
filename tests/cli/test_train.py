import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from penwright.cli.train import _warn_of_short_members
from penwright.run.folder import Run
from penwright.training.signals import STOP_SIGNALS
from penwright.workflows import api

from .conftest import QUICK, Command


def test_a_run_folder_holds_all_that_the_model_needs(runs: Path) -> None:
    for name in ("writer", "translator", "classifier"):
        kept = {path.name for path in (runs / name).iterdir()}
        assert {"recipe.toml", "tokenizer.json", "corpus.json", "metrics.jsonl", "samples.jsonl", "checkpoints"} <= kept


def test_the_plan_gives_a_reason_for_every_choice(penwright: Command, corpora: Path) -> None:
    done = penwright("train", corpora / "novel.txt", "--dry-run", "--json", "--minutes", 5)
    plan = json.loads(done.stdout)
    assert done.returncode == 0 and all(choice["reason"] for choice in plan["choices"])
    assert plan["recipe"]["task"] == "generate" and plan["size"]["parameters"] > 0


def test_choices_are_told_briefly_and_their_reasons_if_asked(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    options = ["train", corpora / "novel.txt", "--steps", 2, *QUICK]
    brief, long = (penwright(*options, *more, "--run", tmp_path / str(len(more))) for more in ([], ["--why"]))
    assert brief.returncode == 0 and long.returncode == 0, brief.stderr + long.stderr
    for name in ("task", "first example", "tokenizer", "model", "training", "run"):
        assert len(re.findall(f"^{name}: ", brief.stderr, re.MULTILINE)) == 1, name
    assert "model.qk_norm = True (" in long.stderr and " = True (" not in brief.stderr


def test_a_dry_run_writes_nothing(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    assert penwright("train", corpora / "novel.txt", "--dry-run", "--steps", 5, cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_the_plan_and_not_the_recipe(penwright: Command, corpora: Path) -> None:
    done = penwright("train", corpora / "pairs.tsv", "--dry-run", "--steps", 5)
    assert "task: translate (" in done.stdout and "\nrun: runs/pairs\n" in done.stdout
    assert "[tokenizer]" not in done.stdout


def test_a_printed_recipe_is_a_recipe_and_trains_nothing(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "plan.toml"
    asked = ["train", corpora / "pairs.tsv", "--print-recipe", "--steps", 5]
    recipe.write_text(penwright(*asked, cwd=tmp_path).stdout, encoding="utf-8")
    assert list(tmp_path.iterdir()) == [recipe]
    again = penwright("train", "--recipe", recipe, "--dry-run", "--print-recipe")
    assert again.returncode == 0 and again.stdout == recipe.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", ["--dry-run", "--print-recipe", "--why"])
def test_resuming_has_no_dry_run(penwright: Command, runs: Path, option: str) -> None:
    before = (runs / "writer" / "metrics.jsonl").read_bytes()
    done = penwright("train", "--resume", runs / "writer", option, "--steps", 5)
    assert done.returncode == 2 and "penwright config RUN" in done.stderr
    assert (runs / "writer" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("data", "task"), [("novel.txt", "generate"), ("pairs.tsv", "translate"), ("labels.csv", "classify")]
)
def test_the_task_is_found_out_from_the_data(penwright: Command, corpora: Path, data: str, task: str) -> None:
    plan = json.loads(penwright("train", corpora / data, "--dry-run", "--json", "--steps", 5).stdout)
    assert plan["recipe"]["task"] == task


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[str], step: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if folder.is_dir() and any(checkpoint.step >= step for checkpoint in Run(folder).checkpoints()):
            return
        time.sleep(0.02)
    pytest.fail(f"no checkpoint: {process.communicate()[1]}")


def weights_of(folder: Path) -> bytes:
    return (Run(folder).checkpoints()[-1].folder / "model.safetensors").read_bytes()


TO_BE_STOPPED = [*QUICK, "--steps", "120", "--set", "training.evaluate_every=20", "--set", "model.dropout=0.2"]


@pytest.fixture(scope="module")
def unbroken(penwright: Command, corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing stopped."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    assert penwright("train", corpora / "novel.txt", "--run", folder, *TO_BE_STOPPED).returncode == 0
    return folder


@pytest.mark.parametrize("number", [signal.SIGKILL, *STOP_SIGNALS], ids=lambda number: number.name)
def test_a_stopped_run_resumes_to_the_very_same_weights(
    penwright: Command, corpora: Path, unbroken: Path, tmp_path: Path, number: signal.Signals
) -> None:
    broken = tmp_path / "broken"
    training = ["train", str(corpora / "novel.txt"), "--run", str(broken), *TO_BE_STOPPED]
    command = [sys.executable, "-m", "penwright", *training]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for_checkpoint(broken, process, 20)
    os.kill(process.pid, number)
    said = process.communicate()[1]
    if number != signal.SIGKILL:
        assert process.returncode == 130 and f"--resume {broken}" in said
    assert Run(broken).checkpoints()[-1].step < 120
    resumed = penwright("train", "--resume", broken)
    assert resumed.returncode == 0, resumed.stderr
    assert weights_of(broken) == weights_of(unbroken)
    steps = [record["step"] for record in Run(broken).records("metrics.jsonl")]
    assert steps == [20, 40, 60, 80, 100, 120]


def test_a_lora_run_killed_at_any_moment_resumes_to_the_very_same_weights(
    penwright: Command, corpora: Path, runs: Path, tmp_path: Path
) -> None:
    kept = ["--set", "training.threads=1", "--set", "training.device=cpu", "--set", "training.batch_tokens=128"]
    options = [*kept, "--lora", 2, "--from", runs / "writer", "--steps", 120, "--set", "training.evaluate_every=20"]
    options += ["--set", "model.dropout=0.2", "--set", "decoding.max_new_tokens=20"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert penwright("train", corpora / "novel.txt", "--run", whole, *options).returncode == 0
    command = [sys.executable, "-m", "penwright", "train", corpora / "novel.txt", "--run", broken, *options]
    process = subprocess.Popen([str(each) for each in command], stderr=subprocess.PIPE, text=True)
    wait_for_checkpoint(broken, process, 20)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert Run(broken).checkpoints()[-1].step < 120
    resumed = penwright("train", "--resume", broken)
    assert resumed.returncode == 0, resumed.stderr
    assert weights_of(broken) == weights_of(whole)
    assert all(".lora_" in name for name in Run(broken).checkpoints()[-1].weights())


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.timeout(600)  # a cold compiler takes a minute on two quiet cores
def test_compiled_training_learns_the_same_and_resumes_to_the_very_same_weights(
    penwright: Command, corpora: Path, tmp_path: Path
) -> None:
    """In processes of their own, since the compiler does not see through the shape checks of these tests."""
    options = [*QUICK, "--steps", "8", "--set", "training.evaluate_every=4", "--set", "model.dropout=0.2"]
    plain, unbroken, broken = (tmp_path / name for name in ("plain", "unbroken", "broken"))
    penwright("train", corpora / "novel.txt", "--run", plain, *options)
    command = [sys.executable, "-m", "penwright", "train"]
    compiled = [*options, "--set", "training.compile=on"]
    kept = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / "penwright-tests-compiled")}
    run = partial(subprocess.run, env=kept, check=True)
    run([*command, str(corpora / "novel.txt"), "--run", str(unbroken), *compiled])
    shutil.copytree(unbroken, broken)
    shutil.rmtree(Run(broken).checkpoints()[-1].folder)
    run([*command, "--resume", str(broken)])
    assert weights_of(broken) == weights_of(unbroken)
    ends = [Run(run).records("metrics.jsonl")[-1]["nats per token"] for run in (plain, unbroken)]
    assert ends[0] == pytest.approx(ends[1], rel=0.05)


def test_a_run_killed_before_its_first_checkpoint_begins_again(
    penwright: Command, corpora: Path, tmp_path: Path
) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    penwright("train", corpora / "novel.txt", "--run", unbroken, "--steps", 8, *QUICK)
    shutil.copytree(unbroken, broken)
    shutil.rmtree(broken / "checkpoints")
    done = penwright("train", "--resume", broken)
    assert done.returncode == 0, done.stderr
    assert weights_of(broken) == weights_of(unbroken)


def test_a_finished_run_says_so_and_how_to_go_on(penwright: Command, runs: Path) -> None:
    done = penwright("train", "--resume", runs / "writer")
    assert done.returncode == 1
    assert "already at step 30 of 30" in done.stderr and "--minutes" in done.stderr


def test_a_further_budget_goes_on_with_a_finished_run(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    penwright("train", corpora / "novel.txt", "--run", run, "--steps", 10, *QUICK)
    done = penwright("train", "--resume", run, "--steps", 5)
    assert done.returncode == 0, done.stderr
    assert Run(run).checkpoints()[-1].step == 15


def test_changed_data_is_noticed_at_resuming_and_named(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    novel = tmp_path / "novel.txt"
    novel.write_bytes((corpora / "novel.txt").read_bytes())
    penwright("train", novel, "--run", tmp_path / "run", "--steps", 5, *QUICK)
    novel.write_text(novel.read_text(encoding="utf-8") + "Another ending.\n", encoding="utf-8")
    done = penwright("train", "--resume", tmp_path / "run", "--steps", 5)
    assert done.returncode == 1 and "novel.txt changed" in done.stderr


def test_minutes_end_in_time_with_the_cooldown_done(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    done = penwright("train", corpora / "novel.txt", "--run", tmp_path / "run", "--minutes", 0.05, *QUICK)
    assert done.returncode == 0, done.stderr
    state = Run(tmp_path / "run").checkpoints()[-1].state()
    assert state["step"] == state["total_steps"]


def test_the_end_of_training_says_what_to_try_with_an_example_of_the_text(
    penwright: Command, corpora: Path, tmp_path: Path
) -> None:
    done = penwright("train", corpora / "pairs.tsv", "--run", tmp_path / "run", "--steps", 2, *QUICK)
    line = next(line for line in done.stderr.splitlines() if line.strip().startswith("penwright translate"))
    *_, folder, example = shlex.split(line)
    assert folder == str(tmp_path / "run")
    assert example in {record["prompt"] for record in Run(tmp_path / "run").records("samples.jsonl")}


def test_a_folder_in_use_is_not_overwritten(penwright: Command, corpora: Path, runs: Path) -> None:
    done = penwright("train", corpora / "novel.txt", "--run", runs / "writer", "--steps", 5)
    assert done.returncode == 1 and done.stderr.startswith(f"penwright: {runs / 'writer'} is not empty")  # at once


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["no-such.txt"], 1, "no-such.txt"),
        ([], 2, "nothing to train on"),
        (["NOVEL", "--set", "model.d_modl=8"], 2, "did you mean 'd_model'"),
        (["NOVEL", "--set", "model=8"], 2, "must be a table"),
        (["NOVEL", "--size", "gigantic"], 2, "sizes are"),
        (["NOVEL", "--task", "paint"], 2, "generate, translate, classify"),
        (["NOVEL", "--steps", "5", "--minutes", "5"], 2, "exactly one of"),
        (["NOVEL", "--set", "training.device=cuda:7"], 2, "cannot be used here"),
        (["--resume", "no-such-run"], 1, "there is no run in no-such-run"),
        (["NOVEL", "--recipe", "no-such.toml"], 1, "no-such.toml"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_a_line(
    penwright: Command, corpora: Path, arguments: list[str], code: int, said: str
) -> None:
    done = penwright("train", *[corpora / "novel.txt" if a == "NOVEL" else a for a in arguments])
    assert done.returncode == code, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_typo_in_a_recipe_names_the_nearest_key(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[schedule]\ntype = "cosine"\nwarmup = 5\n', encoding="utf-8")
    done = penwright("train", corpora / "novel.txt", "--recipe", recipe)
    assert done.returncode == 2
    assert "[schedule] has no key 'warmup'; did you mean 'warmup_steps'?" in done.stderr


@pytest.mark.parametrize("content", [b"", b"\n\n  \n", b"x", bytes(range(256)) * 20])
def test_a_text_that_is_none_is_refused_by_name(penwright: Command, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.txt").write_bytes(content)
    done = penwright("train", tmp_path / "odd.txt", "--run", tmp_path / "run", "--steps", 2, *QUICK)
    assert done.returncode == 1 and "odd.txt" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_corpus_smaller_than_the_context_still_trains(penwright: Command, tmp_path: Path) -> None:
    haikus = "An old silent pond\nA frog jumps into the pond\nSplash! Silence again.\nThe light of a candle\n"
    (tmp_path / "haiku.txt").write_text(f"{haikus}Is transferred to another\nCandle. Spring twilight.\n")
    run = tmp_path / "run"
    smaller = ("model.d_model=16", "decoding.max_new_tokens=40", "training.batch_tokens=256", "training.threads=1")
    options = [option for setting in smaller for option in ("--set", setting)]  # but for the context
    done = penwright("train", tmp_path / "haiku.txt", "--run", run, "--steps", 5, *options)
    assert done.returncode == 0, done.stderr
    assert penwright("generate", run, "An").returncode == 0


def test_an_ensemble_becomes_one_model_that_is_used_like_any_other(
    penwright: Command, corpora: Path, tmp_path: Path
) -> None:
    options = ["train", corpora / "novel.txt", "--ensemble", 2, "--steps", 4, "--run", tmp_path / "all", *QUICK]
    assert penwright(*options, "--dry-run").returncode == 0 and not list(tmp_path.iterdir())
    done = penwright(*options)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\ntraining: 4 steps") == 3  # every plan is told
    assert penwright("generate", tmp_path / "all", "It", "--max-new-tokens", 5).returncode == 0
    again = penwright(*options)
    assert again.returncode == 0 and "loss" not in again.stderr, again.stderr
    assert penwright("train", "--resume", tmp_path / "all", "--ensemble", 2).returncode == 2


def test_members_that_are_too_short_to_teach_are_told_before_they_are_trained(
    penwright: Command, corpora: Path, tmp_path: Path
) -> None:
    asked = ["train", corpora / "pairs.tsv", "--ensemble", 3, "--dry-run", *QUICK]
    short = penwright(*asked, "--minutes", 0.03)
    assert short.returncode == 0
    (minutes,) = re.findall(r"each of the 3 members gets 0.005 minutes, .* --minutes (\S+) or more", short.stderr)
    assert float(minutes) > 0.03 and short.stdout.count("too short: ") == 1
    assert "members" not in penwright(*asked, "--minutes", 1e6).stderr + penwright(*asked, "--steps", 9).stderr


def test_members_that_read_too_little_are_told_that_one_model_does_better(
    corpora: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"data": {"train": [str(corpora / "novel.txt")]}, "training": {"minutes": 10.0}, "model": {"d_model": 16}}
    prepared = api.prepare(given)
    for epochs, told in ((4.0, True), (9.0, False)):
        member = replace(prepared, plan=prepared.plan._replace(epochs=epochs, minutes_wanted=None))
        _warn_of_short_members(member, 3)
        said = capsys.readouterr().err
        assert ("about 4 times" in said and "about --minutes 120" in said) == told, said
