"""Work shared out among processes, for models so small that more threads than one do not help.

Threads of Python would not do: a compiled step holds its lock from beginning to end (benchmarks/LOG.md).
"""

import multiprocessing
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Generic, NamedTuple, TypeVar, cast

import torch

from penwright.decoding.ahead_of_time import with_threads
from penwright.errors import PenwrightError

Request = TypeVar("Request")
Result = TypeVar("Result")


class _Copy(NamedTuple):
    """A process that waits for requests."""

    process: ForkProcess
    connection: Connection


class Team(Generic[Request, Result]):
    """This process and copies of it, which do the same work on other requests, each on one thread.

    Copies begin when they are first needed, so they have all that `work` needs as it is then; only requests and
    results travel. They end with this object or this process, or when something goes wrong. Where copies are not
    safe, everything is done here.
    """

    def __init__(self, work: Callable[[Request], Result], size: int):
        self._work, self.size = work, size
        self._copies: list[_Copy] = []
        weakref.finalize(self, _end, self._copies)

    def __call__(self, requests: Sequence[Request]) -> list[Result]:
        """work(request) for each of at most `size` requests, in this order; what one raises is raised here."""
        if len(requests) < 2 or not _may_copy():
            return [self._work(request) for request in requests]
        self._begin()
        try:
            for copy, request in zip(self._copies, requests[1:], strict=False):
                _send(copy.connection, request)
            with with_threads(1):
                results = [self._work(requests[0])]
            return results + [cast(Result, _received(copy.connection)) for copy in self._copies[: len(requests) - 1]]
        except BaseException:  # what others still answer would be taken for answers to the next requests
            _end(self._copies)
            raise

    def _begin(self) -> None:
        if not all(copy.process.is_alive() for copy in self._copies):
            _end(self._copies)
        context = multiprocessing.get_context("fork")
        while len(self._copies) < self.size - 1:
            here, there = context.Pipe()
            others = [here, *(copy.connection for copy in self._copies)]
            process = context.Process(target=_serve, args=(self._work, there, others), daemon=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which wait for work without locks
                process.start()
            there.close()
            self._copies.append(_Copy(process, here))


def _may_copy() -> bool:
    """A copy has only the thread that makes it: locks of others would stay locked in it for ever."""
    alone = threading.active_count() == 1 and threading.current_thread() is threading.main_thread()
    return sys.platform == "linux" and alone and not torch.cuda.is_initialized()


def _end(copies: list[_Copy]) -> None:
    while copies:
        process, connection = copies.pop()
        connection.close()
        process.terminate()
        process.join()


def _serve(work: Callable[[Request], Result], connection: Connection, others: Sequence[Connection]) -> None:
    """Answer requests until the first process is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the first process, which ends the others
    torch.set_num_threads(1)
    for other in others:
        other.close()  # while any copy of the other end is open, nobody notices that the first process has gone
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[Exception | None, Result | None] = (None, work(request))
        except Exception as error:
            answer = (error, None)
        connection.send(answer)


def _send(connection: Connection, request: object) -> None:
    try:
        connection.send(request)
    except OSError:
        raise _gone() from None


def _received(connection: Connection) -> object:
    try:
        error, result = connection.recv()
    except (EOFError, OSError):
        raise _gone() from None
    if error is not None:
        raise error
    return result


def _gone() -> PenwrightError:
    return PenwrightError(
        "a process that shared the work was ended from outside, perhaps for want of memory; "
        "OMP_NUM_THREADS=1 does without it"
    )
