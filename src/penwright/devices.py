"""Devices that torch knows: whether one can be used here, and what to do where its memory is too small."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from penwright.errors import PenwrightError, UsageError

CPU = torch.device("cpu")
TOO_LITTLE_MEMORY = (
    "the memory of this device cannot hold a step of this model: choose a smaller model.size, or fewer "
    "training.batch_tokens (with training.accumulate for as many in all)"
)


def usable_device(wanted: str, setting: str = "device") -> torch.device:
    """Raises UsageError, which names the setting, where this machine has no such device."""
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"{setting}: '{wanted}' cannot be used here: {str(error).splitlines()[0]}") from None
    return device


@contextmanager
def within_memory() -> Iterator[None]:
    """Of training; raises PenwrightError where the memory of a GPU does not suffice."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise PenwrightError(TOO_LITTLE_MEMORY) from None
