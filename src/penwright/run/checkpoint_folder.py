"""The folder with the checkpoints of a run: listing, choosing, saving and deleting them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from penwright.errors import PenwrightError
from penwright.run.checkpoints import (
    EARLY,
    FIRST,
    STATE,
    Checkpoint,
    DamagedCheckpoint,
    Record,
    Tensors,
    complete_checkpoint,
    folder_name,
    save_checkpoint,
    step_of,
)
from penwright.storage import MOST_IN_SMALL, UnsafeFile, is_temporary, read_json, remove_folder, require_plain

T = TypeVar("T")
CHECKPOINTS = "checkpoints"
ATTEMPTS = 100  # maximum number of attempts to read a checkpoint while training deletes older ones


class CheckpointFolder:
    """The checkpoints of a run."""

    def __init__(self, run: Path):
        self.run, self.folder = run, run / CHECKPOINTS
        self.made_with: Record = {}  # the files and settings that the weights depend on, recorded in each checkpoint

    def all(self) -> list[Checkpoint]:
        """List the complete checkpoints, oldest first; folders with other names are ignored."""
        require_plain(self.folder)
        steps = [(step_of(path.name), path) for path in self.folder.glob("step-*")]
        return [Checkpoint(path, step) for step, path in sorted((s, p) for s, p in steps if s is not None)]

    def first(self) -> Checkpoint | None:
        """Return the first checkpoint, which contains only weights, or None if it does not exist (in older runs)."""
        folder = self.folder / FIRST
        try:
            return Checkpoint(folder, int(read_json(folder / "manifest.json", MOST_IN_SMALL)["step"]))
        except (OSError, ValueError, KeyError, OverflowError, TypeError, UnsafeFile):
            return None

    def last_step(self) -> int:
        """Return the step of the newest checkpoint, or 0 if there is none."""
        return max((checkpoint.step for checkpoint in self.all()), default=0)

    def best_step(self) -> int | None:
        """Return the step with the best held-out score so far, or None if nothing was scored."""
        with suppress(PenwrightError):
            return self.read_newest(Checkpoint.counters, STATE)[0].best_step
        return None

    def newest(self) -> tuple[Checkpoint, list[str]]:
        """Return the newest undamaged checkpoint, and a warning for each damaged one that was skipped."""
        return self.read_newest(_identity)

    def best(self) -> tuple[Checkpoint, list[str]]:
        """Return the best undamaged checkpoint (the newest if none has a score), and a warning for each skipped one."""
        return self.read_best(_identity)

    def read_newest(self, read: Callable[[Checkpoint], T], *names: str) -> tuple[T, list[str]]:
        """Call `read` with the newest undamaged checkpoint. Otherwise, this method works like `read_best`."""
        return self._read_first(_newest_first, read, *names)

    def read_best(self, read: Callable[[Checkpoint], T], *names: str) -> tuple[T, list[str]]:
        """Call `read` with the best undamaged checkpoint. Return its result, and a warning for each skipped checkpoint.

        Training may save and delete checkpoints meanwhile. Only the named files (default: all) are verified.
        """
        return self._read_first(self._best_first, read, *names)

    def _best_first(self, listed: Sequence[Checkpoint]) -> list[Checkpoint]:
        newest_first = _newest_first(listed)
        # Each checkpoint records which one is best. If the newest is damaged, use the record of an older one.
        bests = map(self._best_known_to, newest_first)
        return list(dict.fromkeys([*bests, *newest_first]))

    def _best_known_to(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint that this one records as the best, or this one if it records none or is damaged."""
        with suppress(DamagedCheckpoint):
            step = checkpoint.counters().best_step
            return checkpoint if step is None else self._checkpoint(step)
        return checkpoint

    def _checkpoint(self, step: int) -> Checkpoint:
        return Checkpoint(self.folder / folder_name(step), step)

    def _read_first(
        self,
        order: Callable[[Sequence[Checkpoint]], Sequence[Checkpoint]],
        read: Callable[[Checkpoint], T],
        *names: str,
    ) -> tuple[T, list[str]]:
        """Call `read` with the first undamaged checkpoint in the given order. Return the result and the warnings.

        The named files of a checkpoint (default: all) are verified. If checkpoints appear or disappear, start over.
        """
        for attempt in range(ATTEMPTS):
            listed = self.all()
            warnings: list[str] = []
            for checkpoint in order(listed):
                try:
                    checkpoint.verify(*names)
                    return read(checkpoint), warnings
                except DamagedCheckpoint as damage:
                    if attempt + 1 < ATTEMPTS and self.all() != listed:
                        break
                    warnings.append(f"{damage}; skipped {checkpoint.folder.name}")
            else:
                break
        detail = "; ".join(warnings) or "none has been saved yet"
        raise PenwrightError(f"{self.run} has no checkpoint to load: {detail}")

    def save(self, step: int, weights: Tensors, training: Tensors, state: Record) -> None:
        """Save a checkpoint atomically.

        `state["best_step"]` is the best step so far. It is saved in the checkpoint because a separate file could be out
        of date after a crash.
        """
        save_checkpoint(self._checkpoint(step), weights, training, self._with_origin(state))

    def complete(self, step: int, folder: Path, parts: Record, weights: Tensors, state: Record) -> None:
        """Complete a checkpoint after all ranks have saved their parts in this temporary folder."""
        complete_checkpoint(self._checkpoint(step), folder, parts, weights, self._with_origin(state))

    def save_first(self, step: int, weights: Tensors, state: Record) -> None:
        """Save these weights as the first checkpoint, unless one already exists."""
        if self.first() is None:
            first = Checkpoint(self.folder / FIRST, step)
            save_checkpoint(first, weights, None, self._with_origin(state))

    def save_early(self, step: int, weights: Tensors, state: Record) -> None:
        """Save these weights as an early checkpoint, which prune() never deletes."""
        early = Checkpoint(self.folder / f"{EARLY}{step:08d}", step)
        save_checkpoint(early, weights, None, self._with_origin(state))

    def early(self) -> list[Checkpoint]:
        """List the early checkpoints, oldest first (see `training.early`)."""
        folders = [(path.name.removeprefix(EARLY), path) for path in self.folder.glob(f"{EARLY}*")]
        steps = [(int(number), path) for number, path in folders if number.isascii() and number.isdigit()]
        return [Checkpoint(path, step) for step, path in sorted(steps)]

    def _with_origin(self, state: Record) -> Record:
        return {**state, "made_with": self.made_with} if self.made_with else state

    def delete_after(self, step: int) -> None:
        """Delete the checkpoints after this step, and all unfinished checkpoints."""
        for checkpoint in [*self.all(), *self.early()]:
            if checkpoint.step > step:
                remove_folder(checkpoint.folder)
        for path in self.folder.glob("step-*.tmp-*"):
            if step_of(path.name.partition(".")[0]) is not None and is_temporary(path):
                remove_folder(path)

    def prune(self, keep: int) -> None:
        """Delete all checkpoints except the newest `keep` and the best."""
        best = self.best_step()
        for checkpoint in self.all()[:-keep]:
            if checkpoint.step != best:
                remove_folder(checkpoint.folder)


def _newest_first(listed: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    return listed[::-1]


def _identity(checkpoint: Checkpoint) -> Checkpoint:
    return checkpoint
