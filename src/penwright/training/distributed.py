"""Training by several processes (ranks), each on its rows of every batch: the only file that knows of collectives.

Rank 0 leads: it reads, plans, evaluates, saves, and says what to compute; the others follow. Batches are those of a
single process and gradients are summed over all rows, so that more processes change how soon a model is learned, and
not what it learns (but for what dropout drops, and the order in which floats are added).

Ranks find each other by the environment variables of torchrun, so that it can start them, too.
"""

import atexit
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from time import sleep

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from penwright.data.batches import AnyBatch
from penwright.errors import PenwrightError
from penwright.run.folder import Record
from penwright.training.launcher import is_launched, told
from penwright.training.rank_table import Field, RankTable, how_it_ended

PATIENCE = timedelta(days=7)  # of ranks that wait while rank 0 prepares a corpus or evaluates; the launcher watches it
NOTICED = 1.0  # seconds in which the launcher notices that a rank has ended


@dataclass
class Ranks:
    """The processes that train together, of which this is one."""

    rank: int = 0  # of this one
    size: int = 1
    line: "dist.ProcessGroup | None" = None  # for what rank 0 tells
    failed: int | None = None  # the exit code if rank 0 fails while the others compute
    table: RankTable = field(default_factory=lambda: RankTable(1))  # progress, for the launcher
    notes_compilations: bool = False

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
            self.table.count(self.rank, Field.STEPS)
            with self._in_touch(within_step=True):
                dist.all_reduce(flat)
            vector_to_parameters(flat, tensors)

    def divide(self, work: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """work(rows), of which each process does some, where what it makes of a row depends on that row alone."""
        if self.size == 1:
            return work(rows)
        done = torch.zeros_like(rows)
        if self.rank < len(rows):
            done[self.rank :: self.size] = work(rows[self.rank :: self.size])
        with self._in_touch(within_step=True):
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
            with self._in_touch():
                dist.barrier(self.line)

    def tell(self, message: Record | None) -> None:
        """What all others hear next; to be called by the first."""
        if self.size > 1:
            said = torch.tensor(list(json.dumps(message).encode()), dtype=torch.uint8)
            with self._in_touch():
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
        """Tell the others what to work on, and when it is over; begin once all are ready."""
        self.table.keep_folder(work["run"])
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

    def note_compilations(self) -> None:
        """From now on, tell the launcher when this rank compiles, which may take minutes."""
        if self.size == 1 or self.notes_compilations:
            return
        from torch._dynamo.callback import callback_handler  # noqa: PLC0415  # loads the compiler

        self.notes_compilations = True
        callback_handler.register_start_callback(lambda _: self.table.count(self.rank, Field.COMPILATIONS))
        callback_handler.register_end_callback(lambda _: self.table.count(self.rank, Field.COMPILATIONS))

    @contextmanager
    def _in_touch(self, *, within_step: bool = False) -> Iterator[None]:
        """Note in the table that this rank waits for the others; raise PenwrightError when one of them has gone."""
        self.table.count(self.rank, Field.WAITS)
        if within_step:
            self.table.count(self.rank, Field.COLLECTIVES)
        try:
            yield
        except RuntimeError as error:  # a closed connection, or a GPU that others cannot reach
            raise PenwrightError(self._who_has_gone(str(error).strip().partition("\n")[0])) from None
        finally:
            self.table.count(self.rank, Field.WAITS)

    def _who_has_gone(self, reason: str) -> str:
        sleep(NOTICED if self.table.is_shared else 0.0)
        for rank, code in enumerate(self.table.column(Field.ENDED)):
            if code:
                return f"rank {rank} of {self.size} has gone: it {how_it_ended(code)}. {self.table.remedy}"
        return f"another rank has gone, or cannot be reached ({reason}). {self.table.remedy}"

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


@cache
def join() -> Ranks:
    """Return the ranks once all of them have come here; ALONE if this process is the only one."""
    if not is_launched():
        return ALONE
    import torch.distributed.nn  # noqa: PLC0415  # imported later, as by compiling, it would keep the group for ever

    local, size = told("LOCAL_RANK", 0), told("WORLD_SIZE", 1)
    if torch.cuda.is_available() and local < torch.cuda.device_count():
        torch.cuda.set_device(local)
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    ranks = Ranks(told("RANK", 0), size, table=RankTable.inherited(size))
    with ranks._in_touch():
        # both named: by itself torch takes NCCL alone where it was built with it, be there a GPU or not
        dist.init_process_group("cpu:gloo,cuda:nccl" if has_nccl else "gloo")
        ranks.line = dist.new_group(timeout=PATIENCE, backend="gloo")
    atexit.register(ranks.leave)
    return ranks


def joined() -> Ranks:
    """Return the ranks that join() brought together; ALONE if it was not called."""
    return join() if dist.is_available() and dist.is_initialized() else ALONE
