"""A run folder: the recipe, the tokenizer, checkpoints that are whole or not there, metrics and samples.

recipe.toml  tokenizer.json  corpus.json  steps.jsonl  metrics.jsonl  samples.jsonl
stop (a request to end training)  stopped (training ended before its time, all saved)  lock (held while it is trained)
checkpoints/step-00001200/ (see run/checkpoints.py)
checkpoints/first/ (the weights of the first evaluation; they stay, to compare later ones with)
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

from penwright.config import Recipe, parse_toml, validate, write_toml
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
BEFORE_TRAINING = {RECIPE, "tokenizer.json", CHECKPOINTS, STOP, LOCK}  # written before there is anything to resume
OURS = {*BEFORE_TRAINING, STEPS, METRICS, SAMPLES, STOPPED, TENSORBOARD}  # beside .json files
ATTEMPTS = 100  # to read a checkpoint of a run that is being trained, while older ones are deleted
CHECKSUM = "# Checksum of the lines below: sha256 {}. If you change them by hand, delete this line.\n"


class Run:
    """A run folder, opened."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.tokenizer_path = folder / "tokenizer.json"
        self.made_with: Record = {}  # what is kept in each checkpoint of the files that its weights depend on

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @classmethod
    def create(cls, folder: Path) -> "Run":
        """Make a new, empty run; refuse a folder that already holds one that can be resumed, or anything else."""
        require_unused(folder)
        try:
            (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PenwrightError(
                f"{folder} cannot be made: {error.strerror}. Choose another place with --run"
            ) from None
        return cls(folder)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Open an existing run; where there is none, the error names runs nearby."""
        if os.path.lexists(folder / RECIPE):
            return cls(folder)
        place = folder.parent if folder.parent.is_dir() else Path()
        near = sorted(f"{path.parent}" for path in place.glob(f"*/{RECIPE}"))
        hint = f" Runs here: {', '.join(near)}." if near else " Train one with: penwright train YOUR_TEXT"
        raise PenwrightError(f"there is no run in {folder}.{hint}")

    @property
    def real_folder(self) -> Path:
        """The folder without links on the way to it, from which relative paths can be followed upwards."""
        real = self.folder.resolve()
        return self.folder if real == self.folder.absolute() else real

    @property
    def recipe(self) -> Recipe:
        """The settings that training goes by."""
        path = self.folder / RECIPE
        return validate(Recipe, parse_toml(self._recipe_bytes(), path), str(path))

    def warn_of_edits(self) -> None:
        """Warn if recipe.toml is not what Penwright wrote, so that damage to a harmless setting is noticed, too."""
        first, _, rest = self._recipe_bytes().partition(b"\n")
        found = re.fullmatch(re.escape(CHECKSUM.strip()).replace(r"\{\}", "([0-9a-f]{64})"), first.decode("latin-1"))
        if found and found[1] != hashlib.sha256(rest).hexdigest():
            warn(
                f"{self.folder / RECIPE} is not as Penwright wrote it: it was changed by hand, or is damaged. "
                "If you changed it, delete its first line; otherwise put the old content back",
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
        """Whether its budget is spent, or was not worth spending further."""
        if not self.checkpoints():
            return False
        newest, _ = self._read_first(_newest_first, Checkpoint.counters)
        spent = newest.total_steps is not None and newest.step >= newest.total_steps
        return spent or newest.stopped_early

    def save_recipe(self, recipe: Recipe) -> None:
        """Keep the settings that training goes by."""
        content = write_toml(recipe)
        digest = hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()
        write_atomically(self.folder / RECIPE, CHECKSUM.format(digest) + content)

    def write_json(self, name: str, record: Record) -> None:
        """Keep a JSON object beside the recipe."""
        write_atomically(self.folder / name, _as_json(record, indent=1) + "\n")

    def read_json(self, name: str) -> Record:
        """Return that JSON object; raises PenwrightError if it is missing or damaged."""
        try:
            return read_json(self.folder / name)
        except (OSError, ValueError) as error:
            raise PenwrightError(f"{self.folder / name} cannot be read: {error}") from None

    def keep_finding(self, name: str, record: Record) -> None:
        """Keep what was found out about the best model."""
        kept = {**record, "best_step": self.best_step()}
        self.write_json(name, {**kept, "sha256": _digest(kept)})

    def finding(self, name: str, kind: type[BaseModel] | None = None) -> Record | None:
        """Return that record; None if there is none, or if another model is the best one by now.

        A damaged record, or one that is not of this `kind`, is left out with a warning.
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
        """Add a line to steps.jsonl, metrics.jsonl or samples.jsonl."""
        path = self.folder / name
        try:
            with open(open_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a", encoding="utf-8") as file:
                file.write(_as_json(record) + "\n")
        except OSError as error:
            raise PenwrightError(f"{path} could not be written: {error}. What was saved before is intact.") from None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, no other process trains this run; raises PenwrightError if one does already.

        So it does for a run with parts that leave its folder, since training writes and deletes them.
        """
        require_contained(self.folder)
        path = self.folder / LOCK
        try:
            file = open(open_plain(path, os.O_RDWR | os.O_CREAT), "rb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise PenwrightError(f"{path} could not be written: {error}") from None
        with file:
            if fcntl is not None:  # the system lets go of it when the process ends, however that happens
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise PenwrightError(f"{self.folder} is being trained by another process") from None
                except OSError:  # a file system without locks
                    pass
            yield

    def records(self, name: str) -> list[Record]:
        """The lines of such a file; damaged lines, such as a last one that a kill cut short, are left out."""
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

    def forget_after(self, step: int) -> None:
        """Drop what a run resumed there will make again: records, and checkpoints too damaged or cut off by a kill."""
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
        """Those that were saved whole, oldest first; folders with other names are not ours."""
        place = self.folder / CHECKPOINTS
        require_plain(place)
        steps = [(step_of(path.name), path) for path in place.glob("step-*")]
        return [Checkpoint(path, step) for step, path in sorted((s, p) for s, p in steps if s is not None)]

    def first(self) -> Checkpoint | None:
        """Return the first checkpoint, which has weights only; None in older runs and before there is one."""
        folder = self.folder / CHECKPOINTS / FIRST
        try:
            return Checkpoint(folder, int(read_json(folder / "manifest.json", MOST_IN_SMALL)["step"]))
        except (OSError, ValueError, KeyError, TypeError, UnsafeFile):
            return None

    def last_step(self) -> int:
        """Where it stands: the newest saved step, 0 before the first."""
        return max((checkpoint.step for checkpoint in self.checkpoints()), default=0)

    def best_step(self) -> int | None:
        """The step with the best score on held-out examples, by the newest sound record; None without a score."""
        with suppress(PenwrightError):
            return self._read_first(_newest_first, Checkpoint.counters, STATE)[0].best_step
        return None

    def newest(self) -> tuple[Checkpoint, list[str]]:
        """The newest undamaged checkpoint, and a warning for every damaged one passed over."""
        return self._read_first(_newest_first, _itself)

    def best(self) -> tuple[Checkpoint, list[str]]:
        """The best undamaged checkpoint, or the newest when there is no best yet; with warnings as in newest()."""
        return self.read_best(_itself)

    def read_best(self, read: Callable[[Checkpoint], T]) -> tuple[T, list[str]]:
        """What `read` gives for best(), though training deletes checkpoints at the same time; and the warnings."""
        return self._read_first(self._best_first, read)

    def _best_first(self, listed: Sequence[Checkpoint]) -> list[Checkpoint]:
        newest_first = _newest_first(listed)
        bests = map(self._best_known_to, newest_first)  # the older ones know which was the best before a damaged one
        return list(dict.fromkeys([*bests, *newest_first]))

    def _best_known_to(self, checkpoint: Checkpoint) -> Checkpoint:
        """The best one by its record; itself when nothing was scored yet or when its record is damaged."""
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
        """What `read` gives for the first undamaged checkpoint, of which these files, or all, are verified.

        If checkpoints came or went while they were read, it begins again.
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
                    warnings.append(f"{damage}; passed over {checkpoint.folder.name}")
            else:
                break
        detail = "; ".join(warnings) or "none was saved yet"
        raise PenwrightError(f"{self.folder} has no checkpoint to load: {detail}")

    def save_checkpoint(self, step: int, weights: Tensors, training: Tensors, state: Record) -> None:
        """Save a checkpoint, whole or not at all.

        `state` names the best step so far as "best_step"; in a file of its own, a kill could leave it behind.
        """
        save_checkpoint(self._checkpoint(step), weights, training, self._with_origin(state))

    def save_first(self, step: int, weights: Tensors, state: Record) -> None:
        """Keep these weights as the first checkpoint, unless there is one."""
        if self.first() is None:
            first = Checkpoint(self.folder / CHECKPOINTS / FIRST, step)
            save_checkpoint(first, weights, None, self._with_origin(state))

    def _with_origin(self, state: Record) -> Record:
        return {**state, "made_with": self.made_with} if self.made_with else state

    def prune(self, keep: int) -> None:
        """Delete all checkpoints but the last `keep` and the best."""
        best = self.best_step()
        for checkpoint in self.checkpoints()[:-keep]:
            if checkpoint.step != best:
                remove_folder(checkpoint.folder)


def require_unused(folder: Path) -> None:
    """Raise PenwrightError if a new run cannot be kept there."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise PenwrightError(f"{folder} is a file: choose another --run")
    if folder.exists() and not _is_as_good_as_empty(folder):
        raise PenwrightError(f"{folder} is not empty: choose another --run, or --resume the run in it")


def _is_as_good_as_empty(folder: Path) -> bool:
    """Whether it is empty, or left by a run that was stopped while its text was still being read."""
    if {path.name for path in folder.iterdir()} - BEFORE_TRAINING:
        return False
    kept = folder / CHECKPOINTS
    return not kept.exists() or not any(kept.iterdir())


def require_contained(folder: Path) -> None:
    """Raise UnsafeFile if a part of the run that training writes or deletes is a link, or not a plain file or folder.

    The run folder itself may be reached by a link.
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


def _itself(checkpoint: Checkpoint) -> Checkpoint:
    return checkpoint


def _digest(record: Record) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _as_json(record: Record, indent: int | None = None) -> str:
    """Letters as they are, unless a file has a name that is not UTF-8."""
    text = json.dumps(record, ensure_ascii=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(record, indent=indent)
    return text
