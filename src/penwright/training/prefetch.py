"""Prefetching of batches: on a GPU, the next step's batches are made while the current step is computed."""

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from penwright.data.batches import Batch
from penwright.data.bucketing import AnyBatches


class Prefetcher:
    """A source of each step's batches, already on the training device."""

    def __init__(self, batches: AnyBatches, accumulate: int, device: torch.device, *, ahead: bool | None = None):
        """Set up the source. With `ahead`, a thread makes the next step's batches; None means: unless on the CPU.

        On a CPU, training keeps all cores busy already.
        """
        self._batches, self._accumulate, self._device = batches, accumulate, device
        makes_ahead = device.type != "cpu" if ahead is None else ahead
        self._thread = ThreadPoolExecutor(1, "batches") if makes_ahead else None
        self._next: tuple[int, Future[list[Batch]]] | None = None

    def __call__(self, step: int) -> list[Batch]:
        """Return the batches of this step, counted from 0. Steps may be asked for in any order."""
        if self._thread is None:
            made = self._make(step)
        else:
            expected, pending = self._next or (step, self._thread.submit(self._make, step))
            future = pending if expected == step else self._thread.submit(self._make, step)
            self._next = (step + 1, self._thread.submit(self._make, step + 1))
            made = future.result()
        return [batch.to(self._device) for batch in made]

    def _make(self, step: int) -> list[Batch]:
        batches: list[Batch] = [*self._batches.for_step(step, self._accumulate)]
        if self._device.type == "cuda":  # copies from pinned memory run in the background
            batches = [batch.pinned() for batch in batches]
        return batches
