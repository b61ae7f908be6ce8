"""What every format of another engine asks: that its package is here, and that it can hold the model's settings."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from penwright.config import ModelSettings
from penwright.errors import PenwrightError

Limits = Mapping[str, tuple[object, ...]]  # keys of [model], and the values that a format can hold


def optional_package(name: str, extra: str) -> Any:
    """A module of a package that only an extra of ours installs; raises PenwrightError that says how to get it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise PenwrightError(f"this needs {name} ({error}); get it with: pip install 'penwright[{extra}]'") from error


def check_limits(settings: ModelSettings, limits: Limits, engine: str) -> None:
    """Raise PenwrightError that names the settings which have no equal in an engine."""
    table = settings.model_dump()
    table |= {f"{outer}.{key}": table[outer][key] for outer in ("positions", "norm") for key in table[outer]}
    lost = [
        f"model.{key} = {table[key]!r} (it has only {', '.join(map(repr, values))})"
        for key, values in limits.items()
        if table[key] not in values
    ]
    if lost:
        raise PenwrightError(f"{engine} cannot run this model: it has no {'; no '.join(lost)}")


def copied(tensor: Tensor) -> Tensor:
    """In float32 on the CPU, and not the memory of the model itself."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
