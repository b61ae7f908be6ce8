"""Compilation of the training steps in another process, while this process takes the first steps uncompiled."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch

from penwright.native import toolchain
from penwright.run.folder import Run
from penwright.training.auto.machine import choose_machine
from penwright.training.observers import Observer, notify
from penwright.training.trainer import Trainer
from penwright.workflows.background import kill_group, start_process
from penwright.workflows.evaluate import with_resolved_paths
from penwright.workflows.make_trainer import make_trainer, reopen

COMPILED_STEPS = 2  # number of steps that the other process takes; torch may compile again for the second batch


@contextmanager
def compiling_beside(run: Run, trainer: Trainer, observers: Sequence[Observer]) -> Iterator[Callable[[Trainer], None]]:
    """Yield a function to call after each step. It compiles the steps once another process has filled torch's cache.

    Meanwhile, training leaves one processor to that process.
    """
    if trainer.awaits_compilation and trainer.state.total_steps is not None:  # resumed, and its end is known
        trainer.compile()
    if not trainer.awaits_compilation:
        yield lambda trainer: None
        return
    n_threads = torch.get_num_threads()
    toolchain.set_inductor_cache()  # for both processes
    process = start_process(__name__, [str(run.folder.absolute()), str(n_threads)])
    notify(observers, "message", "another process compiles the training steps; until then, they take longer")
    torch.set_num_threads(n_threads - 1)
    try:
        yield _Switch(process, n_threads, observers)
    finally:
        torch.set_num_threads(n_threads)
        kill_group(process)


class _Switch:
    """A check after each step that compiles the steps as soon as another process has done so."""

    def __init__(self, process: subprocess.Popen[bytes], n_threads: int, observers: Sequence[Observer]):
        self._process, self._n_threads, self._observers = process, n_threads, observers
        self._is_measured = False

    def __call__(self, trainer: Trainer) -> None:
        if trainer.awaits_compilation:
            if self._process.poll() is not None:  # if it failed, this process compiles alone
                torch.set_num_threads(self._n_threads)
                trainer.compile()
                notify(self._observers, "message", "training steps are compiled from now on")
        elif not self._is_measured:  # the first compiled step, which read the compiled code, is over
            self._is_measured = True
            trainer.budget.measure_again()


def compile_now(run: Run) -> None:
    """Take the first steps of a run with compilation, without saving anything, to fill torch's cache."""
    recipe = with_resolved_paths(run, run.recipe)
    machine = choose_machine(recipe.training)
    trainer = make_trainer(reopen(run, recipe, machine), machine, run)
    trainer.compile()
    for _ in islice(trainer.steps(), COMPILED_STEPS):
        pass


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))  # compiled code depends on the number of threads
    compile_now(Run.open(Path(sys.argv[1])))
