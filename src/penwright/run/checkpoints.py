"""Checkpoints of a run: written atomically, verified when they are read, never unpickled.

checkpoints/step-00001200/{model.safetensors, training.safetensors, state.json, manifest.json}

After sharded training, training-00000-of-00004.safetensors and so on replace training.safetensors: one file per rank.
"""

import json
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from penwright.errors import PenwrightError
from penwright.storage import (
    MOST_IN_SMALL,
    UnsafeFile,
    open_plain,
    parse_json,
    publish,
    read_json,
    require_plain,
    saving,
    sha256_of,
)

Tensors = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]
Record = dict[str, Any]  # a JSON object
WEIGHTS, TRAINING, STATE, MANIFEST = "model.safetensors", "training.safetensors", "state.json", "manifest.json"
SHARD = re.compile(r"training-(\d{5})-of-(\d{5})\.safetensors", re.ASCII)
FIRST = "first"  # folder of the first checkpoint, which contains only weights
EARLY = "early-"  # prefix of the folder names of early checkpoints, which contain only weights
NAME = re.compile(r"step-(\d{8,15})", re.ASCII)
MOST_IN_HEADER = 100_000_000  # maximum size of a header in bytes (the limit of safetensors)


Step = Annotated[int, Field(ge=0, lt=10**15)]


class DamagedCheckpoint(PenwrightError):
    """An error for a checkpoint that is incomplete or was changed after it was saved."""


class SavedFile(BaseModel):
    """The manifest entry of a file."""

    model_config = ConfigDict(strict=True)

    bytes: Annotated[int, Field(ge=0)]
    sha256: str


class Manifest(BaseModel):
    """The content of manifest.json."""

    model_config = ConfigDict(strict=True)

    step: int | None = None
    files: dict[str, SavedFile]


class Counters(BaseModel):
    """The training counters in a checkpoint."""

    model_config = ConfigDict(strict=True)

    step: Step
    total_steps: Step | None = None
    best_step: Step | None = None
    stopped_early: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether the training budget is spent, or training stopped early."""
        return self.stopped_early or (self.total_steps is not None and self.step >= self.total_steps)


class TensorHeader(BaseModel):
    """The entry of a tensor in the header of a safetensors file."""

    model_config = ConfigDict(strict=True)

    shape: list[Annotated[int, Field(ge=0)]]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk: its folder and its training step."""

    folder: Path
    step: int

    def verify(self, *names: str) -> None:
        """Raise DamagedCheckpoint if one of these files (default: all) is missing or has changed since it was saved."""
        manifest = self._manifest()
        for name in names or self._required(manifest):
            path, expected = self.folder / name, manifest.files[name]
            try:
                is_whole = path.lstat().st_size == expected.bytes and sha256_of(path) == expected.sha256
            except FileNotFoundError:
                raise DamagedCheckpoint(f"{path} is missing") from None
            except OSError as error:
                raise DamagedCheckpoint(f"{path} cannot be read: {error}") from None
            except UnsafeFile as error:
                raise DamagedCheckpoint(str(error)) from None
            if not is_whole:
                require_plain_part(path)
                raise DamagedCheckpoint(f"{path} is damaged: its content has changed since it was saved")

    def _required(self, manifest: Manifest) -> tuple[str, ...]:
        """Return the names of the files that this checkpoint must have."""
        if self.folder.name == FIRST or self.folder.name.startswith(EARLY):  # weights only
            return WEIGHTS, STATE
        size = next((int(match[2]) for match in map(SHARD.fullmatch, manifest.files) if match), 0)
        return WEIGHTS, STATE, *([shard_name(rank, size) for rank in range(size)] or [TRAINING])

    def _manifest(self) -> Manifest:
        path = self.folder / MANIFEST
        require_plain_part(self.folder)
        try:
            manifest = Manifest.model_validate(read_json(path, MOST_IN_SMALL))
        except UnsafeFile as error:
            raise DamagedCheckpoint(str(error)) from None
        except (OSError, ValueError):
            raise DamagedCheckpoint(f"{self.folder} has no readable {MANIFEST}") from None
        if missing := [name for name in self._required(manifest) if name not in manifest.files]:
            raise DamagedCheckpoint(f"{path} is damaged: it does not list {', '.join(missing)}")
        if manifest.step not in (None, self.step):
            raise DamagedCheckpoint(f"{path} is damaged or belongs to a different checkpoint (step {manifest.step})")
        return manifest

    @property
    def weights_sha256(self) -> str:
        """The checksum of the weights at the time they were saved."""
        return self._manifest().files[WEIGHTS].sha256

    def weights(self) -> Tensors:
        """Load the weights for inference."""
        return _load(self.folder / WEIGHTS)

    def training(self) -> Tensors:
        """Load the tensors that only training needs: raw weights, optimizer state, RNG states.

        If several ranks have saved parts of a tensor, the parts are joined along the rows.
        """
        parts: dict[str, list[Tensor]] = {}
        for name in self._required(self._manifest())[2:]:
            for key, tensor in _load(self.folder / name).items():
                parts.setdefault(key, []).append(tensor)
        try:
            return {key: tensors[0] if len(tensors) == 1 else torch.cat(tensors) for key, tensors in parts.items()}
        except RuntimeError as error:
            raise DamagedCheckpoint(f"{self.folder} has files that do not belong together: {error}") from None

    def state(self) -> Record:
        """Load the training counters and scores; raise DamagedCheckpoint if the file was changed."""
        self.verify(STATE)
        try:
            return read_json(self.folder / STATE, MOST_IN_SMALL)
        except (OSError, ValueError, UnsafeFile) as error:
            raise DamagedCheckpoint(f"{self.folder / STATE} cannot be read: {error}") from None

    def counters(self) -> Counters:
        """Load the part of the state that is needed outside training."""
        try:
            return Counters.model_validate(self.state())
        except ValidationError as error:
            raise DamagedCheckpoint(f"{self.folder / STATE} is damaged: {first_problem(error)}") from None

    def shapes(self) -> Shapes:
        """Read the shapes of the weights from the header of their file, without loading them."""
        path = self.folder / WEIGHTS
        try:
            return _shapes_in(path)
        except (OSError, ValueError, UnsafeFile) as error:
            raise DamagedCheckpoint(f"{path} cannot be read: {error}") from None


def require_plain_part(path: Path) -> None:
    """Raise DamagedCheckpoint if the path is a link, a pipe or a device."""
    try:
        require_plain(path)
    except UnsafeFile as error:
        raise DamagedCheckpoint(str(error)) from None


def save_checkpoint(checkpoint: Checkpoint, weights: Tensors, training: Tensors | None, state: Record) -> None:
    """Save a checkpoint atomically: write a temporary folder, flush it to disk, rename it.

    Readers see a complete checkpoint or none. Raises PenwrightError on failure; earlier checkpoints stay intact.
    """
    try:
        with saving(checkpoint.folder) as folder:
            save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
            if training is not None:
                save_file(training, folder / TRAINING)
            (folder / STATE).write_text(json.dumps(state), encoding="utf-8")
            write_manifest(folder, checkpoint.step, {path.name: saved_file(path) for path in sorted(folder.iterdir())})
    except (OSError, SafetensorError) as error:
        raise _not_saved(checkpoint, error) from None


def complete_checkpoint(checkpoint: Checkpoint, folder: Path, parts: Record, weights: Tensors, state: Record) -> None:
    """Complete a checkpoint after all ranks have saved their parts in a temporary folder, and rename the folder.

    `parts` holds their manifest entries. Raises PenwrightError on failure; earlier checkpoints stay intact.
    """
    try:
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        (folder / STATE).write_text(json.dumps(state), encoding="utf-8")
        write_manifest(folder, checkpoint.step, {**parts, **{n: saved_file(folder / n) for n in (WEIGHTS, STATE)}})
        publish(folder, checkpoint.folder)
    except (OSError, SafetensorError) as error:
        raise _not_saved(checkpoint, error) from None


def _not_saved(checkpoint: Checkpoint, error: Exception) -> PenwrightError:
    return PenwrightError(f"{checkpoint.folder} could not be saved: {error}. Earlier checkpoints are intact.")


def saved_file(path: Path) -> Record:
    """Return the manifest entry of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def write_manifest(folder: Path, step: int, files: Record) -> None:
    """Write the manifest of a checkpoint, with the entries of its files."""
    (folder / MANIFEST).write_text(json.dumps({"step": step, "files": files}), encoding="utf-8")


def shard_name(rank: int, size: int) -> str:
    """Return the name of the file with the training state of one rank."""
    return f"training-{rank:05d}-of-{size:05d}.safetensors"


def step_of(name: str) -> int | None:
    """Return the step in the name of a checkpoint folder; None for any other name."""
    match = NAME.fullmatch(name)
    return int(match[1]) if match and folder_name(int(match[1])) == name else None


def folder_name(step: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"step-{step:08d}"


def first_problem(error: ValidationError) -> str:
    """Return pydantic's first error in short form: `field: message`."""
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


def _shapes_in(path: Path) -> Shapes:
    """Read the tensor shapes from the header of a safetensors file: an 8-byte length, then JSON."""
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        if length > min(MOST_IN_HEADER, os.fstat(file.fileno()).st_size):
            raise ValueError(f"its header claims a length of {length:,} bytes")
        header = parse_json(file.read(length))
    header.pop("__metadata__", None)
    return {name: tuple(TensorHeader.model_validate(held).shape) for name, held in header.items()}


def _load(path: Path) -> Tensors:
    require_plain_part(path)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from None
    except RuntimeError:
        if path.exists():
            raise
        # torch opens the file a second time: training may have deleted it meanwhile
        raise DamagedCheckpoint(f"{path} is missing") from None
