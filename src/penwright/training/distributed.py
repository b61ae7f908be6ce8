"""Training by several processes, each on its rows of every batch: the only file that knows of ranks.

The first one leads: it reads, plans, looks, saves, and says what to compute; the others follow. Batches are those of a
single process and gradients are summed over all rows, so that more processes change how soon a model is learned, and
not what it learns (but for what dropout drops, and the order in which floats are added).

They are told of each other as torchrun tells its own, so that it can start them, too.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from time import monotonic
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from penwright.data.batches import AnyBatch
from penwright.errors import PenwrightError
from penwright.run.folder import Record

PATIENCE = timedelta(days=7)  # of those who follow, while the first one prepares a corpus or looks at a model
GRACE = 20.0  # seconds that a process has to notice that another one has gone


@dataclass
class Ranks:
    """The processes that train together, of which this is one."""

    rank: int = 0  # of this one
    size: int = 1
    line: "dist.ProcessGroup | None" = None  # for what the first one tells
    failed: int | None = None  # what to exit with, where the first one fails while the others compute

    @property
    def leads(self) -> bool:
        """Whether this is the first one."""
        return self.rank == 0

    def share(self, batch: AnyBatch) -> AnyBatch | None:
        """This process's rows of a batch; None where it has too few for all."""
        if self.size == 1:
            return batch
        return batch.every(self.size, self.rank) if self.rank < batch.n_rows else None

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Put the sum over all processes in place of each."""
        if self.size > 1:
            flat = parameters_to_vector(tensors)
            with _in_touch():
                dist.all_reduce(flat)
            vector_to_parameters(flat, tensors)

    def divide(self, work: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """work(rows), of which each process does some, where what it makes of a row depends on that row alone."""
        if self.size == 1:
            return work(rows)
        done = torch.zeros_like(rows)
        if self.rank < len(rows):
            done[self.rank :: self.size] = work(rows[self.rank :: self.size])
        with _in_touch():
            dist.all_reduce(done)
        return done

    def roll(self, *numbers: int) -> None:
        """Seed torch's dice by these numbers, and differently in each process that follows; the first one's go on.

        So that there is nothing to save of those who follow.
        """
        if not self.leads:
            torch.manual_seed(hash((self.rank, *numbers)))

    def meet(self) -> None:
        """Wait until all have come here."""
        if self.size > 1:
            with _in_touch():
                dist.barrier(self.line)

    def tell(self, message: Record | None) -> None:
        """What all others hear next; to be called by the first."""
        if self.size > 1:
            said = torch.tensor(list(json.dumps(message).encode()), dtype=torch.uint8)
            with _in_touch():
                dist.broadcast(torch.tensor([len(said)]), 0, self.line)
                dist.broadcast(said, 0, self.line)

    def hear(self) -> Record | None:
        """What the first one tells next; None too where it has gone."""
        length = torch.zeros(1, dtype=torch.int64)
        try:
            dist.broadcast(length, 0, self.line)
            said = torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(said, 0, self.line)
        except RuntimeError:
            return None
        message: Record | None = json.loads(bytes(said.tolist()))
        return message

    @contextmanager
    def led(self, work: Record) -> Iterator[None]:
        """Tells the others what this is about, and when it is over; begins once all are ready."""
        self.tell(work)
        self.meet()
        try:
            yield
        except PenwrightError:
            self.tell(None)
            raise
        except BaseException as error:  # perhaps within a step, where nobody hears what is told
            self.failed = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
            raise
        self.tell(None)

    def leave(self) -> None:
        """End all together, and the threads that listen before Python ends."""
        if self.failed is not None and self.size > 1:
            sys.stderr.flush()
            os._exit(self.failed)  # at once, since the others wait for what never comes
        if self.leads:
            with suppress(PenwrightError):
                self.tell(None)
        self.line = None
        dist.destroy_process_group()


ALONE = Ranks()


@contextmanager
def _in_touch() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # as of a GPU that others cannot reach
        reason = str(error).strip().partition("\n")[0]
        raise PenwrightError(
            "another of the processes that train together has gone, or cannot be reached "
            f"({reason}). What was saved is sound: go on with penwright train --resume"
        ) from None


@cache
def join() -> Ranks:
    """All that were started together, once each of them has come here; ALONE where this is the only one."""
    if not is_launched():
        return ALONE
    import torch.distributed.nn  # noqa: PLC0415  # imported later, as by compiling, it would keep the group for ever

    local = _told("LOCAL_RANK", 0)
    if torch.cuda.is_available() and local < torch.cuda.device_count():
        torch.cuda.set_device(local)
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    # both named: by itself torch takes NCCL alone where it was built with it, be there a GPU or not
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_nccl else "gloo")
    line = dist.new_group(timeout=PATIENCE, backend="gloo")
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), line)
    atexit.register(ranks.leave)
    return ranks


def joined() -> Ranks:
    """Those that join() brought together; ALONE where it was not called."""
    return join() if dist.is_available() and dist.is_initialized() else ALONE


def launch(n: int, command: Sequence[str]) -> int:
    """Run this module with these arguments in so many processes here; returns the exit code of the first.

    It is the first that is told of Ctrl+C and the like, and the others end with it.
    """
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    together = {**address, "WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, **together, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,  # so that a terminal's Ctrl+C reaches the first one once, by way of us
        )
        for rank in range(n)
    ]
    _pass_signals_to(processes[0])
    try:
        code = _outcome(processes)
    finally:
        for process in processes:
            process.kill()
    if code < 0:
        raise PenwrightError(
            f"a process was ended by {signal.Signals(-code).name}, perhaps for want of memory. What was saved is "
            "sound: go on with penwright train --resume"
        )
    return code


def _outcome(processes: Sequence["subprocess.Popen[bytes]"]) -> int:
    """The exit code of the first process; of another one that failed where the first one does not notice."""
    first, *others = processes
    code = None
    while code is None:
        with suppress(subprocess.TimeoutExpired):
            code = first.wait(0.2)
        failed = next((each for each in others if each.poll()), None)
        if code is None and failed is not None:
            with suppress(subprocess.TimeoutExpired):
                return first.wait(GRACE)
            return failed.returncode
    until = monotonic() + GRACE
    for each in others:  # which end by themselves, once it has gone
        with suppress(subprocess.TimeoutExpired):
            each.wait(max(0.0, until - monotonic()))
    return code


def _pass_signals_to(process: "subprocess.Popen[bytes]") -> None:
    def passed(number: int, frame: FrameType | None) -> None:
        process.send_signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    names = ("SIGINT", "SIGTERM", "SIGHUP")
    for number in (getattr(signal, name) for name in names if hasattr(signal, name)):  # Windows has fewer
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, passed)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def is_launched() -> bool:
    """Whether this is one of several processes."""
    return _told("WORLD_SIZE", 1) > 1 and {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ)


def n_here() -> int:
    """Processes that share this machine."""
    return _told("LOCAL_WORLD_SIZE", 1)


def _told(name: str, otherwise: int) -> int:
    """What the environment says of a process."""
    try:
        return int(os.environ.get(name, otherwise))
    except ValueError:
        return otherwise
