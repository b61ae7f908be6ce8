"""Devices that torch knows: whether one can be used here, and what to do where its memory is too small."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from penwright.errors import PenwrightError, UsageError

CPU = torch.device("cpu")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h
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


def keep_freed_memory() -> None:
    """Have it reuse the memory of large tensors, where it would ask for fresh pages at every step.

    The system clears such pages one by one: a quarter of a training step, and more of one of many beams
    (benchmarks/LOG.md). Only glibc has this.
    """
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_back_memory() -> None:
    """Give memory that is free back to the system, for a process that will be idle for a while."""
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
