"""A run folder: the recipe, the tokenizer, checkpoints that are whole or not there, metrics and samples.

recipe.toml  tokenizer.json  corpus.json  steps.jsonl  metrics.jsonl  samples.jsonl
stop (somebody wishes that training ends)  stopped (it ended before its time, all saved)  lock (of who trains it)
checkpoints/step-00001200/{model.safetensors, training.safetensors, state.json, manifest.json}
quickened.json  alignment.json  calibration.json (findings about the best model)  tensorboard/
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from penwright.config import Recipe, read_toml, validate, write_toml
from penwright.errors import PenwrightError

Tensors = dict[str, Tensor]
Record = dict[str, Any]  # one JSON object
WEIGHTS, TRAINING, STATE = "model.safetensors", "training.safetensors", "state.json"
STEPS, METRICS, SAMPLES = "steps.jsonl", "metrics.jsonl", "samples.jsonl"
STOP, STOPPED, LOCK = "stop", "stopped", "lock"
BEFORE_TRAINING = {
    "recipe.toml",
    "tokenizer.json",
    "checkpoints",
    STOP,
    LOCK,
}  # written before there is anything to resume


class DamagedCheckpoint(PenwrightError):
    """A checkpoint whose files are not those that were saved."""


@dataclass(frozen=True)
class Checkpoint:
    """One saved moment of training."""

    folder: Path
    step: int

    def verify(self, *names: str) -> None:
        """Raise DamagedCheckpoint, naming the file, unless these files, or all, are as they were saved."""
        try:
            manifest = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
            files: dict[str, Record] = {name: manifest["files"][name] for name in names or manifest["files"]}
        except (OSError, ValueError, KeyError, TypeError):
            raise DamagedCheckpoint(f"{self.folder} has no readable manifest.json") from None
        for name, expected in files.items():
            path = self.folder / name
            if not path.is_file():
                raise DamagedCheckpoint(f"{path} is missing")
            if path.stat().st_size != expected["bytes"] or _sha256(path) != expected["sha256"]:
                raise DamagedCheckpoint(f"{path} is damaged: its content is not what was saved")

    def weights(self) -> Tensors:
        """The weights to use the model with."""
        return _load(self.folder / WEIGHTS)

    def training(self) -> Tensors:
        """What only training needs: raw weights, the optimizer's moments, random states."""
        return _load(self.folder / TRAINING)

    def state(self) -> Record:
        """Counters and scores of the training run; raises DamagedCheckpoint unless they are what was saved."""
        self.verify(STATE)
        return dict(json.loads((self.folder / STATE).read_text(encoding="utf-8")))


class Run:
    """A run folder, opened."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.tokenizer_path = folder / "tokenizer.json"

    @classmethod
    def create(cls, folder: Path) -> "Run":
        """A new, empty run; refuses a folder that already holds one that can be resumed, or anything else."""
        require_unused(folder)
        try:
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PenwrightError(
                f"{folder} cannot be made: {error.strerror}. Choose another place with --run"
            ) from None
        return cls(folder)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """An existing run; says which runs there are nearby when there is none here."""
        if (folder / "recipe.toml").is_file():
            return cls(folder)
        place = folder.parent if folder.parent.is_dir() else Path()
        near = sorted(f"{path.parent}" for path in place.glob("*/recipe.toml"))
        hint = f" Runs here: {', '.join(near)}." if near else " Train one with: penwright train YOUR_TEXT"
        raise PenwrightError(f"there is no run in {folder}.{hint}")

    @property
    def recipe(self) -> Recipe:
        path = self.folder / "recipe.toml"
        return validate(Recipe, read_toml(path), str(path))

    @property
    def is_finished(self) -> bool:
        """Whether its budget is spent, or was not worth spending further."""
        if not self.checkpoints():
            return False
        state = self.newest()[0].state()
        spent = state["total_steps"] is not None and state["step"] >= state["total_steps"]
        return bool(spent or state.get("stopped_early", False))

    def save_recipe(self, recipe: Recipe) -> None:
        """Keep the settings that training goes by."""
        write_atomically(self.folder / "recipe.toml", write_toml(recipe))

    def write_json(self, name: str, record: Record) -> None:
        """Keep a JSON object beside the recipe."""
        write_atomically(self.folder / name, _as_json(record, indent=1) + "\n")

    def read_json(self, name: str) -> Record:
        """That JSON object; raises PenwrightError where it is missing or damaged."""
        try:
            return dict(json.loads((self.folder / name).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise PenwrightError(f"{self.folder / name} cannot be read: {error}") from None

    def keep_finding(self, name: str, record: Record) -> None:
        """Keep what was found out about the best model."""
        self.write_json(name, {**record, "best_step": self.best_step()})

    def finding(self, name: str) -> Record | None:
        """That record; None where there is none, or where another model is the best one by now."""
        if not (self.folder / name).is_file():
            return None
        record, best = self.read_json(name), self.best_step()
        return record if record.pop("best_step", best) == best else None

    def append(self, name: str, record: Record) -> None:
        """Add a line to steps.jsonl, metrics.jsonl or samples.jsonl."""
        path = self.folder / name
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        except OSError as error:
            raise PenwrightError(f"{path} could not be written: {error}. What was saved before is intact.") from None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, no other process trains this run; raises PenwrightError where one does already."""
        with (self.folder / LOCK).open("w") as file:
            if fcntl is not None:  # the system lets go of it when the process ends, however that happens
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise PenwrightError(f"{self.folder} is being trained by another process") from None
                except OSError:  # a file system without locks
                    pass
            yield

    def records(self, name: str) -> list[Record]:
        """The lines of such a file; a last line that a kill cut short is left out."""
        path = self.folder / name
        found: list[Record] = []
        for line in path.read_text(encoding="utf-8").split("\n") if path.is_file() else []:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def forget_after(self, step: int) -> None:
        """Drop what a run resumed there will make again: records, and checkpoints too damaged or cut off by a kill."""
        for checkpoint in self.checkpoints():
            if checkpoint.step > step:
                shutil.rmtree(checkpoint.folder)
        for unfinished in (self.folder / "checkpoints").glob("*.tmp-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        for name in (STEPS, METRICS, SAMPLES):
            kept = [json.dumps(r, ensure_ascii=False) + "\n" for r in self.records(name) if r["step"] <= step]
            write_atomically(self.folder / name, "".join(kept))

    def checkpoints(self) -> list[Checkpoint]:
        """Those that were saved whole, oldest first."""
        folders = (self.folder / "checkpoints").glob("step-*")
        found = [Checkpoint(f, int(f.name.removeprefix("step-"))) for f in folders if f.suffix == ""]
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def last_step(self) -> int:
        """Where it stands: the newest saved step, 0 before the first."""
        return max((checkpoint.step for checkpoint in self.checkpoints()), default=0)

    def best_step(self) -> int | None:
        """The step with the best score on held-out examples, by the newest sound record; None without a score."""
        for checkpoint in self.checkpoints()[::-1]:
            with suppress(DamagedCheckpoint):
                return checkpoint.state().get("best_step")
        return None

    def newest(self) -> tuple[Checkpoint, list[str]]:
        """The newest undamaged checkpoint, and a warning for every damaged one passed over."""
        return self._first_undamaged(self.checkpoints()[::-1])

    def best(self) -> tuple[Checkpoint, list[str]]:
        """The best undamaged checkpoint, or the newest when there is no best yet; with warnings as in newest()."""
        newest_first = self.checkpoints()[::-1]
        bests = map(self._best_known_to, newest_first)  # the older ones know which was the best before a damaged one
        return self._first_undamaged(list(dict.fromkeys([*bests, *newest_first])))

    def _best_known_to(self, checkpoint: Checkpoint) -> Checkpoint:
        """The best one by its record; itself when nothing was scored yet or when its record is damaged."""
        with suppress(DamagedCheckpoint):
            step = checkpoint.state().get("best_step")
            return checkpoint if step is None else self._checkpoint(step)
        return checkpoint

    def _checkpoint(self, step: int) -> Checkpoint:
        return Checkpoint(self.folder / "checkpoints" / f"step-{step:08d}", step)

    def _first_undamaged(self, candidates: list[Checkpoint]) -> tuple[Checkpoint, list[str]]:
        warnings: list[str] = []
        for checkpoint in candidates:
            try:
                checkpoint.verify()
                return checkpoint, warnings
            except DamagedCheckpoint as damage:
                warnings.append(f"{damage}; passed over {checkpoint.folder.name}")
        detail = "; ".join(warnings) or "none was saved yet"
        raise PenwrightError(f"{self.folder} has no checkpoint to load: {detail}")

    def save_checkpoint(self, step: int, weights: Tensors, training: Tensors, state: Record) -> None:
        """Save beside, flush to the disk, rename: whoever looks finds a whole checkpoint or none.

        `state` names the best step so far as "best_step"; in a file of its own, a kill could leave it behind.
        """
        with saving(self._checkpoint(step).folder) as folder:
            save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
            save_file(training, folder / TRAINING)
            (folder / STATE).write_text(json.dumps(state), encoding="utf-8")
            files = {p.name: {"bytes": p.stat().st_size, "sha256": _sha256(p)} for p in sorted(folder.iterdir())}
            (folder / "manifest.json").write_text(json.dumps({"step": step, "files": files}), encoding="utf-8")

    def prune(self, keep: int) -> None:
        """Delete all checkpoints but the last `keep` and the best."""
        best = self.best_step()
        for checkpoint in self.checkpoints()[:-keep]:
            if checkpoint.step != best:
                shutil.rmtree(checkpoint.folder)


def require_unused(folder: Path) -> None:
    """Raises PenwrightError where a new run cannot be kept."""
    if folder.exists() and not folder.is_dir():
        raise PenwrightError(f"{folder} is a file: choose another --run")
    if folder.exists() and not _is_as_good_as_empty(folder):
        raise PenwrightError(f"{folder} is not empty: choose another --run, or --resume the run in it")


def _is_as_good_as_empty(folder: Path) -> bool:
    """Or left by a run that was stopped while its text was still being read."""
    if {path.name for path in folder.iterdir()} - BEFORE_TRAINING:
        return False
    kept = folder / "checkpoints"
    return not kept.exists() or not any(kept.iterdir())


@contextmanager
def saving(final: Path) -> Iterator[Path]:
    """A temporary folder that becomes `final` when the block ends well, and leaves nothing behind when it does not."""
    for left_over in final.parent.glob(f"{final.name}.tmp-*"):
        shutil.rmtree(left_over)
    folder = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    try:
        folder.mkdir(parents=True)
        yield folder
        for path in folder.iterdir():
            let_others_read(path)
            _flush(path)
        _flush(folder)
        if final.exists():
            shutil.rmtree(final)
        folder.replace(final)
        _flush(final.parent)
    except (OSError, SafetensorError) as error:
        raise PenwrightError(f"{final} could not be saved: {error}. What was saved before is intact.") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def let_others_read(path: Path) -> None:
    """As this user's other files are: what safetensors writes is for nobody else."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def write_atomically(path: Path, content: str) -> None:
    """Replace a file's content as a whole: after a kill or on a full disk the old content is still there."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        temporary.write_bytes(content.encode())
        _flush(temporary)
        temporary.replace(path)
    except UnicodeEncodeError as error:  # such as the name of a file that was chosen by name
        what = error.object[error.start : error.end]
        raise PenwrightError(f"{path} could not be written: {what!a} in it cannot be saved as UTF-8") from None
    except OSError as error:
        raise PenwrightError(f"{path} could not be written: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _as_json(record: Record, indent: int | None = None) -> str:
    """Letters as they are, unless a file has a name that is not UTF-8."""
    text = json.dumps(record, ensure_ascii=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(record, indent=indent)
    return text


def _load(path: Path) -> Tensors:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from None


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
