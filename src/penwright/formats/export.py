"""Shared code of the exports: metadata, the limits of engines, and atomic folder creation."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from penwright.config import ChatSettings, DecodingSettings, ModelSettings, Table
from penwright.errors import PenwrightError, UsageError
from penwright.model.embedding import rotary_frequencies, scaled
from penwright.storage import saving

if TYPE_CHECKING:
    from penwright.classification.linear import LinearClassifier


class ModelMetadata(NamedTuple):
    """The contents of a model's files besides the weights and the tokenizer."""

    labels: tuple[str, ...] = ()
    licence: str | None = None
    card: str = ""  # text of README.md: the origin of an imported model
    chat: ChatSettings | None = None  # the chat template, if the model is a chat model
    decoding: DecodingSettings = DecodingSettings()
    linear: "LinearClassifier | None" = None  # the n-gram classifier that a classifier is mixed with


NO_METADATA = ModelMetadata()
Limits = Mapping[str, tuple[object, ...]]  # values that an engine supports, by key of [model]


def check_limits(settings: ModelSettings, limits: Limits, problem: str, remedy: str = "") -> None:
    """Raise PenwrightError, naming the unsupported settings, if a model cannot be exported."""
    table = settings.model_dump()
    table |= {f"{outer}.{key}": table[outer][key] for outer in ("positions", "norm") for key in table[outer]}
    unsupported = [
        f"model.{key} = {table[key]!r} (only {', '.join(map(repr, values))})"
        for key, values in limits.items()
        if table[key] not in values
    ]
    if unsupported:
        raise PenwrightError(f"{problem}: {'; '.join(unsupported)}{remedy}")


def rope_factors(settings: ModelSettings) -> Tensor | None:
    """Return the factors by which RoPE scaling divides the frequencies; None without scaling."""
    if settings.positions.type != "rotary":
        return None
    scaling, base = settings.positions.scaling, settings.positions.base
    frequencies = rotary_frequencies(settings.d_head, base)
    return None if scaling is None else frequencies / scaled(frequencies, scaling, base)


def cpu_copy(tensor: Tensor) -> Tensor:
    """Return a contiguous float32 copy on the CPU that shares no memory with the model."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous()


def write_card(metadata: ModelMetadata, folder: Path) -> None:
    """Write README.md with the origin of an imported model. For other models, write nothing."""
    if metadata.card:
        (folder / "README.md").write_text(metadata.card, encoding="utf-8")


def write_table(path: Path, content: Table | Sequence[Table]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder` if the block succeeds, and is deleted if it fails.

    Raises UsageError if the folder already exists and is not empty.
    """
    _require_empty(folder)
    try:
        with saving(folder, is_locked=False) as unfinished:
            yield unfinished
            _require_empty(folder)  # another program may have created files there in the meantime
    except OSError as error:
        raise PenwrightError(f"{folder} cannot be written: {error}") from error


def _require_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} already exists and is not an empty folder. Choose a new folder for the export")
