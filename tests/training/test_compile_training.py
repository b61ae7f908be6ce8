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
from penwright.run.folder import Run
from penwright.training.auto.machine import Machine
from penwright.training.trainer import Trainer
from penwright.workflows import compile_training
from penwright.workflows import make_trainer as workflow
from penwright.workflows.compile_training import compiling_beside
from penwright.workflows.make_trainer import compiles_later

CPU = Machine(torch.device("cpu"), torch.float32, ())
MakeTrainer = Callable[..., Trainer]
MINUTES: Table = {"steps": None, "minutes": 60}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Train with two threads, of which one is left to the other process."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Process(subprocess.Popen[bytes]):
    """A process that ends while the third step is taken."""

    def __init__(self, *arguments: object) -> None:
        self.polls = chain(repeat(None, 2), repeat(0))

    def poll(self) -> int | None:
        """Return the exit code if the process has ended."""
        return next(self.polls)


def waiting(make_trainer: MakeTrainer) -> tuple[Trainer, Mock]:
    """Return a trainer that awaits compilation, and the stand-in for its compilation."""
    trainer = make_trainer(training=MINUTES)
    trainer.awaits_compilation = True
    compile_steps = Mock(side_effect=lambda: setattr(trainer, "awaits_compilation", False))
    trainer.compile = compile_steps  # type: ignore[method-assign]  # compilation takes half a minute
    return trainer, compile_steps


def test_steps_are_compiled_once_another_process_has_compiled_them(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compile_training, "start_process", Process)
    monkeypatch.setattr(compile_training, "kill_group", killed := Mock())
    trainer, compile_steps = waiting(make_trainer)
    states: list[tuple[int, bool]] = []
    trainer.budget.measure_again = Mock()  # type: ignore[method-assign]
    with compiling_beside(Run(tmp_path), trainer, []) as switch:
        for report in trainer.steps():
            switch(trainer)
            states.append((torch.get_num_threads(), trainer.budget.measure_again.called))
            if report.step == 5:
                break
    assert states == [(1, False), (1, False), (2, False), (2, True), (2, True)]
    assert compile_steps.call_count == 1 and killed.called
    assert trainer.budget.measure_again.call_count == 1


def test_other_process_is_killed_if_training_ends_first(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start_sleeping(module: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True))
        return started[0]

    monkeypatch.setattr(compile_training, "start_process", start_sleeping)
    trainer, compile_steps = waiting(make_trainer)
    with pytest.raises(PenwrightError), compiling_beside(Run(tmp_path), trainer, []) as switch:
        switch(trainer)
        raise PenwrightError("the disk is full")
    assert started[0].returncode == -9 and not compile_steps.called
    assert torch.get_num_threads() == 2


def test_resumed_run_whose_end_is_known_is_compiled_at_once(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer, compile_steps = waiting(make_trainer)
    trainer.state.total_steps = 100
    with compiling_beside(Run(tmp_path), trainer, []):
        assert compile_steps.called


@pytest.mark.parametrize(
    ("settings", "threads", "free", "is_later"),
    [
        ({}, 2, 1e12, True),
        ({}, 1, 1e12, False),
        ({}, 2, 1e9, False),
        ({"training": {"minutes": None, "steps": 100}}, 2, 1e12, False),
        ({"lora": {"rank": 4}, "finetuning": {"base": "runs/base"}}, 2, 1e12, False),
    ],
    ids=["two threads", "one thread", "little memory", "a number of steps", "adapters"],
)
def test_another_process_compiles_for_budgets_in_minutes_with_processors_and_memory(
    settings: Table, threads: int, free: float, is_later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "is_possible", lambda: True)
    monkeypatch.setattr(workflow, "available_memory", lambda: free)
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
    table: Table = {"task": "generate", "data": {"train": ["novel.txt"]}, "model": sizes, "training": {"minutes": 60}}
    recipe = validate(Recipe, merge(table, settings), "test")
    torch.set_num_threads(threads)
    assert compiles_later(recipe, CPU, vocab_size=9, n_labels=1) == is_later
