"""Work shared out among processes, for models so small that more threads than one do not help.

Threads of Python would not do: a compiled step holds its lock from beginning to end (benchmarks/LOG.md).
"""

import multiprocessing
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TypeVar

import torch

from penwright.decoding.ahead import with_threads
from penwright.errors import PenwrightError

Result = TypeVar("Result")
Answer = tuple[Exception | None, Sequence[Result]]


def shared_out(work: Callable[[int], Result], n: int, n_processes: int) -> list[Result]:
    """work(0) to work(n - 1), in this order, by so many processes at a time, each on one thread.

    The others begin as copies of this one, so that they have all that `work` needs, and only results travel. What one
    of them raises is raised here. Where such copies are not safe, everything is done here.
    """
    n_processes = min(n, n_processes) if _may_copy() else 1
    if n_processes < 2:
        return [work(number) for number in range(n)]
    found: dict[int, Result] = {}
    shares = [range(first, n, n_processes) for first in range(n_processes)]
    with _copies(work, shares[1:]) as answers, with_threads(1):
        found |= {number: work(number) for number in shares[0]}
        for share, connection in zip(shares[1:], answers, strict=True):
            found |= zip(share, _received(connection), strict=True)
    return [found[number] for number in range(n)]


def _may_copy() -> bool:
    """A copy has only the thread that makes it: locks of others would stay locked in it for ever."""
    alone = threading.active_count() == 1 and threading.current_thread() is threading.main_thread()
    return sys.platform == "linux" and alone and not torch.cuda.is_initialized()


@contextmanager
def _copies(work: Callable[[int], Result], shares: Sequence[range]) -> Iterator[list[Connection]]:
    """Processes that do these shares, and end with the block at the latest; gives where their answers come from."""
    context = multiprocessing.get_context("fork")
    connections, processes = [], []
    try:
        for share in shares:
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_help, args=(work, share, there), daemon=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which wait for work without locks
                process.start()
            there.close()
            connections.append(here)
            processes.append(process)
        yield connections
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _help(work: Callable[[int], Result], share: range, answer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the first process, which ends the others
    torch.set_num_threads(1)
    try:
        found: Answer[Result] = (None, [work(number) for number in share])
    except Exception as error:
        found = (error, [])
    answer.send(found)


def _received(connection: Connection) -> Sequence[Result]:
    try:
        error, found = connection.recv()
    except EOFError:
        raise PenwrightError(
            "a process that shared the work was ended from outside, perhaps for want of memory; "
            "OMP_NUM_THREADS=1 does without it"
        ) from None
    if error is not None:
        raise error
    return found
