"""Worker processes that share requests, for models too small to gain from a second thread.

Python threads would not help: a compiled step holds its lock from beginning to end (benchmarks/LOG.md).
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


class _Worker(NamedTuple):
    """A forked process that waits for requests."""

    process: ForkProcess
    connection: Connection


class WorkerPool(Generic[Request, Result]):
    """This process and forked copies of it, which share requests, each on one thread.

    Workers start when they are first needed, with the state that `work` has then. Only requests and results are sent.
    Workers end with this object, with this process, or after an error. Where forking is not safe, this process does all
    the work.
    """

    def __init__(self, work: Callable[[Request], Result], size: int):
        self._work, self.size = work, size
        self._workers: list[_Worker] = []
        weakref.finalize(self, _stop, self._workers)

    def __call__(self, requests: Sequence[Request]) -> list[Result]:
        """Return work(request) for each of at most `size` requests, in order; raise what a worker raises."""
        if len(requests) < 2 or not _can_fork():
            return [self._work(request) for request in requests]
        self._start()
        try:
            for worker, request in zip(self._workers, requests[1:], strict=False):
                _send(worker.connection, request)
            with with_threads(1):
                results = [self._work(requests[0])]
            return results + [
                cast(Result, _received(worker.connection)) for worker in self._workers[: len(requests) - 1]
            ]
        except BaseException:  # late answers would be taken for answers to the next requests
            _stop(self._workers)
            raise

    def _start(self) -> None:
        if not all(worker.process.is_alive() for worker in self._workers):
            _stop(self._workers)
        context = multiprocessing.get_context("fork")
        while len(self._workers) < self.size - 1:
            here, there = context.Pipe()
            others = [here, *(worker.connection for worker in self._workers)]
            process = context.Process(target=_serve, args=(self._work, there, others), daemon=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # idle threads hold no locks
                process.start()
            there.close()
            self._workers.append(_Worker(process, here))


def _can_fork() -> bool:
    """Return whether forking is safe: a lock held by another thread would stay locked in the child forever."""
    alone = threading.active_count() == 1 and threading.current_thread() is threading.main_thread()
    return sys.platform == "linux" and alone and not torch.cuda.is_initialized()


def _stop(copies: list[_Worker]) -> None:
    while copies:
        process, connection = copies.pop()
        connection.close()
        process.terminate()
        process.join()


def _serve(work: Callable[[Request], Result], connection: Connection, others: Sequence[Connection]) -> None:
    """Answer requests until the parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the parent, which ends the workers
    torch.set_num_threads(1)
    for other in others:
        other.close()  # an open copy of the parent's end would hide that the parent has ended
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
        raise _worker_killed() from None


def _received(connection: Connection) -> object:
    try:
        error, result = connection.recv()
    except (EOFError, OSError):
        raise _worker_killed() from None
    if error is not None:
        raise error
    return result


def _worker_killed() -> PenwrightError:
    return PenwrightError(
        "a worker process was killed, perhaps because memory ran out. "
        "Set OMP_NUM_THREADS=1 to translate in a single process."
    )
