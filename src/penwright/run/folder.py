"""The run folder: recipe, tokenizer, checkpoints, metrics and samples.

recipe.toml  tokenizer.json  corpus.json  steps.jsonl  metrics.jsonl  samples.jsonl
stop (asks training to stop)  stopped (training was interrupted and has saved everything)  lock (held during training)
checkpoints/step-00001200/ (see run/checkpoints.py)
ngrams.safetensors (linear classifier on n-grams, only in runs of classifiers)  baselines.json (scores of the baselines)
checkpoints/first/ (the weights of the first checkpoint, kept for comparison)
checkpoints/early-00000012/ (the weights after 1, 10, 100 ... seconds, if `training.early` asks for them)
job.json (the last torchrun job that trained the run)
quickened.json (precision for decoding)  alignment.json (attention head for alignment)  calibration.json  tensorboard/
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar
from warnings import warn

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]  # Windows has no such module

from pydantic import TypeAdapter, ValidationError

from penwright.config import Recipe, parse_toml, validate, write_toml
from penwright.errors import PenwrightError, PenwrightWarning
from penwright.run.checkpoint_folder import CHECKPOINTS, CheckpointFolder
from penwright.run.checkpoints import EARLY, FIRST, Checkpoint, Record, first_problem
from penwright.run.records import METRICS, SAMPLES, STEPS, delete_records_after, read_records
from penwright.storage import (
    MOST_IN_SMALL,
    TEMPORARY,
    UnsafeFile,
    open_plain,
    read_bytes,
    read_json,
    remove_folder,
    require_plain,
    to_json,
    write_atomically,
)

T = TypeVar("T")
RECIPE, TOKENIZER, TENSORBOARD = "recipe.toml", "tokenizer.json", "tensorboard"
CORPUS, BASELINES, JOB = "corpus.json", "baselines.json", "job.json"
OPTIMIZED, ALIGNMENT, CALIBRATION = "quickened.json", "alignment.json", "calibration.json"
STOP, STOPPED, LOCK = "stop", "stopped", "lock"
LINEAR_FILE = "ngrams.safetensors"  # file with the linear classifier on n-grams, only in runs of classifiers
BEFORE_TRAINING = {RECIPE, TOKENIZER, CHECKPOINTS, STOP, LOCK, LINEAR_FILE}  # files that may exist before training
OURS = {*BEFORE_TRAINING, STEPS, METRICS, SAMPLES, STOPPED, TENSORBOARD}  # files of a run, except .json files
CHECKSUM = "# Checksum of the lines below: sha256 {}. If you change them by hand, delete this line.\n"


class Run:
    """An open run folder."""

    def __init__(self, folder: Path):
        self.folder, self.checkpoints = folder, CheckpointFolder(folder)
        self.tokenizer_path = folder / TOKENIZER

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
                f"{folder} cannot be created: {error.strerror}. Choose a different folder with --run"
            ) from None
        return cls(folder)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Open an existing run. If there is none, raise PenwrightError with a list of the runs in the same folder."""
        if os.path.lexists(folder / RECIPE):
            return cls(folder)
        parent = folder.parent if folder.parent.is_dir() else Path()
        homes = [parent] if parent.resolve() == Path("runs").resolve() else [parent, Path("runs")]
        near = sorted(f"{path.parent}" for home in homes for path in home.glob(f"*/{RECIPE}"))
        alike = get_close_matches(folder.name, [Path(run).name for run in near], n=1, cutoff=0.7)
        nearest = next((run for run in near if alike and Path(run).name == alike[0]), None)
        hint = f"Runs here: {', '.join(near)}." if near else "Train one with: penwright train YOUR_TEXT"
        raise PenwrightError(f"there is no run in {folder}. {f'Did you mean {nearest}?' if nearest else hint}")

    @property
    def real_folder(self) -> Path:
        """The path of the folder, without symbolic links. Relative paths like `../text.txt` are resolved against it."""
        real = self.folder.resolve()
        return self.folder if real == self.folder.absolute() else real

    @property
    def is_finished(self) -> bool:
        """Whether the training budget is spent, or training stopped early."""
        return bool(self.checkpoints.all()) and self.checkpoints.read_newest(Checkpoint.counters)[0].is_finished

    @property
    def recipe(self) -> Recipe:
        """The settings of the run."""
        path = self.folder / RECIPE
        return validate(Recipe, parse_toml(self._recipe_bytes(), path), str(path), warns=False)

    def warn_of_edits(self) -> None:
        """Warn if recipe.toml has changed since Penwright wrote it. A damaged file may still be valid TOML."""
        first, _, content = self._recipe_bytes().partition(b"\n")
        match = re.fullmatch(re.escape(CHECKSUM.strip()).replace(r"\{\}", "([0-9a-f]{64})"), first.decode("latin-1"))
        if match and match[1] != hashlib.sha256(content).hexdigest():
            warn(
                f"{self.folder / RECIPE} has changed since Penwright wrote it: it was edited by hand, or is damaged. "
                "If you edited it, delete its first line; otherwise restore the old content",
                PenwrightWarning,
                stacklevel=2,
            )

    def _recipe_bytes(self) -> bytes:
        path = self.folder / RECIPE
        try:
            return read_bytes(path, MOST_IN_SMALL)
        except OSError as error:
            raise PenwrightError(f"{path} cannot be read as a recipe: {error}") from None

    def save_recipe(self, recipe: Recipe) -> None:
        """Save the settings of the run, with a checksum."""
        content = write_toml(recipe)
        digest = hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()
        write_atomically(self.folder / RECIPE, CHECKSUM.format(digest) + content)

    def write_json(self, name: str, record: Record) -> None:
        """Save a JSON object in the run folder."""
        write_atomically(self.folder / name, to_json(record, indent=1) + "\n")

    def read_json(self, name: str) -> Record:
        """Load a JSON object from the run folder; raise PenwrightError if it is missing or damaged."""
        try:
            return read_json(self.folder / name)
        except (OSError, ValueError) as error:
            raise PenwrightError(f"{self.folder / name} cannot be read: {error}") from None

    def save_finding(self, name: str, record: Record, measured: int | None) -> bool:
        """Save a result, for example the calibration, that was measured on the model of step `measured`.

        Return False, and save nothing, if another model is the best one now: training may have gone on meanwhile.
        """
        if measured != self.checkpoints.best_step():
            return False
        kept = {**record, "best_step": measured}
        self.write_json(name, {**kept, "sha256": _digest(kept)})
        return True

    def finding(self, name: str, kind: type[T]) -> T | None:
        """Load a result that was measured on the best model. Return None if it is missing or outdated.

        A file that is damaged, or does not validate as `kind`, is ignored with a warning.
        """
        path = self.folder / name
        if not os.path.lexists(path):
            return None
        try:
            record = read_json(path, MOST_IN_SMALL)
            digest = record.pop("sha256", None)
            if digest not in (None, _digest(record)):
                raise ValueError("its content has changed since it was saved")
            best = self.checkpoints.best_step()
            is_current = record.pop("best_step", best) == best
            finding = TypeAdapter(kind).validate_python(record)
        except (OSError, ValueError, UnsafeFile) as error:
            problem = first_problem(error) if isinstance(error, ValidationError) else str(error)
            warn(f"{path} is damaged and is not used: {problem}", PenwrightWarning, stacklevel=3)
            return None
        return finding if is_current else None

    def append(self, name: str, record: Record) -> None:
        """Append a line to steps.jsonl, metrics.jsonl or samples.jsonl."""
        path = self.folder / name
        try:
            with open(open_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a", encoding="utf-8") as file:
                file.write(to_json(record) + "\n")
        except OSError as error:
            raise PenwrightError(f"{path} could not be written: {error}. Earlier content is intact.") from None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the run, which keeps other processes from training it.

        Raises PenwrightError if another process holds the lock, and UnsafeFile if a file of the run is a link.
        """
        require_contained(self.folder)
        path = self.folder / LOCK
        try:
            file = open(open_plain(path, os.O_RDWR | os.O_CREAT), "rb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise PenwrightError(f"{path} could not be written: {error}") from None
        with file:
            if fcntl is not None:  # the system releases the lock when the process ends, even if it is killed
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise PenwrightError(
                        f"{self.folder} is being trained by another process. Wait until that process ends, or stop it"
                    ) from None
                except OSError:  # the file system does not support locks
                    pass
            yield

    def request_stop(self) -> None:
        """Create the stop file: the process that trains this run then saves and stops. No signals are sent."""
        try:
            (self.folder / STOP).open("x").close()  # mode "x" does not follow links
        except FileExistsError:
            return
        except OSError as error:
            raise PenwrightError(f"{self.folder / STOP} could not be written: {error}") from None

    @property
    def is_stop_requested(self) -> bool:
        """Whether training was asked to stop; False if the folder cannot be read."""
        return os.path.exists(self.folder / STOP)  # Path.exists can raise OSError, but os.path.exists cannot

    @property
    def was_stopped(self) -> bool:
        """Whether training was interrupted, has saved everything, and has not been resumed since."""
        return (self.folder / STOPPED).exists()

    def mark_stopped(self) -> None:
        """Record that training was interrupted and has saved everything. On a full disk, only this record is lost."""
        with suppress(OSError):
            os.close(open_plain(self.folder / STOPPED, os.O_WRONLY | os.O_CREAT))
            (self.folder / STOP).unlink(missing_ok=True)

    def clear_stop_files(self) -> None:
        """Delete the stop files. Call this when training starts, resumes or is complete."""
        for name in (STOP, STOPPED):
            try:
                (self.folder / name).unlink(missing_ok=True)
            except OSError as error:
                raise PenwrightError(f"{self.folder / name} could not be deleted: {error}") from None

    def records(self, name: str) -> list[Record]:
        """Read a .jsonl file, skipping damaged lines: the last line may be incomplete if the process was killed."""
        return list(read_records(self.folder / name).lines)

    def delete_after(self, step: int) -> None:
        """Delete the records and checkpoints after this step, and unfinished checkpoints, before training resumes."""
        self.checkpoints.delete_after(step)
        for name in (STEPS, METRICS, SAMPLES):
            delete_records_after(self.folder / name, step)

    def clear(self) -> None:
        """Delete all records and checkpoints, so that training can start again with different settings."""
        first = self.checkpoints.first()
        if first is not None:
            remove_folder(first.folder)
        self.delete_after(-1)


def require_unused(folder: Path) -> None:
    """Raise PenwrightError if the folder is already in use, so that it cannot hold a new run."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise PenwrightError(f"{folder} is a file. Choose a different --run")
    if folder.exists() and not _is_reusable(folder):
        raise PenwrightError(f"{folder} is not empty. Choose a different --run, or --resume the run in it")


def _is_reusable(folder: Path) -> bool:
    """Return whether the folder is empty, or belongs to a run that was stopped before its first checkpoint."""
    kept = folder / CHECKPOINTS
    names = {path.name for path in folder.iterdir() if not TEMPORARY.fullmatch(path.name)}
    return names <= BEFORE_TRAINING and not (kept.exists() and any(kept.iterdir()))


def require_contained(folder: Path) -> None:
    """Raise UnsafeFile if anything in the run folder that training writes or deletes is a link, a pipe or a device.

    The run folder itself may be a link.
    """
    for path in folder.glob("*"):
        if path.name in OURS or path.suffix == ".json":
            require_plain(path)
    for path in (folder / CHECKPOINTS).glob("*"):
        if path.name != FIRST and not path.name.startswith(("step-", EARLY)):
            continue
        require_plain(path)
        for part in path.glob("*"):
            require_plain(part)
    for path in (folder / TENSORBOARD).glob("*"):
        require_plain(path)


def _digest(record: Record) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
