"""Checks of torch devices, and control of their memory."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from penwright.errors import PenwrightError, UsageError

CPU = torch.device("cpu")
DEVICES = ("cpu", "cuda", "mps")  # supported device types
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # parameters of mallopt(), as in glibc's malloc.h
TOO_LITTLE_MEMORY = (
    "a training step of this model does not fit in the memory of this device. Choose a smaller model.size, or lower "
    "training.batch_tokens (and raise training.accumulate to keep the batch size)"
)


def usable_device(wanted: str, setting: str = "device") -> torch.device:
    """Return the device; raise UsageError, naming the setting, if this machine cannot use it."""
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"{setting}: '{wanted}' cannot be used here: {_why_unusable(wanted, error)}") from None
    return device


def _why_unusable(wanted: str, error: Exception) -> str:
    """Return why this machine cannot use a device, and what to choose instead."""
    kind, _, number = wanted.partition(":")
    if kind not in DEVICES or (number and not number.isdecimal()):
        return f"there is no such device. Choose {', '.join(DEVICES[:-1])} or {DEVICES[-1]}"
    if kind == "cuda" and not torch.backends.cuda.is_built():
        return "this PyTorch was built without CUDA. Choose cpu, or install PyTorch for CUDA"
    if kind == "cuda" and torch.cuda.device_count() > 0:
        return f"{str(error).splitlines()[0]}. The highest GPU number is {torch.cuda.device_count() - 1}"
    return f"PyTorch finds no {'NVIDIA' if kind == 'cuda' else 'Apple'} GPU. Choose cpu"


@contextmanager
def advise_on_out_of_memory() -> Iterator[None]:
    """Turn an out-of-memory error of a GPU inside the block into a PenwrightError with advice."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise PenwrightError(TOO_LITTLE_MEMORY) from None


def keep_freed_memory() -> None:
    """Make malloc reuse the memory of freed large tensors instead of requesting new pages at every step.

    The kernel fills each new page with zeros. This took a quarter of the time of a training step, and more in beam
    search with many beams (benchmarks/LOG.md). Only glibc has this option; with other C libraries, nothing changes.
    """
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_back_memory() -> None:
    """Return freed memory to the operating system. Call this before a process becomes idle."""
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def with_threads(n: int) -> Iterator[None]:
    """Set torch's number of threads inside the `with` block."""
    before = torch.get_num_threads()
    if n == before:
        yield
        return
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
