"""Data-parallel training in several processes (ranks), with all collectives. Each rank gets some rows of every batch.

Rank 0 leads: it reads, plans, evaluates and saves, and it tells the other ranks what to compute. Batches are the same
as in a single process, and gradients are summed over all rows. More ranks therefore change only the speed, dropout, and
the order of floating-point sums.

Ranks find each other through torchrun's environment variables, so torchrun can start them, too.
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
from penwright.run.checkpoints import Record
from penwright.training.launcher import env_int, is_launched
from penwright.training.rank_table import Field, RankTable, how_it_ended

PATIENCE = timedelta(days=7)  # timeout: rank 0 may take long to prepare or evaluate; the launcher detects hung ranks
NOTICED = 1.0  # seconds within which the launcher records that a rank has ended


@dataclass
class Ranks:
    """The group of processes that train together, from the point of view of one process."""

    rank: int = 0  # rank of this process
    size: int = 1
    control: "dist.ProcessGroup | None" = None  # group for the messages of rank 0, on the CPU
    failed: int | None = None  # exit code to leave with, if rank 0 fails while the other ranks compute
    table: RankTable = field(default_factory=lambda: RankTable(1))  # progress of the ranks, for the launcher
    notes_compilations: bool = False

    @property
    def leads(self) -> bool:
        """Whether this process is rank 0."""
        return self.rank == 0

    def share(self, batch: AnyBatch) -> AnyBatch | None:
        """Return this rank's rows of a batch. If a batch has fewer rows than ranks, some ranks get None."""
        if self.size == 1:
            return batch
        return batch.every(self.size, self.rank) if self.rank < batch.n_rows else None

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """All-reduce (sum) the tensors in place."""
        if self.size > 1:
            flat = parameters_to_vector(tensors)
            self.table.count(self.rank, Field.STEPS)
            with self._recorded_wait(within_step=True):
                dist.all_reduce(flat)
            vector_to_parameters(flat, tensors)

    def map_rows(self, work: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """Return work(rows), computed by all ranks together.

        The result for a row must depend on that row alone.
        """
        if self.size == 1:
            return work(rows)
        done = torch.zeros_like(rows)
        if self.rank < len(rows):
            done[self.rank :: self.size] = work(rows[self.rank :: self.size])
        with self._recorded_wait(within_step=True):
            dist.all_reduce(done)
        return done

    def seed_rng(self, *numbers: int) -> None:
        """Seed the RNG of every rank but 0 from `(rank, *numbers)`.

        Rank 0 keeps its own state, which checkpoints save.
        """
        if not self.leads:
            torch.manual_seed(hash((self.rank, *numbers)))

    def barrier(self) -> None:
        """Wait until all ranks have reached this barrier."""
        if self.size > 1:
            with self._recorded_wait():
                dist.barrier(self.control)

    def broadcast(self, message: Record | None) -> None:
        """Broadcast a message to the other ranks. Only rank 0 may call this."""
        if self.size > 1:
            payload = torch.tensor(list(json.dumps(message).encode()), dtype=torch.uint8)
            with self._recorded_wait():
                dist.broadcast(torch.tensor([len(payload)]), 0, self.control)
                dist.broadcast(payload, 0, self.control)

    def receive(self) -> Record | None:
        """Return the next message from rank 0. None means that the work is over, or that rank 0 has ended."""
        length = torch.zeros(1, dtype=torch.int64)
        try:
            dist.broadcast(length, 0, self.control)
            payload = torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(payload, 0, self.control)
        except RuntimeError:
            return None
        message: Record | None = json.loads(bytes(payload.tolist()))
        return message

    @contextmanager
    def leading(self, work: Record) -> Iterator[None]:
        """Send `work` to the other ranks, wait until all are ready, and send None when the block ends."""
        self.table.keep_folder(work["run"])
        self.broadcast(work)
        self.barrier()
        try:
            yield
        except PenwrightError:
            self.broadcast(None)
            raise
        except BaseException as error:  # the other ranks may be in a step, where they receive no messages
            self.failed = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
            raise
        self.broadcast(None)

    def note_compilations(self) -> None:
        """From now on, record in the table when this rank compiles. Compiling may take minutes."""
        if self.size == 1 or self.notes_compilations:
            return
        from torch._dynamo.callback import callback_handler  # noqa: PLC0415  # imports the compiler

        self.notes_compilations = True
        callback_handler.register_start_callback(lambda _: self.table.count(self.rank, Field.COMPILATIONS))
        callback_handler.register_end_callback(lambda _: self.table.count(self.rank, Field.COMPILATIONS))

    @contextmanager
    def _recorded_wait(self, *, within_step: bool = False) -> Iterator[None]:
        """Record that this rank waits for the others. Raise PenwrightError if one of them has ended."""
        self.table.count(self.rank, Field.WAITS)
        if within_step:
            self.table.count(self.rank, Field.COLLECTIVES)
        try:
            yield
        except RuntimeError as error:  # the connection was closed, or other ranks cannot access a GPU
            raise PenwrightError(self._describe_loss(str(error).strip().partition("\n")[0])) from None
        finally:
            self.table.count(self.rank, Field.WAITS)

    def _describe_loss(self, reason: str) -> str:
        """Describe which rank ended, and how. If the rank is unknown, use the `reason`."""
        sleep(NOTICED if self.table.is_shared else 0.0)
        for rank, code in enumerate(self.table.column(Field.ENDED)):
            if code:
                return f"rank {rank} of {self.size} {how_it_ended(code)}. {self.table.remedy}"
        return f"another rank ended or cannot be reached ({reason}). {self.table.remedy}"

    def leave(self) -> None:
        """Leave the group. All ranks then end together, and no thread of the group outlives Python."""
        if self.failed is not None and self.size > 1:
            sys.stderr.flush()
            os._exit(self.failed)  # exit at once: the other ranks are in a step, and a barrier would wait forever
        if self.leads:
            with suppress(PenwrightError):
                self.broadcast(None)
        self.control = None
        dist.destroy_process_group()


ALONE = Ranks()


@cache
def join() -> Ranks:
    """Wait until all ranks have joined, and return them. Return ALONE if this process is the only one."""
    if not is_launched():
        return ALONE
    import torch.distributed.nn  # noqa: PLC0415  # import this now: if compilation did, the group would never be freed

    local, size = env_int("LOCAL_RANK", 0), env_int("WORLD_SIZE", 1)
    if torch.cuda.is_available() and local < torch.cuda.device_count():
        torch.cuda.set_device(local)
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    ranks = Ranks(env_int("RANK", 0), size, table=RankTable.inherited(size))
    with ranks._recorded_wait():
        # Name both backends: by default, torch builds with NCCL use only NCCL, even without a GPU.
        dist.init_process_group("cpu:gloo,cuda:nccl" if has_nccl else "gloo")
        ranks.control = dist.new_group(timeout=PATIENCE, backend="gloo")
    atexit.register(ranks.leave)
    return ranks


def joined() -> Ranks:
    """Return the ranks of the last `join()`, or ALONE if it was not called."""
    return join() if dist.is_available() and dist.is_initialized() else ALONE
