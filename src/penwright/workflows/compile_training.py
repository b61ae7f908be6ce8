"""Compilation of the training steps in another process, while this process takes the first steps uncompiled."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from warnings import catch_warnings, simplefilter

import torch

from penwright.config import Recipe
from penwright.errors import PenwrightWarning
from penwright.native.toolchain import INDUCTOR_CACHE_VARIABLE, set_inductor_cache
from penwright.run.folder import Run
from penwright.training.auto.machine import PAYS_FROM, choose_machine
from penwright.training.observers import Observer, notify
from penwright.training.trainer import Trainer
from penwright.workflows.background import kill_group, start_process
from penwright.workflows.evaluate import with_resolved_paths
from penwright.workflows.make_trainer import make_trainer, reopen

COMPILED_STEPS = 2  # number of steps that the other process takes; torch may compile again for the second batch
MOST_WAITING = 0.5  # maximum share of the remaining budget that the other process may take
BEGINS = "another process is compiling the training steps; until it has finished, they take longer"
WITHOUT = "training continues without compiled steps"
# settings in [training] that compiled steps depend on
KEYS = {"batch_tokens", "accumulate", "consistency", "precision", "activation_checkpointing"}
LEAST_LEFT = 60.0  # minimum remaining seconds for reading the compiled code, which takes up to 15 seconds


@contextmanager
def compiling_beside(run: Run, trainer: Trainer, observers: Sequence[Observer]) -> Iterator[Callable[[Trainer], None]]:
    """Yield a function to call after each step. It compiles the steps once another process has filled torch's cache.

    Meanwhile, training leaves one processor to that process. The steps are compiled at once if they were compiled
    before, or if little of the budget is left.
    """
    left, n_threads, process = _seconds_left(trainer), torch.get_num_threads(), None
    with ExitStack() as stack:
        if trainer.awaits_compilation and left >= PAYS_FROM:
            process = _start(run, n_threads, stack)
        if process:
            notify(observers, "message", BEGINS)
            torch.set_num_threads(n_threads - 1)
            stack.callback(torch.set_num_threads, n_threads)
        elif trainer.awaits_compilation:
            trainer.compile()
        yield _Switch(process, monotonic() + MOST_WAITING * left, n_threads, observers)


def _start(run: Run, n_threads: int, stack: ExitStack) -> subprocess.Popen[bytes] | None:
    """Start the other process, which ends with the stack. Return None if it is not needed or cannot be started."""
    set_inductor_cache()  # both processes use the same cache of compiled code
    if _marker(run.recipe).exists():
        return None
    try:
        folder = stack.enter_context(TemporaryDirectory(prefix="penwright-", ignore_cleanup_errors=True))
        # the process copies texts to this temporary folder, so they are deleted with it
        process = start_process(__name__, [str(run.folder.absolute()), str(n_threads)], TMPDIR=folder)
    except OSError:  # the disk is full, or the system refuses another process
        return None
    stack.callback(kill_group, process)
    return process


def _seconds_left(trainer: Trainer) -> float:
    """Return the remaining seconds of a budget in minutes."""
    state = trainer.state
    return 60 * (trainer.settings.minutes or 0.0) - (state.seconds - state.first_second)


class _Switch:
    """A check after each step that compiles the steps as soon as another process has done so."""

    def __init__(
        self, process: subprocess.Popen[bytes] | None, end: float, n_threads: int, observers: Sequence[Observer]
    ):
        """Wait for the process until `end`, in seconds of the monotonic clock."""
        self._process, self._end, self._n_threads, self._observers = process, end, n_threads, observers
        self._is_measured = False

    def __call__(self, trainer: Trainer) -> None:
        if trainer.awaits_compilation:
            self._compile_if_ready(trainer)
        elif not self._is_measured:  # do not measure the first compiled step, which loads the code
            self._is_measured = True
            if (
                trainer.settings.compile == "on" and trainer.ranks.size == 1
            ):  # several ranks must agree on the number of steps
                trainer.budget.measure_again()

    def _compile_if_ready(self, trainer: Trainer) -> None:
        code = self._process.poll() if self._process else 0
        if code is None and monotonic() < self._end:
            return
        torch.set_num_threads(self._n_threads)
        if code is None and self._process:
            kill_group(self._process)
            trainer.awaits_compilation = False
            notify(self._observers, "message", f"compiling the training steps took too long, so {WITHOUT}")
            return
        if _seconds_left(trainer) < (LEAST_LEFT if code == 0 else PAYS_FROM):
            trainer.awaits_compilation = False
            notify(self._observers, "message", f"too little time is left to compile the training steps, so {WITHOUT}")
            return
        how = (
            "are compiled from now on" if code == 0 else "could not be compiled by another process; compiling them now"
        )
        trainer.compile()
        notify(self._observers, "message", f"training steps {how}")


def _marker(recipe: Recipe) -> Path:
    """Return the path of an empty file. It exists once torch's cache holds compiled steps for such a recipe."""
    training = recipe.training.model_dump(mode="json", include=KEYS)
    is_frozen = bool(recipe.finetuning and recipe.finetuning.freeze_embeddings)
    versions = [torch.__version__, version("penwright"), torch.get_num_threads()]
    key = json.dumps([*versions, recipe.task, recipe.model.model_dump(mode="json"), training, is_frozen])
    return Path(os.environ[INDUCTOR_CACHE_VARIABLE]) / f"steps-{sha256(key.encode()).hexdigest()[:16]}"


def compile_first_steps(run: Run, n_threads: int) -> None:
    """Take the first steps of a run with compilation, without saving anything, to fill torch's cache."""
    recipe = with_resolved_paths(run, run.recipe)
    machine = choose_machine(recipe.training)
    torch.set_num_threads(n_threads)  # compiled code depends on the number of threads
    trainer = make_trainer(reopen(run, recipe, machine), machine, run)
    trainer.compile()
    with catch_warnings():
        simplefilter("error", PenwrightWarning)  # after a failure, the trainer warns and takes uncompiled steps
        for _ in islice(trainer.steps(), COMPILED_STEPS):
            pass
    _marker(run.recipe).touch()


if __name__ == "__main__":
    compile_first_steps(Run.open(Path(sys.argv[1])), int(sys.argv[2]))
