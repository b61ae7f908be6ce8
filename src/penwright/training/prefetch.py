"""The batches of each step on their device; for a GPU they are made while the step before is computed."""

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from penwright.data.batches import Batch
from penwright.data.batching import AnyBatches


class Prefetcher:
    """Gives the batches of a step when it begins."""

    def __init__(self, batches: AnyBatches, accumulate: int, device: torch.device, *, ahead: bool | None = None):
        """`ahead`: make those of the next step meanwhile; None: where the device is not the CPU, which is busy then."""
        self._batches, self._accumulate, self._device = batches, accumulate, device
        makes_ahead = device.type != "cpu" if ahead is None else ahead
        self._thread = ThreadPoolExecutor(1, "batches") if makes_ahead else None
        self._next: tuple[int, Future[list[Batch]]] | None = None

    def __call__(self, step: int) -> list[Batch]:
        """The batches of this step, counted from 0, in any order of steps."""
        if self._thread is None:
            made = self._made(step)
        else:
            expected, coming = self._next or (step, self._thread.submit(self._made, step))
            future = coming if expected == step else self._thread.submit(self._made, step)
            self._next = (step + 1, self._thread.submit(self._made, step + 1))
            made = future.result()
        return [batch.to(self._device) for batch in made]

    def _made(self, step: int) -> list[Batch]:
        batches: list[Batch] = [*self._batches.for_step(step, self._accumulate)]
        if self._device.type == "cuda":  # from where a copy need not be waited for
            batches = [batch.pinned() for batch in batches]
        return batches
