"""Data-parallel training, with DDP (each rank holds the whole model) or FSDP2 (each rank holds a shard)."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Literal, TypeGuard

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from penwright.errors import PenwrightError
from penwright.losses import LossModule
from penwright.model.block import Block
from penwright.model.transformer import EncoderOnly
from penwright.run.checkpoints import Record, Tensors, saved_file, shard_name
from penwright.storage import flush, let_others_read
from penwright.training.distributed.ranks import POLL, Ranks

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store
    from torch.distributed.tensor import DTensor

Parallelism = Literal["ddp", "fsdp"]
SHARDED_TASKS = ("generate", "chat", "translate")  # tasks whose models FSDP2 can shard
FITS = 0.8  # maximum share of a rank's memory that the plan may use
SECONDS_TO_END = 60.0  # maximum seconds for completing a checkpoint when training ends with an error


def choose_parallelism(n_bytes: float, memory: float, *, can_shard: bool) -> tuple[Parallelism, str]:
    """Choose DDP if the `n_bytes` of a training step fit in a rank's memory, otherwise FSDP2. Return the reason."""
    sizes = f"model, optimizer and activations take about {n_bytes / 1e9:.2g} GB of {memory / 1e9:.2g} GB per process"
    if n_bytes <= FITS * memory:
        return "ddp", sizes
    if not can_shard:
        return "ddp", f"{sizes}, but only language models and translators without LoRA can be sharded"
    return "fsdp", f"{sizes}, so each process holds only a shard of them"


def parallelize(
    module: LossModule, kind: Parallelism, ranks: Ranks, device: torch.device, precision: torch.dtype
) -> nn.Module:
    """Return the module that computes the loss together with the other ranks. Its gradients are means over the ranks.

    DDP sends gradients in buckets during the backward pass. FSDP2 shards each block, and all other parameters as one
    group. That group stays in float32, because the output layer sums gradients over many targets.
    """
    if ranks.size == 1:
        return module
    if kind == "ddp":
        # rotary frequencies, equal in all ranks, need no broadcast
        constants = [name for name, _ in module.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, constants)
        some_unused = isinstance(module.model, EncoderOnly)  # some tasks use only a part of an encoder's parameters
        return DistributedDataParallel(module, gradient_as_bucket_view=True, find_unused_parameters=some_unused)
    _shard(module, ranks, device, precision)
    return module


def _shard(module: LossModule, ranks: Ranks, device: torch.device, precision: torch.dtype) -> None:
    """Shard a module in place with FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415  # slow to import, and rarely used
    from torch.distributed.fsdp import (  # noqa: PLC0415  # as above
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    # the warning says not to change returned views in place, which Penwright never does
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    for tensor in module.state_dict().values():
        dist.broadcast(tensor, 0)
    mesh = init_device_mesh(device.type, (ranks.size,))
    narrow = None if precision == torch.float32 else precision
    policy = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in module.modules():
        if isinstance(block, Block):
            fully_shard(block, mesh=mesh, mp_policy=policy)
            register_fsdp_forward_method(block, "source_keys_values")  # called before the block's forward method
    fully_shard(module, mesh=mesh)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_force_sum_reduction_for_comms(device.type == "cpu")  # gloo can sum but not average


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Return whether this rank has only a part of the tensor."""
    return hasattr(tensor, "full_tensor")


def full(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor, and return the whole tensor. All ranks must call this together.

    Other tensors are returned as they are.
    """
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return these tensors, gathering the sharded ones in CPU memory. All ranks must call this together.

    Only rank 0 keeps the tensors that it gathers.
    """
    full_tensors = {}
    for name, tensor in tensors.items():
        each = tensor.full_tensor().cpu() if is_sharded(tensor) else tensor
        if each is tensor or dist.get_rank() == 0:
            full_tensors[name] = each
    return full_tensors


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor, without copying. Other tensors are returned as they are."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def locals_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return this rank's part of each sharded tensor, and all other tensors as they are."""
    return [local(tensor) for tensor in tensors]


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return `tensor` on the device of `other`, and sharded if `other` is. Every rank must hold the whole `tensor`."""
    if is_sharded(other) and tensor.shape == other.shape:
        from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415  # slow to import, and rarely used

        return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)
    return tensor.to(other.device, copy=True)


class ShardedSaver:
    """A writer of the checkpoint files of one rank. All ranks need access to the run folder, on a shared disk.

    Rank 0 completes a checkpoint when all ranks have written their files. Until then, it is a temporary folder. The
    ranks report through the store of torchrun, since a collective could interfere with those of training.
    """

    def __init__(self, ranks: Ranks, folder: Path, suffix: str) -> None:
        """Set up saving to `folder`. The names of temporary folders end in `suffix`."""
        assert ranks.store is not None
        self.ranks, self.folder, self.suffix = ranks, folder, suffix
        self._store: Store = ranks.store
        self._thread, self._ended = ThreadPoolExecutor(1, "save"), Event()
        self._pending: Future[None] | None = None
        self._n_saved = 0

    def start(self, name: str, tensors: Mapping[str, Tensor], complete: Callable[[Path, Record], None]) -> None:
        """Save this rank's part of the tensors as part of the checkpoint `name`. All ranks must call this together.

        The tensors are copied, so training can continue at once. On rank 0, `complete` is then called with the folder
        and the manifest entries of all parts.
        """
        self.wait()
        own = own_part(tensors, self.ranks)
        self._n_saved += 1
        self._pending = self._thread.submit(
            self._save, self._n_saved, self.folder / (name + self.suffix), own, complete
        )

    def wait(self) -> None:
        """Wait for the checkpoint that is being saved. On rank 0, raise PenwrightError if it could not be saved."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait at most SECONDS_TO_END seconds for the checkpoint that is being saved, then end the thread."""
        if self._pending is not None:
            wait([self._pending], SECONDS_TO_END)
        self._ended.set()
        self._thread.shutdown()

    def _save(self, number: int, folder: Path, own: Tensors, complete: Callable[[Path, Record], None]) -> None:
        path = folder / shard_name(self.ranks.rank, self.ranks.size)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(own, path)
            let_others_read(path)
            flush(path)
            report: Record = {path.name: saved_file(path)}
        except Exception as error:  # rank 0 raises the error
            report = {"error": f"{path} could not be saved: {error}"}
        self._store.set(f"saved/{number}/{self.ranks.rank}", json.dumps(report))
        if self.ranks.is_main:
            files = self._reports_of_all(number)
            if "error" in files:
                raise PenwrightError(f"{files['error']}. Earlier checkpoints are intact.")
            complete(folder, files)

    def _reports_of_all(self, number: int) -> Record:
        files: Record = {}
        for rank in range(self.ranks.size):
            key = f"saved/{number}/{rank}"
            while not self._store.check([key]):
                if self._ended.wait(POLL):
                    raise PenwrightError("the ranks ended while a checkpoint was being saved")
            files |= json.loads(self._store.get(key))
        return files


def own_part(tensors: Mapping[str, Tensor], ranks: Ranks) -> Tensors:
    """Return copies of the shards and tensors that this rank has to save. Only rank 0 saves unsharded tensors."""
    return {
        name: local(tensor).detach().cpu().clone()
        for name, tensor in tensors.items()
        if is_sharded(tensor) or ranks.is_main
    }
