"""The gradients of training batches, computed by CUDA graphs on an NVIDIA GPU.

A step of a small model launches thousands of small kernels from Python, one by one, and the GPU waits most of the time.
A graph launches all kernels of a batch at once. It reads and writes the same memory addresses each time, so a graph is
captured for each frequent shape of batches.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from penwright.config import Task
from penwright.data.batches import Batch
from penwright.decoding.cuda_graphs import Pool, own_stream, record_cuda_graph
from penwright.errors import PenwrightWarning
from penwright.training.auto.machine import Machine

DEVICES = ("cuda",)
BATCHES_BEFORE = (
    2  # number of batches of a shape that are computed without a graph: compiling must end before a capture
)
MOST_GRAPHS = 256  # maximum number of graphs, one for each shape

# (batch, number to divide the loss by) -> the loss. Adds the gradients to those of the parameters.
Backward = Callable[[Batch, int | Tensor], Tensor]
Key = tuple[object, ...]


class _Graph(NamedTuple):
    """The gradient of a batch captured in a CUDA graph."""

    replay: Callable[[], None]
    batch: Batch  # the tensors from which the graph reads the batch
    divisor: Tensor
    loss: Tensor  # the tensor to which the graph writes the loss


class GradientGraphs:
    """Computes gradients by CUDA graphs, which are captured for frequent shapes of batches.

    If a capture fails, a PenwrightWarning is given, and no more graphs are captured.
    """

    def __init__(self, backward: Backward, model: nn.Module, device: torch.device):
        """`backward` may neither read tensors on the host nor copy data to the device."""
        self._backward = backward
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._trained: list[nn.Parameter] = []  # the parameters that get gradients
        self._gradients: list[Tensor] = []  # their gradients: the tensors to which the graphs write
        self._graphs: dict[Key, _Graph] = {}
        self._n_seen: Counter[Key] = Counter()
        self._works = True
        self._device = device
        self._pool: Pool = None

    def __call__(self, batch: Batch, divisor: int) -> Tensor:
        """Add the gradients of the loss, divided by `divisor`, to those of the parameters; return this loss."""
        key = self._key(batch)
        with self._on_own_stream():
            graph = self._graphs.get(key) or self._captured(key, batch)
            if graph is None:
                loss = self._backward(batch, divisor)
                if not self._gradients:
                    self._trained = [each for each in self._parameters if each.grad is not None]
                return loss
            self._prepare_gradients()
            for target, source in zip(graph.batch.tensors, batch.tensors, strict=True):
                target.copy_(source)
            graph.divisor.fill_(divisor)
            graph.replay()
            return graph.loss.clone()

    def _captured(self, key: Key, batch: Batch) -> _Graph | None:
        """Capture a graph for this shape if it is frequent; otherwise, return None."""
        self._n_seen[key] += 1
        if not self._works or self._n_seen[key] <= BATCHES_BEFORE or len(self._graphs) == MOST_GRAPHS:
            return None
        if not self._gradients:
            self._gradients = [torch.zeros_like(parameter) for parameter in self._trained]
        self._prepare_gradients()
        own, divisor = batch.clone(), torch.ones((), device=batch.tensors[0].device)
        try:
            replay, loss, self._pool = record_cuda_graph(lambda: self._backward(own, divisor), self._device, self._pool)
        except RuntimeError:  # raised if a capture fails, whatever the reason
            self._works = False
            self._graphs.clear()
            warnings.warn(
                "CUDA graphs do not work for this training, so it is slower: kernels are launched one by one",
                PenwrightWarning,
                stacklevel=2,
            )
            return None
        self._graphs[key] = _Graph(replay, own, divisor, loss)
        return self._graphs[key]

    def _prepare_gradients(self) -> None:
        """Make the tensors that the graphs write to the gradients of the parameters: zeros, or the present ones."""
        if cleared := [ours for each, ours in zip(self._trained, self._gradients, strict=True) if each.grad is None]:
            torch._foreach_zero_(cleared)
        for parameter, ours in zip(self._trained, self._gradients, strict=True):
            if parameter.grad is not None and parameter.grad is not ours:
                ours.copy_(parameter.grad)
            parameter.grad = ours

    def _key(self, batch: Batch) -> Key:
        """Return the shape of the batch and the addresses of the parameters, which a graph reads."""
        shapes = (None if part is None else getattr(part, "shape", ()) for part in vars(batch).values())
        return (*shapes, *(parameter.data_ptr() for parameter in self._parameters))

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


def gradient_graphs(
    backward: Backward, model: nn.Module, machine: Machine, task: Task, *, recomputes: bool = False
) -> GradientGraphs | None:
    """Return the graphs for a training, or None if it needs the host during a batch, or has no NVIDIA GPU.

    `recomputes` tells whether activations are recomputed, which reads the state of the RNG. The loss of an encoder
    reads the number of masked tokens.
    """
    needs_host = machine.ranks.size > 1 or task == "encode" or recomputes
    if machine.device.type not in DEVICES or needs_host:
        return None
    return GradientGraphs(backward, model, machine.device)
