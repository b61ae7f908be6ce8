"""Live models: new checkpoints of a run are served without a restart of the server, and early checkpoints on request.

During training, the newest checkpoint of a run is served; once training has finished, its best. A stopped run serves
its newest checkpoint, unless an evaluation since the best one was worse. A request that has begun with one model
finishes with it. A replaced model is closed once it is idle.
"""

import asyncio
import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import TypeVar

from penwright.application import Application
from penwright.devices import give_back_memory
from penwright.errors import UsageError
from penwright.run.checkpoints import WEIGHTS, Checkpoint
from penwright.run.folder import Run
from penwright.serving.model_registry import ModelRegistry, is_in_use
from penwright.serving.model_worker import DAMAGE, ModelWorker
from penwright.serving.runs import LIVE, State, folders, state_of
from penwright.serving.settings import ServingSettings
from penwright.workflows.load import load

T = TypeVar("T")
WATCH_SECONDS = 1.0  # seconds between two checks of the run folders
MAX_SHARE = 0.05  # maximum fraction of time spent loading checkpoints, because loading slows down training
IDLE_SECONDS = 30.0  # seconds after which a replaced model is closed, unless it still answers requests
# A single thread, so that only one early checkpoint is in memory at a time, even if its client has disconnected.
_early = ThreadPoolExecutor(1, thread_name_prefix="penwright-early")


class LiveModels:
    """A watcher that replaces served models when their runs have newer checkpoints.

    If the registry has a `home` folder, it also adds and removes models.
    """

    def __init__(self, registry: ModelRegistry, settings: ServingSettings):
        self._registry, self._settings = registry, settings
        self._retired: list[tuple[ModelWorker, float]] = []
        self._failed: dict[Path, int | None] = {}  # step of the checkpoint that could not be loaded, by run folder
        self._reported: set[str] = set()
        self._resting_until = 0.0  # until this time, no new checkpoints of runs in training are loaded

    async def watch(self) -> None:
        """Check the run folders at regular intervals until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.update)
            except Exception as error:  # an error in one run must not stop the others from being updated
                self._report(f"the folders of the served runs cannot be watched: {error!r}", error)
            self._close_idle()
            await asyncio.sleep(WATCH_SECONDS)

    def update(self) -> None:
        """Load newer checkpoints of the served runs. In a `home` folder, also add and remove models."""
        for worker in self._registry:
            if worker.opened.checkpoint is not None and not worker.is_live:
                continue  # the user chose this checkpoint, so it is not replaced
            run = Run(worker.opened.run.folder)
            with self._damage_reported(worker.name):
                state = state_of(run)
                worker.is_learning, step = state in LIVE, self._wanted_step(run, state)
                if step is not None and step != worker.step and self._may_load(run, step, worker.is_learning):
                    self._load(run, step, worker.name)
        if self._registry.home is not None:
            self._follow_home()

    def _follow_home(self) -> None:
        """Serve the newest runs below the home folder, as many as the limits allow, and stop serving all others."""
        run_folders = folders(self._registry)
        chosen = dict(self._within_limits(run_folders))
        for worker in self._registry:
            if worker.name not in chosen:
                self._retire(self._registry.remove(worker.name))
        names = {worker.name for worker in self._registry}
        for name, folder in chosen.items():
            run = Run(folder)
            with self._damage_reported(name):
                step = self._wanted_step(run, state_of(run))
                if name not in names and step is not None and self._may_load(run, step, is_learning=False):
                    self._load(run, step, name)

    def _within_limits(self, run_folders: dict[str, Path]) -> Iterator[tuple[str, Path]]:
        """Yield the runs to serve: those with the newest checkpoints, as many as the limits allow."""
        runs = [(checkpoint, name, folder) for name, folder in run_folders.items() if (checkpoint := _newest(folder))]
        runs.sort(key=lambda each: -each[0].folder.stat().st_mtime)
        n_models, n_bytes, most = 0, 0, self._settings.max_model_bytes
        for checkpoint, name, folder in runs:
            size = (checkpoint.folder / WEIGHTS).stat().st_size
            if size > most:
                self._report(
                    f"{name} is not served: it has {size:,} bytes, but the limit is {most:,} (max_model_bytes)"
                )
                continue
            n_models, n_bytes = n_models + 1, n_bytes + size
            if n_models > self._settings.max_models or n_bytes > most:
                return
            yield name, folder

    def _wanted_step(self, run: Run, state: State) -> int | None:
        """Return the step to serve: the newest or the best (see the module docstring). None without checkpoints."""
        checkpoints = run.checkpoints.all()
        if not checkpoints:
            return None
        newest = checkpoints[-1]
        if state in LIVE:
            return newest.step
        is_usable = state == "stopped" and self._failed.get(run.folder) != newest.step
        best = None if is_usable and not newest.state().get("evaluations_since_best") else run.checkpoints.best_step()
        return newest.step if best is None else best

    def _may_load(self, run: Run, step: int, is_learning: bool) -> bool:
        """Return whether to load a checkpoint: no retries after a failure, and only a few loads during training."""
        is_resting = is_learning and monotonic() < self._resting_until
        return self._failed.get(run.folder) != step and not is_resting

    def _load(self, run: Run, step: int, name: str) -> None:
        """Load a checkpoint and serve it under this name. Record a failure, to avoid further attempts."""
        checkpoint = next((each for each in run.checkpoints.all() if each.step == step), None)
        if checkpoint is None:
            return
        begin, self._failed[run.folder] = monotonic(), step
        is_learning = state_of(run) in LIVE  # compiling the model for decoding would slow down the training
        worker = ModelWorker.load(checkpoint.folder, name, self._settings, compiles=not is_learning)
        del self._failed[run.folder]
        worker.is_live, worker.is_learning = True, is_learning
        self._retire(self._registry.put(worker))
        self._resting_until = monotonic() + (monotonic() - begin) / MAX_SHARE

    @contextmanager
    def _damage_reported(self, name: str) -> Iterator[None]:
        """Report an error in this run instead of raising it: its folder may be damaged or deleted."""
        try:
            yield
        except DAMAGE as error:
            self._report(f"the newest weights of {name} are not served: {error}")

    def _report(self, message: str, error: Exception | None = None) -> None:
        """Log a message, and the traceback of an unexpected error, unless the same message was logged before."""
        if message not in self._reported:
            self._reported.add(message)
            logging.getLogger("penwright").warning(message, exc_info=error)

    def _retire(self, worker: ModelWorker | None) -> None:
        if worker is not None:
            self._retired.append((worker, monotonic()))

    def _close_idle(self) -> None:
        """Close the replaced models that no longer answer requests."""
        now = monotonic()
        idle = [each for each in self._retired if now - each[1] > IDLE_SECONDS and not is_in_use(each[0])]
        for each in idle:
            self._retired.remove(each)
            each[0].close()
        if idle:
            gc.collect()
            give_back_memory()


def _newest(folder: Path) -> Checkpoint | None:
    with suppress(*DAMAGE):
        return max(Run(folder).checkpoints.all(), key=lambda each: each.step, default=None)
    return None


async def run_early(worker: ModelWorker, checkpoint: Checkpoint, function: Callable[[Application], T]) -> T:
    """Load a model from an early checkpoint, call a function with the model, and return the result."""

    def work() -> T:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hides the warning that the model is not optimized
            application = load(checkpoint.folder, worker.limits.device, compiles=not worker.is_learning)
        return function(application)

    async with asyncio.timeout(worker.limits.deadline_seconds):
        return await asyncio.wrap_future(_early.submit(work))


def early_checkpoint(worker: ModelWorker, step: int) -> Checkpoint:
    """Return the checkpoint of a run at an early step. Raises UsageError if the run did not keep it."""
    kept = {each.step: each for each in worker.opened.run.checkpoints.early()}
    if step not in kept:
        steps = ", ".join(map(str, kept)) or "none"
        raise UsageError(f"{worker.name} has no early weights of step {step}. Steps with early weights: {steps}")
    return kept[step]
