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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penwright.cli.plan_report import warn_of_short_members
from penwright.config import Table
from penwright.errors import PenwrightError
from penwright.run.folder import Run
from penwright.training.distributed.launcher import STOP_SIGNALS
from penwright.workflows.plan import prepare

from .conftest import QUICK, Command


def test_run_folder_contains_all_files_of_the_model(runs: Path) -> None:
    for name in ("writer", "translator", "classifier"):
        kept = {path.name for path in (runs / name).iterdir()}
        assert {"recipe.toml", "tokenizer.json", "corpus.json", "metrics.jsonl", "samples.jsonl", "checkpoints"} <= kept


def test_plan_gives_a_reason_for_every_choice(penwright: Command, corpora: Path) -> None:
    done = penwright("train", corpora / "novel.txt", "--dry-run", "--json", "--minutes", 5)
    plan = json.loads(done.stdout)
    assert done.returncode == 0 and all(choice["reason"] for choice in plan["choices"])
    assert plan["recipe"]["task"] == "generate" and plan["size"]["parameters"] > 0


def test_choices_are_printed_with_reasons_only_with_why(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    options = ["train", corpora / "novel.txt", "--steps", 2, *QUICK]
    brief, long = (penwright(*options, *more, "--run", tmp_path / str(len(more))) for more in ([], ["--why"]))
    assert brief.returncode == 0 and long.returncode == 0, brief.stderr + long.stderr
    for name in ("task", "first example", "tokenizer", "model", "training", "run"):
        assert len(re.findall(f"^{name}: ", brief.stderr, re.MULTILINE)) == 1, name
    assert "model.qk_norm = True (" in long.stderr and " = True (" not in brief.stderr


def test_dry_run_writes_nothing(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    assert penwright("train", corpora / "novel.txt", "--dry-run", "--steps", 5, cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_dry_run_prints_the_plan_without_the_recipe(penwright: Command, corpora: Path) -> None:
    done = penwright("train", corpora / "pairs.tsv", "--dry-run", "--steps", 5)
    assert "task: translate (" in done.stdout and "\nrun: runs/pairs\n" in done.stdout
    assert "[tokenizer]" not in done.stdout


def test_printed_recipe_round_trips_and_trains_nothing(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "plan.toml"
    arguments = ["train", corpora / "pairs.tsv", "--print-recipe", "--steps", 5]
    recipe.write_text(penwright(*arguments, cwd=tmp_path).stdout, encoding="utf-8")
    assert list(tmp_path.iterdir()) == [recipe]
    again = penwright("train", "--recipe", recipe, "--dry-run", "--print-recipe")
    assert again.returncode == 0 and again.stdout == recipe.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", ["--dry-run", "--print-recipe", "--why"])
def test_dry_run_of_a_resumed_run_is_refused(penwright: Command, runs: Path, option: str) -> None:
    before = (runs / "writer" / "metrics.jsonl").read_bytes()
    done = penwright("train", "--resume", runs / "writer", option, "--steps", 5)
    assert done.returncode == 2 and "penwright config RUN" in done.stderr
    assert (runs / "writer" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("data", "task"), [("novel.txt", "generate"), ("pairs.tsv", "translate"), ("labels.csv", "classify")]
)
def test_task_is_inferred_from_the_data(penwright: Command, corpora: Path, data: str, task: str) -> None:
    plan = json.loads(penwright("train", corpora / data, "--dry-run", "--json", "--steps", 5).stdout)
    assert plan["recipe"]["task"] == task


# Runs each command line of standard input in a fork, which needs no time to import torch. For each, prints the process
# id and then the exit code.
FORKS = """
import json, os, sys
import penwright.cli.main as cli, penwright.training.progress, penwright.workflows.train, penwright.workflows.resume
for line in sys.stdin:
    arguments, errors, niceness = json.loads(line)
    if (child := os.fork()) == 0:
        os.nice(niceness)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
        sys.argv = ["penwright", *arguments]
        cli.main()
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
TrainAndStop = Callable[[Path, signal.Signals, Sequence[object]], tuple[int, str]]


class Forks:
    """A process that has imported torch, and runs command lines one after the other in forks of itself."""

    def __init__(self, process: subprocess.Popen[str], errors: Path):
        assert process.stdin is not None and process.stdout is not None
        self._input, self._output, self.errors = process.stdin, process.stdout, errors

    def start(self, *arguments: object, niceness: int = 0) -> int:
        """Start a command, and return its process id."""
        self.errors.unlink(missing_ok=True)
        self._input.write(f"{json.dumps([[str(each) for each in arguments], str(self.errors), niceness])}\n")
        self._input.flush()
        return int(self._output.readline())

    def wait(self) -> tuple[int, str]:
        """Return the exit code and the standard error of the command."""
        return int(self._output.readline()), self.errors.read_text("utf-8")


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    compiled = str(Path(tempfile.gettempdir()) / "penwright-tests-compiled")  # later runs of the tests use it again
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": compiled}
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield Forks(process, tmp_path_factory.mktemp("forked") / "stderr")


@pytest.fixture(scope="module")
def train_and_stop(forks: Forks) -> TrainAndStop:
    """A function that trains in another process until step 20 is saved, and sends it a signal.

    It returns the exit code and the standard error.
    """

    def train(run: Path, number: signal.Signals, arguments: Sequence[object]) -> tuple[int, str]:
        # On a busy machine, the test must see a checkpoint before training ends.
        process = forks.start("train", "--run", run, *arguments, niceness=10)
        deadline = time.monotonic() + 120
        while not run.is_dir() or not any(checkpoint.step >= 20 for checkpoint in Run(run).checkpoints.all()):
            assert time.monotonic() < deadline, f"no checkpoint: {forks.errors.read_text('utf-8')}"
            time.sleep(0.02)
        os.kill(process, number)
        return forks.wait()

    return train


def weights_of(folder: Path) -> bytes:
    return (Run(folder).checkpoints.all()[-1].folder / "model.safetensors").read_bytes()


STOPPABLE = [*QUICK, "--steps", "120", "--set", "training.evaluate_every=20", "--set", "model.dropout=0.2"]
STOPPABLE += ["--set", "decoding.max_new_tokens=8"]


@pytest.fixture(scope="module")
def uninterrupted(penwright: Command, corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not interrupted."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    assert penwright("train", corpora / "novel.txt", "--run", folder, *STOPPABLE).returncode == 0
    return folder


@pytest.mark.parametrize("number", [signal.SIGKILL, *STOP_SIGNALS], ids=lambda number: number.name)
def test_stopped_run_resumes_to_identical_weights(
    penwright: Command,
    train_and_stop: TrainAndStop,
    corpora: Path,
    uninterrupted: Path,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    interrupted = tmp_path / "broken"
    code, stderr = train_and_stop(interrupted, number, [corpora / "novel.txt", *STOPPABLE])
    assert code == (-number if number == signal.SIGKILL else 130)
    assert number == signal.SIGKILL or f"--resume {interrupted}" in stderr
    assert Run(interrupted).checkpoints.all()[-1].step < 120
    if number in (signal.SIGINT, signal.SIGHUP):  # the same handler as of SIGTERM
        return
    resumed = penwright("train", "--resume", interrupted)
    assert resumed.returncode == 0, resumed.stderr
    assert weights_of(interrupted) == weights_of(uninterrupted)
    steps = [record["step"] for record in Run(interrupted).records("metrics.jsonl")]
    assert steps == [20, 40, 60, 80, 100, 120]


def test_killed_lora_run_resumes_to_identical_weights(
    penwright: Command, train_and_stop: TrainAndStop, corpora: Path, runs: Path, tmp_path: Path
) -> None:
    kept = ["--set", "training.threads=1", "--set", "training.device=cpu", "--set", "training.batch_tokens=128"]
    options = [*kept, "--lora", 2, "--from", runs / "writer", "--steps", 120, "--set", "training.evaluate_every=20"]
    options += ["--set", "model.dropout=0.2", "--set", "decoding.max_new_tokens=8"]
    whole, interrupted = tmp_path / "whole", tmp_path / "broken"
    assert penwright("train", corpora / "novel.txt", "--run", whole, *options).returncode == 0
    train_and_stop(interrupted, signal.SIGKILL, [corpora / "novel.txt", *options])
    assert Run(interrupted).checkpoints.all()[-1].step < 120
    resumed = penwright("train", "--resume", interrupted)
    assert resumed.returncode == 0, resumed.stderr
    assert weights_of(interrupted) == weights_of(whole)
    assert all(".lora_" in name for name in Run(interrupted).checkpoints.all()[-1].weights())


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.timeout(600)  # compiling with a cold cache takes a minute on two idle cores
def test_compiled_run_resumes_to_identical_weights(
    penwright: Command, forks: Forks, corpora: Path, tmp_path: Path
) -> None:
    """Train in forks of another process, since the compiler cannot trace the shape checks of this one."""
    options = [*QUICK, "--steps", "8", "--set", "training.evaluate_every=4", "--set", "model.dropout=0.2"]
    plain, uninterrupted, interrupted = (tmp_path / name for name in ("plain", "unbroken", "broken"))
    penwright("train", corpora / "novel.txt", "--run", plain, *options)
    compiled = [*options, "--set", "training.compile=on"]
    forks.start("train", corpora / "novel.txt", "--run", uninterrupted, *compiled)
    code, stderr = forks.wait()
    assert code == 0, stderr
    shutil.copytree(uninterrupted, interrupted)
    shutil.rmtree(Run(interrupted).checkpoints.all()[-1].folder)
    forks.start("train", "--resume", interrupted)
    code, stderr = forks.wait()
    assert code == 0, stderr
    assert weights_of(interrupted) == weights_of(uninterrupted)
    ends = [Run(run).records("metrics.jsonl")[-1]["nats per token"] for run in (plain, uninterrupted)]
    assert ends[0] == pytest.approx(ends[1], rel=0.05)


def test_run_killed_before_its_first_checkpoint_restarts(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    uninterrupted, interrupted = tmp_path / "unbroken", tmp_path / "broken"
    penwright("train", corpora / "novel.txt", "--run", uninterrupted, "--steps", 8, *QUICK)
    shutil.copytree(uninterrupted, interrupted)
    shutil.rmtree(interrupted / "checkpoints")
    done = penwright("train", "--resume", interrupted)
    assert done.returncode == 0, done.stderr
    assert weights_of(interrupted) == weights_of(uninterrupted)


def test_resuming_a_finished_run_is_refused_with_advice(penwright: Command, runs: Path) -> None:
    done = penwright("train", "--resume", runs / "writer")
    assert done.returncode == 1
    assert "already at step 30 of 30" in done.stderr and "--minutes" in done.stderr


def test_further_budget_resumes_a_finished_run(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    penwright("train", corpora / "novel.txt", "--run", run, "--steps", 10, *QUICK)
    done = penwright("train", "--resume", run, "--steps", 5)
    assert done.returncode == 0, done.stderr
    assert Run(run).checkpoints.all()[-1].step == 15


def test_resuming_with_changed_data_is_refused(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    novel = tmp_path / "novel.txt"
    novel.write_bytes((corpora / "novel.txt").read_bytes())
    penwright("train", novel, "--run", tmp_path / "run", "--steps", 5, *QUICK)
    novel.write_text(novel.read_text(encoding="utf-8") + "Another ending.\n", encoding="utf-8")
    done = penwright("train", "--resume", tmp_path / "run", "--steps", 5)
    assert done.returncode == 1 and "novel.txt changed" in done.stderr


def test_time_budget_ends_with_the_cooldown_complete(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    done = penwright("train", corpora / "novel.txt", "--run", tmp_path / "run", "--minutes", 0.03, *QUICK)
    assert done.returncode == 0, done.stderr
    state = Run(tmp_path / "run").checkpoints.all()[-1].state()
    assert state["step"] == state["total_steps"]


def test_training_ends_with_a_command_to_try(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    done = penwright("train", corpora / "pairs.tsv", "--run", tmp_path / "run", "--steps", 2, *QUICK)
    line = next(line for line in done.stderr.splitlines() if line.strip().startswith("penwright translate"))
    *_, folder, example = shlex.split(line)
    assert folder == str(tmp_path / "run")
    assert example in {record["prompt"] for record in Run(tmp_path / "run").records("samples.jsonl")}


def test_existing_run_folder_is_not_overwritten(penwright: Command, corpora: Path, runs: Path) -> None:
    done = penwright("train", corpora / "novel.txt", "--run", runs / "writer", "--steps", 5)
    assert done.returncode == 1 and done.stderr.startswith(
        f"penwright: {runs / 'writer'} is not empty"
    )  # before anything else is printed


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
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
        (["--resume", "a-run", "--run", "another"], 2, "leave out --run"),
        (["NOVEL", "--task", "generate", "--minutes", "0"], 2, "minutes: must be greater than 0"),
        (["NOVEL", "--recipe", "no-such.toml"], 1, "no-such.toml"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused_in_one_line(
    penwright: Command, corpora: Path, arguments: list[str], code: int, message: str
) -> None:
    done = penwright("train", *[corpora / "novel.txt" if a == "NOVEL" else a for a in arguments])
    assert done.returncode == code, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


def test_unknown_recipe_key_suggests_the_nearest_key(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[schedule]\ntype = "cosine"\nwarmup = 5\n', encoding="utf-8")
    done = penwright("train", corpora / "novel.txt", "--recipe", recipe)
    assert done.returncode == 2
    assert f"{recipe}: [schedule] has no key 'warmup'; did you mean 'warmup_steps'?" in done.stderr


@pytest.mark.parametrize("content", [b"", b"\n\n  \n", b"x", bytes(range(256)) * 20])
def test_unusable_text_file_is_refused_by_name(penwright: Command, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.txt").write_bytes(content)
    done = penwright("train", tmp_path / "odd.txt", "--run", tmp_path / "run", "--steps", 2, *QUICK)
    assert done.returncode == 1 and "odd.txt" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_corpus_smaller_than_the_context_trains(penwright: Command, tmp_path: Path) -> None:
    haikus = "An old silent pond\nA frog jumps into the pond\nSplash! Silence again.\nThe light of a candle\n"
    (tmp_path / "haiku.txt").write_text(f"{haikus}Is transferred to another\nCandle. Spring twilight.\n")
    run = tmp_path / "run"
    smaller = ("model.d_model=16", "decoding.max_new_tokens=40", "training.batch_tokens=256", "training.threads=1")
    options = [option for setting in smaller for option in ("--set", setting)]  # the default context length
    done = penwright("train", tmp_path / "haiku.txt", "--run", run, "--steps", 5, *options)
    assert done.returncode == 0, done.stderr
    assert penwright("generate", run, "An").returncode == 0


def test_ensemble_is_distilled_into_one_model(penwright: Command, corpora: Path, tmp_path: Path) -> None:
    options = ["train", corpora / "novel.txt", "--ensemble", 2, "--steps", 4, "--run", tmp_path / "all", *QUICK]
    assert penwright(*options, "--dry-run").returncode == 0 and not list(tmp_path.iterdir())
    done = penwright(*options)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\ntraining: 4 steps") == 3  # every plan is printed
    assert penwright("generate", tmp_path / "all", "It", "--max-new-tokens", 5).returncode == 0
    again = penwright(*options)
    assert again.returncode == 0 and "loss" not in again.stderr, again.stderr
    assert penwright("train", "--resume", tmp_path / "all", "--ensemble", 2).returncode == 2


def test_restarted_ensemble_continues_in_its_folder(
    penwright: Command, corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(settings: Table, n_members: int, folder: Path, watch: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)  # as when the last model is being trained
        raise PenwrightError(f"training in {folder}.")

    monkeypatch.setattr("penwright.workflows.ensemble.train_ensemble", fail)
    monkeypatch.setenv("PENWRIGHT_LAUNCH", str(tmp_path))
    for restarts, name in ((0, "novel"), (1, "novel"), (0, "novel-2")):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
        failed = penwright("train", corpora / "novel.txt", "--ensemble", 2, "--steps", 4, *QUICK, cwd=tmp_path)
        assert f"training in {Path('runs') / name}." in failed.stderr


def test_too_short_ensemble_members_give_a_warning_before_training(
    penwright: Command, corpora: Path, tmp_path: Path
) -> None:
    arguments = ["train", corpora / "pairs.tsv", "--ensemble", 3, "--dry-run", *QUICK]
    short = penwright(*arguments, "--minutes", 0.03)
    assert short.returncode == 0
    (minutes,) = re.findall(r"each of the 3 members gets 0.005 minutes, .* --minutes (\S+) or more", short.stderr)
    assert float(minutes) > 0.03 and short.stdout.count("too short: ") == 1
    assert "members" not in penwright(*arguments, "--minutes", 1e6).stderr + penwright(*arguments, "--steps", 9).stderr


def test_ensemble_members_with_too_few_epochs_give_a_warning(corpora: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"data": {"train": [str(corpora / "novel.txt")]}, "training": {"minutes": 10.0}, "model": {"d_model": 16}}
    prepared = prepare(given)
    for epochs, is_warned in ((4.0, True), (9.0, False)):
        member = replace(prepared, plan=prepared.plan._replace(epochs=epochs, minutes_wanted=None))
        warn_of_short_members(member, 3)
        stderr = capsys.readouterr().err
        assert ("about 4 times" in stderr and "about --minutes 120" in stderr) == is_warned, stderr
