"""Two processes beside one: the same learning, whatever is done to them. Each starts torch anew, so few do much."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

import pytest
import torch

from penwright.data.batches import TextBatch
from penwright.run.folder import Run
from penwright.training.distributed import ALONE, Ranks

SETTINGS = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.n_heads": 2,
    "model.context_length": 32,
    "training.batch_tokens": 160,  # five windows: the two processes have three and two of them
    "training.accumulate": 2,
    "training.threads": 1,
    "training.device": "cpu",
    "training.precision": "float32",
    "decoding.max_new_tokens": 8,
}
PENWRIGHT = (sys.executable, "-m", "penwright", "train")
Environment = dict[str, str]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "rhyme.txt"
    path.write_text("".join(f"{n} green bottles hanging on the wall\n" for n in range(200)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return {**os.environ, "PENWRIGHT_CACHE": str(tmp_path_factory.mktemp("cache"))}


def train(environment: Environment, *options: object) -> str:
    """What it said."""
    done = subprocess.run(
        [*PENWRIGHT, *map(str, options)], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def settings(**more: object) -> list[str]:
    every = {**SETTINGS, **{name.replace("__", "."): value for name, value in more.items()}}
    return [option for name, value in every.items() for option in ("--set", f"{name}={value}")]


def furthest(one: Path, other: Path) -> float:
    ours, theirs = (Run.open(run).newest()[0].weights() for run in (one, other))
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def begun(environment: Environment, run: Path, options: Sequence[object]) -> "subprocess.Popen[str]":
    """A process that has looked at the held-out text once."""
    words = [*PENWRIGHT, "--run", str(run), *map(str, options)]
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    begin = monotonic()
    while not (run / "metrics.jsonl").exists() and monotonic() - begin < 120:
        sleep(0.05)
    return process


def test_two_processes_learn_what_one_does(text: Path, environment: Environment, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    options = [text, "--steps", 8, *settings(model__dropout=0)]
    train(environment, "--run", alone, *options)
    said = train(environment, "--run", together, *options, "--processes", 2)
    assert "2 processes" in said
    assert said.count("Done.") == 1, "only the first one speaks"
    assert furthest(alone, together) < 1e-5


def test_two_processes_that_are_interrupted_go_on_bit_for_bit(
    text: Path, environment: Environment, tmp_path: Path
) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    options = [text, "--steps", 300, *settings(model__dropout=0.1, training__evaluate_every=100), "--processes", "2"]
    train(environment, "--run", unbroken, *options)
    process = begun(environment, broken, options)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130, said
    assert "everything is saved" in said
    assert Run.open(broken).last_step() < 300
    assert Run.open(broken).newest()[0].state()["processes"] == 2
    assert "bit for bit" not in train(environment, "--resume", broken, "--processes", 2)
    assert furthest(unbroken, broken) == 0
    assert "trained with 2 processes; with 1" in train(environment, "--resume", broken, "--steps", 2)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux tells there which processes another began")
@pytest.mark.parametrize(("which", "told"), [(0, "ended by SIGKILL"), (1, "ended")], ids=["first", "other"])
def test_a_process_that_is_killed_ends_all_of_them(
    which: int, told: str, text: Path, environment: Environment, tmp_path: Path
) -> None:
    process = begun(environment, tmp_path / "run", [text, "--steps", 100_000, *settings(), "--processes", "2"])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    os.kill(int(children[which]), signal.SIGKILL)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert told in said
    assert "Traceback" not in said
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_what_fails_in_several_processes_is_told_once(environment: Environment, tmp_path: Path) -> None:
    words = [*PENWRIGHT, str(tmp_path / "nowhere.txt"), "--processes", "2"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "there is no file" in done.stderr
    assert "Traceback" not in done.stderr


def test_rows_are_shared_and_none_is_left_out() -> None:
    tokens = torch.arange(20).reshape(5, 4)
    batch = TextBatch(20, tokens, tokens + 1, None)
    shares = [Ranks(rank, 3).share(batch) for rank in range(3)]
    rows = torch.cat([share.tokens for share in shares if share is not None])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, tokens.tolist()))
    assert [share.n_rows for share in shares if share is not None] == [2, 2, 1]
    assert ALONE.share(batch) is batch


def test_a_process_for_which_no_row_is_left_has_none() -> None:
    tokens = torch.arange(8).reshape(2, 4)
    assert Ranks(2, 3).share(TextBatch(8, tokens, tokens, None)) is None
