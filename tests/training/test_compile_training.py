import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from penwright.config import Recipe, Table, merge, validate
from penwright.errors import PenwrightError
from penwright.native import toolchain
from penwright.run.folder import Run
from penwright.training.auto.machine import PAYS_FROM, Machine
from penwright.training.trainer import Trainer
from penwright.workflows import compile_training
from penwright.workflows import make_trainer as workflow
from penwright.workflows.compile_training import compiling_beside
from penwright.workflows.make_trainer import compiles_later

CPU = Machine(torch.device("cpu"), torch.float32, ())
MakeTrainer = Callable[..., Trainer]
MINUTES: Table = {"steps": None, "minutes": 60, "compile": "on"}
WRITER: Table = {
    "task": "generate",
    "data": {"train": ["novel.txt"]},
    "model": {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32},
    "training": {"minutes": 60},
}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Train with two threads, of which one is left to the other process."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run with a recipe, and an empty cache for compiled code."""
    monkeypatch.setenv(toolchain.INDUCTOR_CACHE_VARIABLE, str(tmp_path))
    run = Run.create(tmp_path / "run")
    run.save_recipe(validate(Recipe, WRITER, "test"))
    return run


class Process(subprocess.Popen[bytes]):
    """A process that ends while the third step is taken."""

    code = 0

    def __init__(self, *arguments: object, **variables: str) -> None:
        self.polls = chain(repeat(None, 2), repeat(self.code))

    def poll(self) -> int | None:
        """Return the exit code if the process has ended."""
        return next(self.polls)


class FailingProcess(Process):
    """A process that fails while the third step is taken."""

    code = 1


class EndlessProcess(Process):
    """A process that waits forever."""

    def poll(self) -> int | None:
        """Return None."""
        return None


@pytest.fixture
def waiting(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> tuple[Trainer, Mock, Mock]:
    """A trainer that awaits compilation, and stand-ins for its compilation and for killing the other process."""
    monkeypatch.setattr("penwright.training.trainer.compile_blocks", Mock())
    trainer = make_trainer(training=MINUTES)
    trainer.awaits_compilation = True
    compile_steps = Mock(side_effect=lambda: setattr(trainer, "awaits_compilation", False))
    trainer.compile = compile_steps  # type: ignore[method-assign]  # compilation takes half a minute
    trainer.budget.measure_again = Mock()  # type: ignore[method-assign]
    monkeypatch.setattr(compile_training, "kill_group", killed := Mock())
    return trainer, compile_steps, killed


def take_five_steps(run: Run, trainer: Trainer, seconds: float = 0.0) -> list[tuple[int, bool]]:
    """Take steps after these seconds; return the threads after each step, and whether the pace is measured again."""
    states: list[tuple[int, bool]] = []
    with compiling_beside(run, trainer, []) as switch:
        for report in trainer.steps():
            if seconds:
                trainer.state.seconds = seconds
            switch(trainer)
            states.append((torch.get_num_threads(), trainer.budget.measure_again.called))  # type: ignore[attr-defined]
            if report.step == 5:
                break
    assert torch.get_num_threads() == 2
    return states


@pytest.mark.parametrize("process", [Process, FailingProcess])
def test_steps_are_compiled_once_another_process_has_ended(
    process: type[Process], run: Run, waiting: tuple[Trainer, Mock, Mock], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, compile_steps, killed = waiting
    monkeypatch.setattr(compile_training, "start_process", process)
    assert take_five_steps(run, trainer) == [(1, False), (1, False), (2, False), (2, True), (2, True)]
    assert compile_steps.call_count == 1 and killed.called


@pytest.mark.parametrize(("process", "left"), [(Process, 30.0), (FailingProcess, PAYS_FROM - 30)])
def test_steps_are_not_compiled_if_too_little_time_is_left(
    process: type[Process],
    left: float,
    run: Run,
    waiting: tuple[Trainer, Mock, Mock],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, compile_steps, _ = waiting
    monkeypatch.setattr(compile_training, "start_process", process)
    states = take_five_steps(run, trainer, seconds=3600 - left)
    assert [threads for threads, _ in states] == [1, 1, 2, 2, 2]
    assert not compile_steps.called and not trainer.awaits_compilation


def test_process_that_takes_too_long_is_killed(
    run: Run, waiting: tuple[Trainer, Mock, Mock], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, compile_steps, killed = waiting
    monkeypatch.setattr(compile_training, "start_process", EndlessProcess)
    monkeypatch.setattr(compile_training, "MOST_WAITING", 0.0)
    assert [threads for threads, _ in take_five_steps(run, trainer)] == [2] * 5
    assert killed.called and not compile_steps.called


@pytest.mark.parametrize("reason", ["compiled before", "resumed near its end", "no process can be started"])
def test_steps_are_compiled_at_once(
    reason: str, run: Run, waiting: tuple[Trainer, Mock, Mock], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, compile_steps, _ = waiting
    refused = Mock(side_effect=OSError("no more processes"))
    monkeypatch.setattr(compile_training, "start_process", refused)
    if reason == "compiled before":
        compile_training._marker(run.recipe).touch()
    elif reason == "resumed near its end":
        trainer.state.seconds = 3600 - PAYS_FROM / 2
    with compiling_beside(run, trainer, []):
        assert compile_steps.called and torch.get_num_threads() == 2
    assert refused.called == (reason == "no process can be started")


def test_other_process_is_killed_if_training_ends_first(
    run: Run, waiting: tuple[Trainer, Mock, Mock], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start_sleeping(module: str, arguments: Sequence[str], **variables: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True))
        return started[0]

    monkeypatch.undo()
    monkeypatch.setenv(toolchain.INDUCTOR_CACHE_VARIABLE, str(run.folder))
    monkeypatch.setattr(compile_training, "start_process", start_sleeping)
    trainer, compile_steps, _ = waiting
    with pytest.raises(PenwrightError), compiling_beside(run, trainer, []) as switch:
        switch(trainer)
        raise PenwrightError("the disk is full")
    assert started[0].returncode == -9 and not compile_steps.called
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("settings", "threads", "free", "is_later"),
    [
        ({}, 2, 1e12, True),
        ({}, 1, 1e12, False),
        ({}, 2, 2e9, False),
        ({"training": {"minutes": None, "steps": 100}}, 2, 1e12, False),
        ({"lora": {"rank": 4}, "finetuning": {"base": "runs/base"}}, 2, 1e12, False),
        ({"data": {"train": ["-"]}}, 2, 1e12, False),
    ],
    ids=["two threads", "one thread", "little memory", "a number of steps", "adapters", "standard input"],
)
def test_another_process_compiles_for_budgets_in_minutes_with_processors_and_memory(
    settings: Table, threads: int, free: float, is_later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "is_possible", lambda: True)
    monkeypatch.setattr(workflow, "available_memory", lambda: free)
    recipe = validate(Recipe, merge(WRITER, settings), "test")
    torch.set_num_threads(threads)
    assert compiles_later(recipe, CPU, vocab_size=9, n_labels=1) == is_later
