"""Training steps as CUDA graphs: one graph for the gradients of each frequent batch shape, and one for the update.

A step of a small model launches thousands of small kernels from Python, one by one, so the GPU waits most of the time.
A graph launches many kernels at once, but reads and writes the same memory addresses each time.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from penwright.config import Task
from penwright.data.batches import Batch
from penwright.decoding.cuda_graphs import Pool, Replay, own_stream, record_cuda_graph
from penwright.errors import PenwrightWarning
from penwright.training.distributed.ranks import Ranks

DEVICES = ("cuda",)
CALLS_BEFORE = 2  # number of warm-up calls before a capture, which compile code and create optimizer state
MOST_GRAPHS = 256  # maximum number of batch shapes that have a graph

# (batch, number to divide the loss by) -> the loss. Adds the gradients to those of the parameters.
Backward = Callable[[Batch, int | Tensor], Tensor]
Key = tuple[object, ...]


class _BatchGraph(NamedTuple):
    """A CUDA graph that computes the gradients of a batch."""

    replay: Replay
    batch: Batch  # the tensors from which the graph reads the batch
    divisor: Tensor
    loss: Tensor  # the tensor to which the graph writes the loss


class TrainingGraphs:
    """CUDA graphs that compute gradients and update parameters, captured for frequent batch shapes.

    If a capture fails, a PenwrightWarning is issued, and no more graphs are captured.
    """

    def __init__(self, backward: Backward, model: nn.Module, device: torch.device):
        """`backward` must neither read tensors on the host nor copy data to the device."""
        self._backward, self._device = backward, device
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._trained: list[nn.Parameter] = []  # the parameters that get gradients
        self._gradients: list[Tensor] = []  # their gradients: the tensors to which graphs write; [] before a capture
        self._batches: dict[Key, _BatchGraph] = {}
        self._updates: dict[Key, Replay] = {}
        self._n_calls: Counter[Key] = Counter()
        self._works = True
        self._pool: Pool = None

    def add_gradients(self, batch: Batch, divisor: int) -> Tensor:
        """Add the gradients of the loss, divided by `divisor`, to those of the parameters; return this loss."""
        shapes = (None if part is None else getattr(part, "shape", ()) for part in vars(batch).values())
        key = (*shapes, *self._addresses())
        with self._on_own_stream():
            graph = self._batches.get(key)
            if graph is None and len(self._batches) < MOST_GRAPHS and self._is_due(key):
                graph = self._capture_batch(key, batch)
            if self._gradients:
                self._use_own_gradients()
            if graph is None:
                loss = self._backward(batch, divisor)
                if not self._gradients:
                    self._trained = [each for each in self._parameters if each.grad is not None]
                return loss
            for target, source in zip(graph.batch.tensors, batch.tensors, strict=True):
                target.copy_(source)
            graph.divisor.fill_(divisor)
            graph.replay()
            return graph.loss.clone()

    def add_all_gradients(self, batches: Sequence[Batch], divisor: int) -> list[Tensor]:
        """Compute the gradients of all batches of a step, which begins without gradients; return the losses.

        If memory runs out, free the graphs and begin the step again: graphs keep the memory of their activations.
        """
        try:
            return [self.add_gradients(batch, divisor) for batch in batches]
        except torch.OutOfMemoryError as error:
            if not (self._batches or self._updates):
                raise
            self._give_up(error)
        for parameter in self._parameters:
            parameter.grad = None
        return [self.add_gradients(batch, divisor) for batch in batches]

    def forget(self) -> None:
        """Free the graphs of the batches, because the loss has changed. They will be captured again."""
        self._batches.clear()
        self._n_calls.clear()
        if not self._updates:
            self._pool = None  # a pool lives as long as its graphs

    def update(self, work: Callable[[], None]) -> None:
        """Run `work`, which updates the parameters with their gradients.

        It must not read tensors on the host. Values that change, such as the learning rate, must be tensors.
        """
        key = ("update", *self._addresses())
        with self._on_own_stream():
            replay = self._updates.get(key)
            if replay is None and self._gradients and self._is_due(key) and (captured := self._capture(work)):
                replay = self._updates[key] = captured[0]
            if replay:
                replay()
            else:
                work()

    def _addresses(self) -> Key:
        """Return the addresses of the parameters, which graphs read and write."""
        return tuple(parameter.data_ptr() for parameter in self._parameters)

    def _is_due(self, key: Key) -> bool:
        """Count a call with this key; return whether to capture a graph for it now."""
        self._n_calls[key] += 1
        return self._works and self._n_calls[key] > CALLS_BEFORE

    def _capture_batch(self, key: Key, batch: Batch) -> _BatchGraph | None:
        if not self._gradients:
            self._gradients = [torch.zeros_like(parameter) for parameter in self._trained]
            torch.cuda.empty_cache()  # graphs have memory of their own
        self._use_own_gradients()
        own, divisor = batch.clone(), torch.ones((), device=self._device)
        if (captured := self._capture(lambda: self._backward(own, divisor))) is None:
            return None
        self._batches[key] = _BatchGraph(captured[0], own, divisor, captured[1])
        return self._batches[key]

    def _capture(self, work: Callable[[], Tensor | None]) -> tuple[Replay, Tensor] | None:
        """Capture `work` in a graph; return its replay function and its result, or None after a warning."""
        nothing = torch.empty(0, device=self._device)

        def step() -> Tensor:
            result = work()
            return nothing if result is None else result

        try:
            replay, result, self._pool = record_cuda_graph(step, self._device, self._pool)
        except RuntimeError as error:  # raised if a capture fails, whatever the reason
            self._give_up(error)
            return None
        return replay, result

    def _give_up(self, error: RuntimeError) -> None:
        """Free all graphs, and capture no more. The error is the reason."""
        self._works, reason = False, str(error).partition("\n")[0]
        self._batches.clear()
        self._updates.clear()
        warnings.warn(
            "CUDA graphs do not work here, so training is slower: kernels are launched one by one. "
            f"The reason: {reason}",
            PenwrightWarning,
            stacklevel=3,
        )

    def _use_own_gradients(self) -> None:
        """Give the parameters the gradient tensors that graphs write to. Keep present gradients, else use zeros."""
        if cleared := [ours for each, ours in zip(self._trained, self._gradients, strict=True) if each.grad is None]:
            torch._foreach_zero_(cleared)
        for parameter, ours in zip(self._trained, self._gradients, strict=True):
            if parameter.grad is not None and parameter.grad is not ours:
                ours.copy_(parameter.grad)
            parameter.grad = ours

    @contextmanager
    def _on_own_stream(self) -> Iterator[None]:
        """Run on the stream that captures graphs: autograd remembers the stream on which a parameter was used."""
        if self._device.type != "cuda":
            yield
            return
        current, own = torch.cuda.current_stream(self._device), own_stream(self._device)
        own.wait_stream(current)
        with torch.cuda.stream(own):
            yield
        current.wait_stream(own)


def training_graphs(
    backward: Backward, model: nn.Module, device: torch.device, ranks: Ranks, task: Task, *, recomputes: bool = False
) -> TrainingGraphs | None:
    """Return the graphs for a training run, or None if it needs the host during a batch or has no NVIDIA GPU.

    Recomputing activations (`recomputes`) reads the state of the RNG. The loss of an encoder reads the number of masked
    tokens.
    """
    needs_host = ranks.size > 1 or task == "encode" or recomputes
    if device.type not in DEVICES or needs_host:
        return None
    return TrainingGraphs(backward, model, device)
