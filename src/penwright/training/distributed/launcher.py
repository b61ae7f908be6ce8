"""The start and end of training processes (ranks): torchrun's agent, stop signals, heartbeats.

Importing this module does not import torch.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any

from penwright.errors import Interrupted, PenwrightError
from penwright.storage import write_bytes_atomically

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

FOLDER = "PENWRIGHT_LAUNCH"  # environment variable through which ranks find the launcher's folder
RUN, ENSEMBLE, PROCESS, STOP, CODE = "run", "ensemble", "process", "stop", "code"  # files in that folder
INTERRUPTED = Interrupted.exit_code
NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
STOP_SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))  # Windows has no SIGHUP
ONE_REQUEST = 0.5  # signals within this many seconds count as one: service managers signal each process of a group
BEAT = 5.0  # seconds between two heartbeats
SILENT_BEATS = 18  # a rank counts as stopped if its neighbour sees no heartbeat for this many beats
BEATS_AFTER_END = 4  # number of heartbeats from the end of rank 0, or of a failed rank, until the other ranks end, too
OVER = "over"  # key in the store that is set when rank 0 has ended
LOST = "lost"  # key in the store with the number of another rank that failed


def launch(n: int, command: Sequence[str], max_restarts: int = 0) -> int:
    """Run `python -m command` as n ranks and return the exit code of rank 0.

    A stop signal is passed to rank 0. It saves the run, and all ranks end. A second signal ends all ranks. If a rank
    is killed, all ranks are ended. They restart up to `max_restarts` times; then an error names the rank.
    """
    with TemporaryDirectory(prefix="penwright-") as name:
        folder = Path(name)
        os.environ[FOLDER] = name
        logging.disable(logging.CRITICAL)  # torch's agent logs at length what the error below says in one line
        try:
            with stop_requests(lambda: _stop(folder)) as received:
                failure = _run_agent(n, command, max_restarts, folder)
        finally:
            del os.environ[FOLDER]
            logging.disable(logging.NOTSET)
        code = int(_read(folder / CODE) or 0)
        if failure is None or (code and (received or code != INTERRUPTED)):
            return code
        if received:
            raise Interrupted(f"stopped before rank 0 could save. {_remedy(n, folder)}")
        if failure.exitcode > 0:  # the rank has already printed its error message
            return int(failure.exitcode)
        where = f"rank {failure.local_rank} of {n} (process {failure.pid})"
        raise PenwrightError(f"{where} {how_it_ended(failure.exitcode)}. {_remedy(n, folder)}")


def _run_agent(n: int, command: Sequence[str], max_restarts: int, folder: Path) -> Any:
    """Run torchrun's agent, as `torchrun --standalone` does. Return the first failure of a rank, if there is one."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs  # noqa: PLC0415  # imports torch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415  # as above
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415  # as above

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=n,
        run_id=folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=max_restarts,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
        signals_to_handle="SIGQUIT",  # stop_requests() handles SIGINT, SIGTERM and SIGHUP
    )
    try:
        elastic_launch(config, sys.executable)("-P", "-m", *command)
    except ChildFailedError as error:
        return error.get_first_failure()[1]
    return None


def _stop(folder: Path) -> None:
    """Interrupt rank 0, now or as soon as it has started."""
    (folder / STOP).touch()
    if process := _read(folder / PROCESS):
        with suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGINT)


def _remedy(n: int, folder: Path) -> str:
    """Return advice on what the user can do after the ranks have ended."""
    if ensemble := _read(folder / ENSEMBLE):
        how = f"To continue, run the same command again with --run {quote(ensemble)}"
        return f"Everything saved so far is intact. {how}"
    run = _read(folder / RUN)
    if not run:
        return "Start training again"
    return f"Everything saved so far is intact. Resume with: penwright train --resume {quote(run)} --processes {n}"


def how_it_ended(code: int) -> str:
    """Describe the exit code of a process as a predicate: "failed with ...", "was ended by ..."."""
    if code >= 0:
        return f"failed with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # real-time signals have no name
        name = f"signal {-code}"
    return f"was ended by {name}" + (", perhaps because memory ran out" if name == "SIGKILL" else "")


def enter_rank() -> None:
    """Tell the launcher which process is rank 0. Raise Interrupted if the launcher was already asked to stop."""
    if env_int("RANK", 0) == 0 and (folder := _folder()):
        (folder / PROCESS).write_text(str(os.getpid()), encoding="ascii")
        if (folder / STOP).exists():
            raise Interrupted("interrupted")


def leave_rank(code: int) -> int:
    """Return the exit code of this rank. torchrun's agent treats any code but 0 as a crash, and may restart the ranks.

    The launcher gets the code of rank 0 through a file. Without a launcher, a stop on request also counts as success.
    """
    if env_int("RANK", 0) == 0 and (folder := _folder()):
        (folder / CODE).write_text(str(code), encoding="ascii")
        return 0
    return 0 if code == INTERRUPTED else code


def note_run(run: Path, file: str = RUN) -> None:
    """Tell the launcher, if any, which run is being trained. Write the file atomically: other ranks may read it.

    An ensemble notes the run of its student in the file ENSEMBLE, because its command goes on with other runs.
    """
    if folder := _folder():
        write_bytes_atomically(folder / file, str(run).encode("utf-8", "surrogateescape"))


def run_to_restart(given: Path | None, file: str = RUN) -> Path | None:
    """Return the folder that was noted in `file` if torchrun has restarted this process, otherwise None."""
    if not env_int("TORCHELASTIC_RESTART_COUNT", 0):
        return None
    folder = _folder()
    noted = _read(folder / file) if folder else ""
    return Path(noted) if noted else given


def job() -> str | None:
    """Return the id of torchrun's job, which its restarts share, or None if there is no job or it has no id."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return None if name in ("", "none") or not is_launched() else name


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


def _folder() -> Path | None:
    name = os.environ.get(FOLDER)
    return Path(name) if name else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ""


def treat_as_ctrl_c() -> None:
    """Make SIGTERM and SIGHUP act like Ctrl+C in this process, unless they are already handled or ignored."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.getsignal(signal.SIGINT))


@contextmanager
def stop_requests(on_request: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """Catch the first stop signal, and append its number to the yielded list. A second signal has its usual effect.

    The first signal also calls `on_request`.

    A hang-up never counts as the second signal, because a closing terminal sends several hang-ups. Under `nohup`,
    hang-ups stay ignored.
    """
    received: list[int] = []
    first_at = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal first_at
        if not received:
            received.append(number)
            first_at = monotonic()
            on_request()
        elif number != getattr(signal, "SIGHUP", None) and monotonic() - first_at >= ONE_REQUEST:
            _restore(before)
            signal.raise_signal(number)

    before = {}
    try:
        for number in STOP_SIGNALS:
            if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, note)
    except ValueError:  # only the main thread may handle signals
        before = {}
    try:
        yield received
    finally:
        _restore(before)


def _restore(handlers: "dict[signal.Signals, signal._HANDLER]") -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Heartbeat:
    """The heartbeat of a rank, and its check of the next rank's heartbeat.

    Time is counted in beats, not in seconds, so ranks do not seem stopped after the machine has slept.
    """

    def __init__(self, store: "Store", rank: int, size: int):
        self.store, self.rank, self.watched = store, rank, (rank + 1) % size
        self.n_beats = self.n_silent = self.n_over = self.n_lost = 0
        self.last = b""

    def beat(self) -> bool:
        """Send a heartbeat. Return whether the next rank has sent none for SILENT_BEATS beats."""
        self.n_beats += 1
        self.store.set(f"beat/{self.rank}", str(self.n_beats))
        key = f"beat/{self.watched}"
        sign = self.store.get(key) if self.store.check([key]) else b""
        self.n_silent = 0 if sign in (b"", b"left") or sign != self.last else self.n_silent + 1
        self.last = sign
        self.n_over += self.store.check([OVER])
        self.n_lost += self.store.check([LOST])
        return self.n_silent >= SILENT_BEATS

    def run(self, ended: Event) -> None:
        """Send heartbeats until this rank ends. End it if the next rank was stopped or torchrun's agent has ended.

        End it also if rank 0 has ended or another rank has failed: this rank may then wait in a collective, and NCCL
        only notices after minutes.
        """
        try:
            while not ended.wait(BEAT):
                is_next_stopped = self.beat()
                if self.n_lost >= BEATS_AFTER_END:
                    self._end("another rank has failed, so all ranks end" if self.rank == 0 else "")
                if self.n_over >= BEATS_AFTER_END:
                    self._end("", 0)
                if is_next_stopped:
                    self._end(
                        f"rank {self.watched} was stopped or cannot be reached: no sign of life for "
                        f"{BEAT * SILENT_BEATS:.0f} seconds. All ranks end. Everything saved so far is intact"
                    )
        except RuntimeError:  # the store is gone once torchrun's agent has ended
            if not ended.is_set():
                self._end("torchrun has ended, so this rank ends" if self.rank == 0 else "")

    @staticmethod
    def _end(reason: str, code: int = 1) -> None:
        if reason:
            sys.stderr.write(f"penwright: {reason}\n")
            sys.stderr.flush()
        os._exit(code)
