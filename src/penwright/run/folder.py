"""The run folder: recipe, tokenizer, checkpoints, metrics and samples.

recipe.toml  tokenizer.json  corpus.json  steps.jsonl  metrics.jsonl  samples.jsonl
stop (asks training to stop)  stopped (training stopped early, everything saved)  lock (held during training)
checkpoints/step-00001200/ (see run/checkpoints.py)
ngrams.safetensors (of a classifier: a linear classifier of n-grams)  baselines.json (scores to beat)
checkpoints/first/ (the weights at the first evaluation, kept for comparison)
quickened.json  alignment.json  calibration.json (findings about the best model)  tensorboard/
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from warnings import warn

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

from pydantic import BaseModel, ValidationError

from penwright.config import Recipe, parse_toml, validate, with_present_names, write_toml
from penwright.errors import PenwrightError, PenwrightWarning
from penwright.run.checkpoints import (
    FIRST,
    STATE,
    TRAINING,
    WEIGHTS,
    Checkpoint,
    DamagedCheckpoint,
    Record,
    Tensors,
    first_problem,
    folder_name,
    save_checkpoint,
    step_of,
)
from penwright.storage import (
    MOST_IN_SMALL,
    UnsafeFile,
    is_temporary,
    let_others_read,
    open_plain,
    read_bytes,
    read_json,
    remove_folder,
    require_plain,
    write_atomically,
    write_bytes_atomically,
)

__all__ = [
    "LOCK",
    "METRICS",
    "SAMPLES",
    "STATE",
    "STEPS",
    "STOP",
    "STOPPED",
    "TRAINING",
    "WEIGHTS",
    "Checkpoint",
    "DamagedCheckpoint",
    "Record",
    "Run",
    "Tensors",
    "let_others_read",
    "require_unused",
    "write_atomically",
]

T = TypeVar("T")
RECIPE, CHECKPOINTS, TENSORBOARD = "recipe.toml", "checkpoints", "tensorboard"
STEPS, METRICS, SAMPLES = "steps.jsonl", "metrics.jsonl", "samples.jsonl"
STOP, STOPPED, LOCK = "stop", "stopped", "lock"
LINEAR = "ngrams.safetensors"  # the linear classifier that belongs to a classifier
BEFORE_TRAINING = {RECIPE, "tokenizer.json", CHECKPOINTS, STOP, LOCK, LINEAR}  # written before the first checkpoint
OURS = {*BEFORE_TRAINING, STEPS, METRICS, SAMPLES, STOPPED, TENSORBOARD}  # in addition to .json files
ATTEMPTS = 100  # to read a checkpoint while training deletes older ones
CHECKSUM = "# Checksum of the lines below: sha256 {}. If you change them by hand, delete this line.\n"


class Run:
    """An open run folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.tokenizer_path = folder / "tokenizer.json"
        self.made_with: Record = {}  # description of the files the weights depend on, saved in each checkpoint

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @classmethod
    def create(cls, folder: Path) -> "Run":
        """Create a new, empty run; raise PenwrightError if the folder is in use or cannot be created."""
        require_unused(folder)
        try:
            (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PenwrightError(
                f"{folder} cannot be created: {error.strerror}. Choose another folder with --run"
            ) from None
        return cls(folder)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Open an existing run; if there is none, raise PenwrightError, which lists runs nearby."""
        if os.path.lexists(folder / RECIPE):
            return cls(folder)
        place = folder.parent if folder.parent.is_dir() else Path()
        near = sorted(f"{path.parent}" for path in place.glob(f"*/{RECIPE}"))
        hint = f" Runs here: {', '.join(near)}." if near else " Train one with: penwright train YOUR_TEXT"
        raise PenwrightError(f"there is no run in {folder}.{hint}")

    @property
    def real_folder(self) -> Path:
        """The folder with links resolved, so that relative paths such as `../` work."""
        real = self.folder.resolve()
        return self.folder if real == self.folder.absolute() else real

    @property
    def recipe(self) -> Recipe:
        """The settings of the run."""
        path = self.folder / RECIPE
        return validate(Recipe, with_present_names(parse_toml(self._recipe_bytes(), path), warns=False), str(path))

    def warn_of_edits(self) -> None:
        """Warn if recipe.toml is not what Penwright wrote: damage can leave it valid."""
        first, _, rest = self._recipe_bytes().partition(b"\n")
        match = re.fullmatch(re.escape(CHECKSUM.strip()).replace(r"\{\}", "([0-9a-f]{64})"), first.decode("latin-1"))
        if match and match[1] != hashlib.sha256(rest).hexdigest():
            warn(
                f"{self.folder / RECIPE} is not as Penwright wrote it: it was changed by hand, or is damaged. "
                "If you changed it, delete its first line; otherwise restore the old content",
                PenwrightWarning,
                stacklevel=2,
            )

    def _recipe_bytes(self) -> bytes:
        path = self.folder / RECIPE
        try:
            return read_bytes(path, MOST_IN_SMALL)
        except OSError as error:
            raise PenwrightError(f"{path} cannot be read as a recipe: {error}") from None

    @property
    def is_finished(self) -> bool:
        """Whether the training budget is spent, or training stopped early."""
        if not self.checkpoints():
            return False
        newest, _ = self._read_first(_newest_first, Checkpoint.counters)
        spent = newest.total_steps is not None and newest.step >= newest.total_steps
        return spent or newest.stopped_early

    def save_recipe(self, recipe: Recipe) -> None:
        """Save the settings of the run, with a checksum."""
        content = write_toml(recipe)
        digest = hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()
        write_atomically(self.folder / RECIPE, CHECKSUM.format(digest) + content)

    def write_json(self, name: str, record: Record) -> None:
        """Save a JSON object in the run folder."""
        write_atomically(self.folder / name, _as_json(record, indent=1) + "\n")

    def read_json(self, name: str) -> Record:
        """Load a JSON object from the run folder; raise PenwrightError if it is missing or damaged."""
        try:
            return read_json(self.folder / name)
        except (OSError, ValueError) as error:
            raise PenwrightError(f"{self.folder / name} cannot be read: {error}") from None

    def save_finding(self, name: str, record: Record) -> None:
        """Save a finding about the best model, such as its calibration."""
        kept = {**record, "best_step": self.best_step()}
        self.write_json(name, {**kept, "sha256": _digest(kept)})

    def finding(self, name: str, kind: type[BaseModel] | None = None) -> Record | None:
        """Load a finding about the best model; None if there is none, or if the best model has changed since.

        A record that is damaged or not of this `kind` is ignored with a warning.
        """
        path = self.folder / name
        if not os.path.lexists(path):
            return None
        try:
            record = read_json(path, MOST_IN_SMALL)
            digest = record.pop("sha256", None)
            if digest not in (None, _digest(record)):
                raise ValueError("its content is not what was saved")
            if kind is not None:
                kind.model_validate(record)
        except (OSError, ValueError, UnsafeFile) as error:
            problem = first_problem(error) if isinstance(error, ValidationError) else str(error)
            warn(f"{path} is damaged and is not used: {problem}", PenwrightWarning, stacklevel=3)
            return None
        best = self.best_step()
        return record if record.pop("best_step", best) == best else None

    def append(self, name: str, record: Record) -> None:
        """Append a line to steps.jsonl, metrics.jsonl or samples.jsonl."""
        path = self.folder / name
        try:
            with open(open_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a", encoding="utf-8") as file:
                file.write(_as_json(record) + "\n")
        except OSError as error:
            raise PenwrightError(f"{path} could not be written: {error}. What was saved before is intact.") from None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the run, so that no other process trains it.

        Raises PenwrightError if another process holds the lock, and UnsafeFile if a part of the run is a link.
        """
        require_contained(self.folder)
        path = self.folder / LOCK
        try:
            file = open(open_plain(path, os.O_RDWR | os.O_CREAT), "rb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise PenwrightError(f"{path} could not be written: {error}") from None
        with file:
            if fcntl is not None:  # the system releases the lock when the process ends, however it ends
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise PenwrightError(f"{self.folder} is being trained by another process") from None
                except OSError:  # a file system without locks
                    pass
            yield

    def records(self, name: str) -> list[Record]:
        """Read a .jsonl file, without damaged lines such as a last one that a kill cut short."""
        return [record for _, record in self._lines(name)]

    def _lines(self, name: str) -> Iterator[tuple[bytes, Record]]:
        try:
            content = read_bytes(self.folder / name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise PenwrightError(f"{self.folder / name} cannot be read: {error}") from None
        for line in content.split(b"\n"):
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict) and type(record.get("step")) is int:
                    yield line, record

    def delete_after(self, step: int) -> None:
        """Delete the records and checkpoints after this step, and unfinished checkpoints, before training resumes."""
        for checkpoint in self.checkpoints():
            if checkpoint.step > step:
                remove_folder(checkpoint.folder)
        for path in (self.folder / CHECKPOINTS).glob("step-*.tmp-*"):
            if step_of(path.name.partition(".")[0]) is not None and is_temporary(path):
                remove_folder(path)
        for name in (STEPS, METRICS, SAMPLES):
            kept = [line + b"\n" for line, record in self._lines(name) if record["step"] <= step]
            try:
                write_bytes_atomically(self.folder / name, b"".join(kept))
            except OSError as error:
                raise PenwrightError(f"{self.folder / name} could not be written: {error}") from None

    def checkpoints(self) -> list[Checkpoint]:
        """List the complete checkpoints, oldest first; folders with other names are ignored."""
        place = self.folder / CHECKPOINTS
        require_plain(place)
        steps = [(step_of(path.name), path) for path in place.glob("step-*")]
        return [Checkpoint(path, step) for step, path in sorted((s, p) for s, p in steps if s is not None)]

    def first(self) -> Checkpoint | None:
        """Return the first checkpoint, which has weights only; None if there is none, as in older runs."""
        folder = self.folder / CHECKPOINTS / FIRST
        try:
            return Checkpoint(folder, int(read_json(folder / "manifest.json", MOST_IN_SMALL)["step"]))
        except (OSError, ValueError, KeyError, TypeError, UnsafeFile):
            return None

    def last_step(self) -> int:
        """Return the step of the newest checkpoint, or 0 without one."""
        return max((checkpoint.step for checkpoint in self.checkpoints()), default=0)

    def best_step(self) -> int | None:
        """Return the step with the best held-out score, from the newest undamaged record; None without a score."""
        with suppress(PenwrightError):
            return self._read_first(_newest_first, Checkpoint.counters, STATE)[0].best_step
        return None

    def newest(self) -> tuple[Checkpoint, list[str]]:
        """Return the newest undamaged checkpoint, and a warning for each damaged one that was skipped."""
        return self._read_first(_newest_first, _identity)

    def best(self) -> tuple[Checkpoint, list[str]]:
        """Return the best undamaged checkpoint (the newest if none is scored), with warnings as in newest()."""
        return self.read_best(_identity)

    def read_best(self, read: Callable[[Checkpoint], T]) -> tuple[T, list[str]]:
        """Return `read(best checkpoint)` and the warnings, even while training deletes checkpoints."""
        return self._read_first(self._best_first, read)

    def _best_first(self, listed: Sequence[Checkpoint]) -> list[Checkpoint]:
        newest_first = _newest_first(listed)
        bests = map(self._best_known_to, newest_first)  # older ones name the best before a damaged one
        return list(dict.fromkeys([*bests, *newest_first]))

    def _best_known_to(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the best checkpoint by this one's record; itself without a score or if the record is damaged."""
        with suppress(DamagedCheckpoint):
            step = checkpoint.counters().best_step
            return checkpoint if step is None else self._checkpoint(step)
        return checkpoint

    def _checkpoint(self, step: int) -> Checkpoint:
        return Checkpoint(self.folder / CHECKPOINTS / folder_name(step), step)

    def _read_first(
        self,
        order: Callable[[Sequence[Checkpoint]], Sequence[Checkpoint]],
        read: Callable[[Checkpoint], T],
        *names: str,
    ) -> tuple[T, list[str]]:
        """Return `read(checkpoint)` for the first undamaged checkpoint in this order, and the warnings.

        These files of it (default: all) are verified. If checkpoints appear or disappear meanwhile, start over.
        """
        for attempt in range(ATTEMPTS):
            listed = self.checkpoints()
            warnings: list[str] = []
            for checkpoint in order(listed):
                try:
                    checkpoint.verify(*names)
                    return read(checkpoint), warnings
                except DamagedCheckpoint as damage:
                    if attempt + 1 < ATTEMPTS and self.checkpoints() != listed:
                        break
                    warnings.append(f"{damage}; skipped {checkpoint.folder.name}")
            else:
                break
        detail = "; ".join(warnings) or "none was saved yet"
        raise PenwrightError(f"{self.folder} has no checkpoint to load: {detail}")

    def save_checkpoint(self, step: int, weights: Tensors, training: Tensors, state: Record) -> None:
        """Save a checkpoint atomically.

        `state["best_step"]` is the best step so far. In a file of its own, it could be out of date after a kill.
        """
        save_checkpoint(self._checkpoint(step), weights, training, self._with_origin(state))

    def save_first(self, step: int, weights: Tensors, state: Record) -> None:
        """Save these weights as the first checkpoint, unless there is one."""
        if self.first() is None:
            first = Checkpoint(self.folder / CHECKPOINTS / FIRST, step)
            save_checkpoint(first, weights, None, self._with_origin(state))

    def _with_origin(self, state: Record) -> Record:
        return {**state, "made_with": self.made_with} if self.made_with else state

    def prune(self, keep: int) -> None:
        """Delete all checkpoints except the newest `keep` and the best."""
        best = self.best_step()
        for checkpoint in self.checkpoints()[:-keep]:
            if checkpoint.step != best:
                remove_folder(checkpoint.folder)


def require_unused(folder: Path) -> None:
    """Raise PenwrightError if the folder is in use and cannot become a new run."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise PenwrightError(f"{folder} is a file: choose another --run")
    if folder.exists() and not _is_as_good_as_empty(folder):
        raise PenwrightError(f"{folder} is not empty: choose another --run, or --resume the run in it")


def _is_as_good_as_empty(folder: Path) -> bool:
    """Return whether the folder is empty, or left by a run that was stopped before its first checkpoint."""
    if {path.name for path in folder.iterdir()} - BEFORE_TRAINING:
        return False
    kept = folder / CHECKPOINTS
    return not kept.exists() or not any(kept.iterdir())


def require_contained(folder: Path) -> None:
    """Raise UnsafeFile if a part of the run that training writes or deletes is a link, a pipe or a device.

    The run folder itself may be a link.
    """
    for path in folder.glob("*"):
        if path.name in OURS or path.suffix == ".json":
            require_plain(path)
    for path in (folder / CHECKPOINTS).glob("*"):
        if path.name != FIRST and not path.name.startswith("step-"):
            continue
        require_plain(path)
        for part in path.glob("*"):
            require_plain(part)
    for path in (folder / TENSORBOARD).glob("*"):
        require_plain(path)


def _newest_first(listed: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    return listed[::-1]


def _identity(checkpoint: Checkpoint) -> Checkpoint:
    return checkpoint


def _digest(record: Record) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _as_json(record: Record, indent: int | None = None) -> str:
    """Return JSON with non-ASCII characters unescaped, except when a file name in it is not valid UTF-8."""
    text = json.dumps(record, ensure_ascii=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(record, indent=indent)
    return text
