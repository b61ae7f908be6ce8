"""Torch devices, and the processors and the memory that this process may use."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from penwright.errors import PenwrightError, UsageError

CPU = torch.device("cpu")
DEVICES = ("cpu", "cuda", "mps")  # supported device types
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # parameters of mallopt(), as in glibc's malloc.h
# The control groups (cgroups) of the system: version 2 in this folder, version 1 in its subfolders.
CGROUPS = Path("/sys/fs/cgroup")
# The cgroups of this process, one per line, as HIERARCHY:CONTROLLERS:PATH. Version 2 names no controllers.
OWN_CGROUPS = Path("/proc/self/cgroup")
FEWEST_ALONE, MOST_ALONE = 16, 1024  # number of steps in one thread after several threads were too slow
SLOWER = 1.01  # factor by which the limit on a step's time may grow at each step, because contexts grow
TOO_LITTLE_MEMORY = (
    "a training step of this model does not fit in the memory of this device. Choose a smaller model.size, or lower "
    "training.batch_tokens (and raise training.accumulate to keep the batch size)"
)


def usable_device(name: str, setting: str = "device") -> torch.device:
    """Return the device; raise UsageError, naming the setting, if this machine cannot use it."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"{setting}: '{name}' cannot be used here: {_why_unusable(name, error)}") from None
    return device


def _why_unusable(name: str, error: Exception) -> str:
    """Return why this machine cannot use a device, and what to choose instead."""
    kind, _, number = name.partition(":")
    if kind not in DEVICES or (number and not number.isdecimal()):
        return f"there is no such device. Choose {', '.join(DEVICES[:-1])} or {DEVICES[-1]}"
    if kind == "cuda" and not torch.backends.cuda.is_built():
        return "this PyTorch was built without CUDA. Choose cpu, or install PyTorch for CUDA"
    if kind == "cuda" and torch.cuda.device_count() > 0:
        return f"{str(error).splitlines()[0]}. The highest GPU number is {torch.cuda.device_count() - 1}"
    return f"PyTorch finds no {'NVIDIA' if kind == 'cuda' else 'Apple'} GPU. Choose cpu"


def copy_to(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor to a device, in the background on an NVIDIA GPU if it comes from pinned memory.

    On an Apple GPU, an asynchronous copy may read the tensor after its memory was freed.
    """
    return tensor.to(device, non_blocking=device.type == "cuda")


def to_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Convert a tensor to float64. A tensor on an Apple GPU, which has no float64, is copied to the CPU first."""
    return (tensor.cpu() if tensor.is_mps else tensor).double()


def copy_to_cpu(*tensors: torch.Tensor) -> Callable[[], list[list[Any]]]:
    """Start copying tensors to the CPU; return a function that waits for the copies and returns them as lists.

    On an NVIDIA GPU, it does not wait for work that is queued after this call.
    """
    copies = [tensor.to("cpu", non_blocking=tensor.is_cuda) for tensor in tensors]
    copied = torch.cuda.current_stream(tensors[0].device).record_event() if tensors[0].is_cuda else None

    def wait() -> list[list[Any]]:
        if copied is not None:
            copied.synchronize()
        return [copy.tolist() for copy in copies]

    return wait


def n_processors() -> int:
    """Return the number of processors that this process may use. The machine may have more processors."""
    limits = [float(n_allowed())]
    for group in _control_groups("cpu"):
        version_2, version_1 = ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        for quota, period in filter(None, (_numbers(group, *names) for names in (version_2, version_1))):
            if quota > 0:  # version 1 of cgroups writes -1 for "no limit"
                limits.append(quota / period)
    return ceil(min(limits))


def limit_threads() -> None:
    """Limit the threads of torch to the processors that this process may use, for example in a container."""
    torch.set_num_threads(min(torch.get_num_threads(), n_processors()))


def n_allowed() -> int:
    """Return the number of processors on which this process may run. A container may also limit its CPU time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> float:
    """Return the number of bytes of memory that this process may use: the limit of the machine or the container."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else inf
    names = "memory.max", "memory.limit_in_bytes"
    limits = [n for group in _control_groups("memory") for name in names for n in _numbers(group, name)]
    return float(min([physical, *limits]))


def _control_groups(controller: str) -> Iterator[Path]:
    """Yield the control groups of this process and their ancestors. Each of them can have a limit of its own."""
    yield from (CGROUPS, CGROUPS / controller)  # in a container, the process's own control group is the root
    try:
        lines = OWN_CGROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:  # only Linux has control groups
        return
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers == "" or controller in controllers.split(","):
            own = Path(path.lstrip("/"))
            yield from (CGROUPS / (controller if controllers else "") / each for each in (own, *own.parents))


def _numbers(group: Path, *names: str) -> list[int]:
    """Return the numbers in these files of a control group, or [] if one is missing or says "max" (no limit)."""
    try:
        return [int(word) for name in names for word in (group / name).read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return []


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


class BackoffThreads:
    """A context manager that chooses torch's number of threads for each of many similar steps.

    If another program occupies a processor, threads wait for each other, and a step can take ten times as long as in
    one thread. So after a step that took longer than it would in one thread, the next steps run in one thread. Each
    time this happens again, their number doubles.
    """

    def __init__(self, n_threads: int, n_alone: int = 0):
        """Run the first `n_alone` steps in one thread; later steps do the same if several threads are slower."""
        self._n_threads, self._longest = n_threads, inf  # the longest time in seconds that a step may take
        self._n_alone = n_alone  # number of steps in one thread that are left
        self._next_alone = FEWEST_ALONE  # their number, the next time

    def __enter__(self) -> None:
        self._before, self._start = torch.get_num_threads(), perf_counter()
        torch.set_num_threads(1 if self._n_alone else self._n_threads)

    def __exit__(self, *_: object) -> None:
        took = perf_counter() - self._start
        torch.set_num_threads(self._before)
        if self._n_alone:
            self._n_alone -= 1
            self._longest = took
        elif took > self._longest:
            self._n_alone, self._next_alone = self._next_alone, min(2 * self._next_alone, MOST_ALONE)
        else:  # one thread takes at most n times as long as n threads
            self._longest = min(SLOWER * self._longest, (self._n_threads + 1) * took)
            self._next_alone = FEWEST_ALONE
