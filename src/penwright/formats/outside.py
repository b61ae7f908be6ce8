"""Helpers for exports: import an engine's package, check that it supports the settings, and copy tensors."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from penwright.config import ChatSettings, ModelSettings
from penwright.errors import PenwrightError


class ModelMetadata(NamedTuple):
    """The contents of a model's files besides the weights and the tokenizer."""

    labels: tuple[str, ...] = ()
    licence: str | None = None
    card: str = ""  # text of README.md: the origin of an imported model
    chat: ChatSettings | None = None  # the chat template, if the writer is a chat model


NO_METADATA = ModelMetadata()
Limits = Mapping[str, tuple[object, ...]]  # values that an engine supports, by key of [model]


def optional_package(name: str, extra: str) -> Any:
    """Import a module that only an extra of Penwright installs.

    Raises PenwrightError, with the installation command, if the module is missing.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise PenwrightError(
            f"cannot import {name}: {error}. Install it with: pip install 'penwright[{extra}]'"
        ) from error


def check_limits(settings: ModelSettings, limits: Limits, engine: str) -> None:
    """Raise PenwrightError, naming the unsupported settings, if an engine does not support a model."""
    table = settings.model_dump()
    table |= {f"{outer}.{key}": table[outer][key] for outer in ("positions", "norm") for key in table[outer]}
    unsupported = [
        f"model.{key} = {table[key]!r} (only {', '.join(map(repr, values))})"
        for key, values in limits.items()
        if table[key] not in values
    ]
    if unsupported:
        raise PenwrightError(f"{engine} cannot run this model. It does not support {'; '.join(unsupported)}")


def cpu_copy(tensor: Tensor) -> Tensor:
    """Return a contiguous float32 copy on the CPU that shares no memory with the model."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
