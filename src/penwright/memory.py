"""How the C library deals with the memory of tensors that come and go at every step."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


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
