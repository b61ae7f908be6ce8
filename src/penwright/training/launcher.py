"""Start several training processes (ranks) on this machine, and watch them. This module does not import torch."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from socket import socket
from time import monotonic

from penwright.errors import Interrupted, PenwrightError
from penwright.training.rank_table import LAUNCHER, TABLE, Field, RankTable, guard, how_it_ended, make_shared_file
from penwright.training.signals import stop_requests

TICK = 0.2  # seconds between two checks of the ranks
GRACE = 10.0  # seconds that the other ranks get to end by themselves after a rank has ended
HUNG = 60.0  # seconds without progress after which a rank counts as hung
HUNG_AT_FIRST = 600.0  # the same limit during the first steps, which take longer
HUNG_WHEN_ASKED = 10.0  # the same limit after a stop request
STEPS_AT_FIRST = 2
PATIENCE = 5  # a rank counts as hung only if it lags this many times longer than the longest lag so far
Process = subprocess.Popen[bytes]


def launch(n: int, command: Sequence[str]) -> int:
    """Run `python -m command` as n ranks and return the exit code of rank 0.

    A stop signal is passed to rank 0. It saves the run, and all ranks end. A second signal ends all ranks at once. If a
    rank hangs, is stopped or dies, all ranks are ended, and an error names that rank.
    """
    with stop_requests() as received, _started(n, command) as (ranks, table):
        return Watch(ranks, table, received).exit_code()


@contextmanager
def _started(n: int, command: Sequence[str]) -> Iterator[tuple[list[Process], RankTable]]:
    """Start the ranks and yield them with their table. No rank outlives the block."""
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    environment |= {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n)}
    start: partial[Process] = partial(subprocess.Popen, [sys.executable, "-m", *command])
    table = RankTable(n)
    if os.name == "posix":  # Windows cannot pass on descriptors, so the progress of ranks is not watched there
        shared = make_shared_file(n)
        table = RankTable(n, shared)
        environment |= {TABLE: str(shared), LAUNCHER: str(os.getpid())}
        # Each rank gets its own session, so that Ctrl+C reaches rank 0 once, through the launcher.
        start = partial(start, start_new_session=True, pass_fds=(shared,))
    ranks: list[Process] = []
    try:
        for rank in range(n):
            ranks.append(start(env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}))
        yield ranks, table
    finally:
        for process in ranks:
            process.kill()
        for process in ranks:
            with suppress(subprocess.TimeoutExpired):  # the process may hang in an uninterruptible system call
                process.wait(GRACE)


class Watch:
    """A watcher that waits for the ranks and finds those that died, were stopped or hang.

    Time is counted in short ticks. If the launcher or the machine sleeps, the ranks therefore do not seem hung.
    """

    def __init__(self, ranks: Sequence[Process], table: RankTable, received: list[int]):
        """Watch these ranks. `received` collects the signals that ask the launcher to stop."""
        self.ranks, self.table, self.received = ranks, table, received
        self.passed_on = False
        self.seconds_stopped = [0.0] * len(ranks)
        self.seconds_alone = 0.0  # seconds since another rank failed
        self.lag = self.longest_lag = self.wait = 0.0
        self.collectives: list[int] = []
        self.compilations: list[int] = []
        self.waits = 0

    def exit_code(self) -> int:
        """Wait until all ranks have ended and return the exit code of rank 0.

        Raises PenwrightError or Interrupted if a rank hung, died or could not save.
        """
        before = monotonic()
        while self.ranks[0].poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self.ranks[0].wait(TICK)
            now = monotonic()
            self.check(min(now - before, 5 * TICK))
            before = now
        self._wait_for_others()
        code = self.ranks[0].returncode
        if code < 0 and self.received:
            raise Interrupted(f"stopped before rank 0 could save. {self.table.remedy}")
        if code < 0:
            raise PenwrightError(f"{self._name(0)} {how_it_ended(code)}. {self.table.remedy}")
        return code

    def check(self, seconds: float) -> None:
        """Raise an error, naming the rank, if a rank cannot continue. `seconds` is the time since the last check."""
        if self.received and not self.passed_on:
            self.ranks[0].terminate()
            self.passed_on = True
        self._find_dead(seconds)
        self._find_stopped(seconds)
        self._find_stuck(seconds)

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether a stop was requested."""
        return bool(self.received or self.table.get(0, Field.ASKED))

    def _find_dead(self, seconds: float) -> None:
        failed = [rank for rank, process in enumerate(self.ranks) if rank and process.poll()]
        for rank in failed:
            self.table.set(
                rank, Field.ENDED, self.ranks[rank].returncode
            )  # rank 0 reports the exit code when the connection breaks
        self.seconds_alone += seconds if failed else 0.0
        if self.seconds_alone > GRACE and self.ranks[0].poll() is None:
            rank = failed[0]
            raise PenwrightError(f"{self._name(rank)} {how_it_ended(self.ranks[rank].returncode)}. {self.table.remedy}")

    def _find_stopped(self, seconds: float) -> None:
        for rank, process in enumerate(self.ranks):
            self.seconds_stopped[rank] = self.seconds_stopped[rank] + seconds if _is_stopped(process) else 0.0
            limit = HUNG_WHEN_ASKED if self.is_asked_to_stop and rank == 0 else HUNG
            if self.seconds_stopped[rank] > limit:
                self._report([rank], limit)

    def _find_stuck(self, seconds: float) -> None:
        """Report ranks that keep the others waiting within a step, unless a rank is compiling."""
        collectives, compilations = self.table.column(Field.COLLECTIVES), self.table.column(Field.COMPILATIONS)
        waits = self.table.get(0, Field.WAITS)
        moved = collectives != self.collectives or compilations != self.compilations
        compiling = any(number % 2 for number in compilations)
        if moved and min(self.table.column(Field.STEPS)) > STEPS_AT_FIRST:
            self.longest_lag = max(self.longest_lag, self.lag)
        behind = [rank for rank, number in enumerate(collectives) if number < max(collectives)]
        self.lag = 0.0 if moved or compiling or not behind else self.lag + seconds
        self.wait = 0.0 if moved or compiling or waits != self.waits or waits % 2 == 0 else self.wait + seconds
        self.collectives, self.compilations, self.waits = collectives, compilations, waits
        at_first = min(self.table.column(Field.STEPS)) < STEPS_AT_FIRST
        limit = HUNG_WHEN_ASKED if self.is_asked_to_stop else HUNG_AT_FIRST if at_first else HUNG
        limit = max(limit, PATIENCE * self.longest_lag)
        if self.lag > limit or (self.is_asked_to_stop and self.wait > limit):
            self._report(behind or list(range(1, len(self.ranks))), limit)

    def _report(self, ranks: Sequence[int], seconds: float) -> None:
        """Raise the error for ranks that hang or were stopped."""
        names = " and ".join(self._name(rank) for rank in ranks)
        state = "was stopped" if _is_stopped(self.ranks[ranks[0]]) else "did not respond"
        if self.is_asked_to_stop:
            raise Interrupted(f"ended without saving the last steps, because {names} {state}. {self.table.remedy}")
        raise PenwrightError(f"{names} {state} for {seconds:.0f} seconds, so all ranks were ended. {self.table.remedy}")

    def _wait_for_others(self) -> None:
        until = monotonic() + GRACE
        for process in self.ranks[1:]:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - monotonic()))

    def _name(self, rank: int) -> str:
        return f"rank {rank} of {len(self.ranks)} (process {self.ranks[rank].pid})"


def _is_stopped(process: Process) -> bool:
    """Return whether a signal (e.g. SIGSTOP) has stopped the process."""
    if not hasattr(os, "waitid"):  # macOS lacks waitid before Python 3.13
        return False
    try:
        return os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # the process has ended
        return False


def _free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_launched() -> bool:
    """Return whether this process is one of several ranks, started by `launch` or by torchrun."""
    return env_int("WORLD_SIZE", 1) > 1 and {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ)


def n_here() -> int:
    """Return the number of ranks on this machine."""
    return env_int("LOCAL_WORLD_SIZE", 1)


def env_int(name: str, otherwise: int) -> int:
    """Return the integer in an environment variable, or `otherwise` if the variable is not set."""
    try:
        return int(os.environ.get(name, otherwise))
    except ValueError:
        return otherwise


def guard_this_rank() -> None:
    """If this process is one of several ranks, make it end with its launcher."""
    if is_launched():
        guard(env_int("RANK", 0), env_int("WORLD_SIZE", 1))
