"""The group of processes (ranks) that train together, and the messages between them.

All ranks run the same steps. Each computes its rows of every batch, and gradients are summed over all rows. More ranks
therefore change only the speed, dropout, and the order of floating-point sums. Rank 0 also reads, plans, evaluates and
saves. Through the store of torchrun, it sends the other ranks what they need: the work, and the counters after an
evaluation.
"""

import atexit
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from threading import Event, Thread
from time import sleep
from typing import TYPE_CHECKING, TypeGuard
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from penwright.data.batches import AnyBatch
from penwright.errors import Interrupted, PenwrightError
from penwright.run.checkpoints import Record, Tensors
from penwright.training.distributed.launcher import LOST, OVER, Heartbeat, env_int, is_launched

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store
    from torch.distributed.fsdp import FSDPModule

# Time limit of a collective. While rank 0 does longer work alone, the other ranks poll the store.
TIMEOUT = timedelta(minutes=30)
POLL = 0.02  # seconds between two checks of the store for a message
GRACE = 3.0  # seconds that torchrun's agent needs to end the other ranks after one has died


@dataclass
class Ranks:
    """The group of processes that train together, as seen by one of them."""

    rank: int = 0
    size: int = 1
    store: "Store | None" = None
    n_messages: int = 0  # number of messages published or received so far

    @property
    def is_main(self) -> bool:
        """Whether this process is rank 0."""
        return self.rank == 0

    def share(self, batch: AnyBatch) -> tuple[AnyBatch, float]:
        """Return this rank's rows of a batch, and their weight in the loss.

        If a batch has fewer rows than ranks, some ranks repeat a row with weight 0, because all ranks must take part in
        the collectives of the backward pass.
        """
        if self.size == 1:
            return batch, 1.0
        if self.rank < batch.n_rows:
            return batch.every(self.size, self.rank), 1.0
        return batch.every(batch.n_rows, self.rank % batch.n_rows), 0.0

    def agree(self, loss: Tensor, should_stop: bool, seconds: float) -> Callable[[], Tensor]:
        """Start an all-reduce of three numbers about a step. Return a function that waits for the result.

        The result holds the sum of all losses, the number of ranks that were asked to stop, and the elapsed seconds on
        rank 0. The all-reduce takes place during the backward pass.
        """
        if self.size == 1:
            return lambda: torch.stack([loss, torch.zeros_like(loss), torch.zeros_like(loss)])
        # new_full() does not wait for a GPU, as a copy from CPU memory would
        own = (float(should_stop), seconds if self.is_main else 0.0)
        facts = torch.stack([loss.double(), *(loss.new_full((), number, dtype=torch.float64) for number in own)])
        work = dist.all_reduce(facts, async_op=True)

        def wait() -> Tensor:
            assert work is not None
            work.wait()
            return facts

        return wait

    def seed_rng(self, *numbers: int) -> None:
        """Seed the RNG of every rank but 0 from `(rank, *numbers)`.

        Rank 0 keeps its own state, which checkpoints save.
        """
        if not self.is_main:
            torch.manual_seed(hash((self.rank, *numbers)))

    def publish(self, message: Record | None) -> None:
        """Publish a message for the other ranks. Only rank 0 may call this. None means that the work is over."""
        if self.store is not None:
            self.store.set(OVER if message is None else f"message/{self.n_messages}", json.dumps(message))
            self.n_messages += 1

    def receive(self) -> Record | None:
        """Wait for the next message from rank 0. Return None if the work is over."""
        assert self.store is not None
        key = f"message/{self.n_messages}"
        while not self.store.check([key]):
            if self.store.check([OVER]):
                return None
            sleep(POLL)
        self.n_messages += 1
        message: Record = json.loads(self.store.get(key))
        return message

    def gather_at_start(self, work: Record | None = None) -> None:
        """Wait until all ranks are ready to train. Rank 0 may pass `work`, which is sent to the other ranks."""
        if self.store is None:
            return
        if work is not None:
            self.publish(work)
        name = f"ready/{self.n_messages}"
        self.store.add(name, 1)
        while self.is_main and self.store.add(name, 0) < self.size:
            if self.store.check([LOST]):
                sleep(GRACE)
                raise PenwrightError(f"rank {self.store.get(LOST).decode()} has failed. Its own message says why")
            sleep(POLL)

    def all_agree(self, agrees: bool) -> bool:
        """Return whether `agrees` is true in all ranks. All ranks must call this together."""
        votes = torch.tensor(float(agrees))
        if self.size > 1:
            dist.all_reduce(votes, dist.ReduceOp.MIN)
        return bool(votes)

    def broadcast(self, tensors: Tensors | None) -> Tensors:
        """Broadcast the tensors of rank 0, and return them. All other ranks pass None."""
        if self.size == 1:
            return tensors or {}
        if tensors is not None:
            kinds = {name: (str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items()}
            self.publish(kinds)
        else:
            if (received := self.receive()) is None:
                raise Interrupted("rank 0 has ended")
            tensors = {name: torch.empty(shape, dtype=getattr(torch, kind)) for name, (kind, shape) in received.items()}
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        for tensor in whole.values():
            dist.broadcast(tensor, 0)
        return whole

    def map_matrices(self, work: Callable[[Tensor], Tensor], matrices: Sequence[Tensor], n_rows: int) -> list[Tensor]:
        """Return `work(matrices)`, with the matrices divided among all ranks.

        `work` must process each matrix independently.

        Under FSDP2, each rank holds some of the `n_rows` rows of every matrix, and gets the same rows of the result.
        """
        if self.size == 1:
            return list(work(torch.stack(list(matrices))))
        if len(matrices[0]) == n_rows:
            return self._map_replicated(work, torch.stack(list(matrices)))
        return self._map_sharded(work, matrices, n_rows)

    def _map_replicated(self, work: Callable[[Tensor], Tensor], matrices: Tensor) -> list[Tensor]:
        per_rank = -(-len(matrices) // self.size)
        own = matrices.new_zeros(per_rank, *matrices.shape[1:])
        if self.rank < len(matrices):
            done = work(matrices[self.rank :: self.size])
            own[: len(done)] = done
        every = matrices.new_empty(self.size, *own.shape)
        dist.all_gather(list(every), own)
        return list(every.transpose(0, 1).flatten(0, 1)[: len(matrices)])

    def _map_sharded(self, work: Callable[[Tensor], Tensor], matrices: Sequence[Tensor], n_rows: int) -> list[Tensor]:
        """Send each matrix to one rank, which applies `work` and sends the rows back (two all-to-alls)."""
        n_columns = matrices[0].shape[1]
        chunk = -(-n_rows // self.size)  # FSDP2 shards rows as torch.chunk does
        rows = [min(max(n_rows - rank * chunk, 0), chunk) for rank in range(self.size)]
        owned = [list(matrices[rank :: self.size]) for rank in range(self.size)]  # the matrices that each rank handles
        sent = torch.cat([shard.flatten() for group in owned for shard in group])
        sent_sizes = [len(group) * rows[self.rank] * n_columns for group in owned]
        n_own = len(owned[self.rank])
        sizes = [n_own * n * n_columns for n in rows]
        received = sent.new_empty(sum(sizes))
        dist.all_to_all_single(received, sent, sizes, sent_sizes)
        if n_own:
            parts = [part.view(n_own, n, n_columns) for part, n in zip(received.split(sizes), rows, strict=True)]
            done = work(torch.cat(parts, 1))
            received = torch.cat([part.flatten() for part in done.split(rows, 1)])
        dist.all_to_all_single(sent, received, sent_sizes, sizes)
        results = [torch.empty(0)] * len(matrices)
        for rank, (part, group) in enumerate(zip(sent.split(sent_sizes), owned, strict=True)):
            results[rank :: self.size] = part.view(len(group), rows[self.rank], n_columns)
        return results

    def end_after_loss(self, error: Exception, *, is_quiet: bool) -> None:
        """End this rank, because a collective failed: another rank has ended.

        If the other rank was on this machine, torchrun's agent notices its end within moments, ends this rank and
        reports the failure. If this rank still runs after GRACE seconds, the other rank was on another machine.
        """
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with suppress(RuntimeError):  # the process that hosts the store may have ended as well
            if self.store is None or self.store.check([OVER]):
                os._exit(0)
        sleep(GRACE)
        if not is_quiet and env_int("LOCAL_RANK", 0) == 0:
            reason = str(error).strip().partition("\n")[0]
            sys.stderr.write(f"penwright: another rank ended or cannot be reached ({reason})\n")
            sys.stderr.flush()
        os._exit(1)

    def leave(self) -> None:
        """Leave the process group, and end its threads before Python exits."""
        with suppress(RuntimeError):
            if self.is_main:
                self.publish(None)
            if self.store is not None:
                if not self.store.check([OVER]):  # this rank has failed, and other ranks may wait for it
                    self.store.set(LOST, str(self.rank))
                self.store.set(f"beat/{self.rank}", "left")
        with suppress(RuntimeError):
            dist.destroy_process_group()


ALONE = Ranks()


def is_lost_connection(error: RuntimeError) -> bool:
    """Return whether this error of a collective means that another rank has ended."""
    return isinstance(error, dist.DistError) or "gloo/" in str(error)


def agree_on_prefix(store: "Store", rank: int, size: int) -> str:
    """Return a prefix for the keys of this group of ranks in the store. No earlier group has used it.

    torch 2.13 keeps the store, and so the keys of ended ranks, when torchrun restarts them. A restart count would not
    be a safe prefix, because the agents on several machines may count differently. Therefore, rank 0 chooses the
    prefix. Each other rank requests it under a random id of its own, and waits for the answer.
    """
    own = uuid4().hex
    if rank > 0:
        store.set(f"asks/{rank}", own)
        prefix = store.get(f"answer/{own}").decode()  # waits
        store.set(f"{prefix}/answered/{rank}", "")
        return prefix
    missing = set(range(1, size))
    while missing:
        for other in [peer for peer in missing if store.check([f"asks/{peer}"])]:
            # the request may come from a rank that has ended
            store.set(f"answer/{store.get(f'asks/{other}').decode()}", own)
        missing = {peer for peer in missing if not store.check([f"{own}/answered/{peer}"])}
        sleep(POLL)
    return own


@cache
def join() -> Ranks:
    """Wait until all ranks have joined, and return the group. Return ALONE if this process is the only one."""
    if not is_launched():
        return ALONE
    import torch.distributed.nn  # noqa: PLC0415  # import this now: if compilation did, the group would never be freed
    from torch._C._distributed_c10d import PrefixStore  # noqa: PLC0415  # missing in builds without torch.distributed
    from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415  # as above

    local = env_int("LOCAL_RANK", 0)
    if torch.cuda.is_available() and local < torch.cuda.device_count():
        torch.cuda.set_device(local)
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    kept, rank, size = next(rendezvous("env://"))
    store = PrefixStore(agree_on_prefix(kept, rank, size), kept)
    # Name both backends: by default, torch builds with NCCL use only NCCL, even without a GPU.
    backend = "cpu:gloo,cuda:nccl" if has_nccl else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    shared, ended = PrefixStore("penwright", store), Event()
    ranks = Ranks(rank, size, shared)
    Thread(target=Heartbeat(shared, rank, size).run, args=(ended,), daemon=True).start()
    atexit.register(ranks.leave)
    atexit.register(ended.set)
    return ranks


def joined() -> Ranks:
    """Return the group that the last `join()` returned, or ALONE if it was not called."""
    return join() if dist.is_available() and dist.is_initialized() else ALONE


@contextmanager
def synchronized(module: nn.Module, is_last: bool) -> Iterator[None]:
    """All-reduce gradients in the `with` block only if this is the last batch of the step."""
    if _is_fsdp(module):
        module.set_requires_gradient_sync(is_last)
    with nullcontext() if is_last or not isinstance(module, DistributedDataParallel) else module.no_sync():
        yield


def _is_fsdp(module: nn.Module) -> "TypeGuard[FSDPModule]":
    return hasattr(module, "set_requires_gradient_sync")
