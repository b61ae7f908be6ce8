"""Checkpoints that all ranks of FSDP2 write together in the background, each its own part of the training state."""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from safetensors.torch import save_file
from torch import Tensor

from penwright.errors import PenwrightError
from penwright.run.checkpoints import Record, Tensors, saved_file, shard_name
from penwright.storage import flush, let_others_read
from penwright.training.distributed.parallel import is_sharded, local
from penwright.training.distributed.ranks import POLL, Ranks

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

SECONDS_TO_END = 60.0  # maximum seconds for completing a checkpoint when training ends with an error


class ShardedSaver:
    """A writer of the checkpoint files of one rank. All ranks need access to the run folder, on a shared disk.

    Rank 0 completes a checkpoint when all ranks have written their files. Until then, it is a temporary folder. The
    ranks report through the store of torchrun, since a collective could interfere with those of training.
    """

    def __init__(self, ranks: Ranks, place: Path, suffix: str) -> None:
        """Set up saving to the folder `place`. The names of temporary folders end in `suffix`."""
        assert ranks.store is not None
        self.ranks, self.place, self.suffix = ranks, place, suffix
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
        self._pending = self._thread.submit(self._save, self._n_saved, self.place / (name + self.suffix), own, complete)

    def wait(self) -> None:
        """Wait for the checkpoint that is being saved. On rank 0, raise PenwrightError if it could not be saved."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait for the checkpoint that is being saved, but at most SECONDS_TO_END, and end the thread."""
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
        if self.ranks.leads:
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
    """Return copies of the parts of tensors that this rank has to save. Rank 0 saves those that are not sharded."""
    return {
        name: local(tensor).detach().cpu().clone()
        for name, tensor in tensors.items()
        if is_sharded(tensor) or ranks.leads
    }
