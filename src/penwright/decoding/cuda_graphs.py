"""Steps on a GPU as CUDA graphs: hundreds of small kernels that are launched at once, not each by Python.

A graph reads and writes where its tensors were when it was captured. So it is for one cache in one place: where a cache
has grown or rows have left, steps are taken as they are until it is clear that more are to come.
"""

import warnings
from collections.abc import Callable
from functools import cache
from math import nan
from threading import get_ident
from typing import NamedTuple

import torch
from torch import Tensor

from penwright.decoding.export_inputs import Inputs
from penwright.decoding.exported import DecodeStep
from penwright.errors import PenwrightWarning

DEVICES = ("cuda",)
STEPS_BEFORE = 2  # of one kind, before it is captured: capturing takes longer than a step
MOST_GRAPHS = 4  # kept at a time

Replay = Callable[[], None]
Moving = tuple[Tensor, Tensor, Tensor | None]  # tokens, lengths and origins
Key = tuple[object, ...]


def record_cuda_graph(step: Callable[[], Tensor], device: torch.device) -> tuple[Replay, Tensor]:
    """What takes the step, which is not taken here, and the tensor that has its logits then."""
    graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    try:
        # on a stream of this device, which need not be the current one; other threads may go on meanwhile
        with torch.cuda.graph(graph, stream=_stream(device, get_ident()), capture_error_mode="thread_local"):
            logits = step()
    finally:
        torch.cuda.set_stream(before)  # also where capturing fails
    return graph.replay, logits


@cache
def _stream(device: torch.device, thread: int) -> "torch.cuda.Stream":
    """One for each thread, since workspaces that products need are kept for each stream."""
    return torch.cuda.Stream(device)


class _Graph(NamedTuple):
    """A step that was captured."""

    moving: Moving  # where it reads what is new at each step
    replay: Replay
    logits: Tensor  # where it writes


class StepGraphs:
    """The steps of a model, by graphs where the same was done before."""

    def __init__(self, step: DecodeStep):
        self._step = step
        self._graphs: dict[Key, _Graph] = {}  # in the order of their last use
        self._last: Key = ()
        self._times = 0  # that the last kind of step came in a row
        self._works = True

    def __call__(self, inputs: Inputs) -> Tensor:
        """What the step gives, and does to the cache."""
        key = _key(self._step, inputs)
        graph = self._graphs.pop(key, None)
        if graph is None:
            self._times = self._times + 1 if key == self._last else 1
            self._last = key
            if self._times <= STEPS_BEFORE or not self._works:
                logits: Tensor = self._step(*inputs)
                return logits
            return self._captured(key, inputs)
        self._graphs[key] = graph
        for here, new in zip(graph.moving, _moving(inputs), strict=True):
            if here is not None and new is not None:
                here.copy_(new)
        graph.replay()
        return graph.logits.clone()

    def _captured(self, key: Key, inputs: Inputs) -> Tensor:
        """The step as it is; its graph is kept if it does the same, as it can be taken twice."""
        logits: Tensor = self._step(*inputs)
        tokens, lengths, kept, origins, source, padding = inputs
        moving = tokens.clone(), lengths.clone(), None if origins is None else origins.clone()
        own: Inputs = (moving[0], moving[1], kept, moving[2], source, padding)
        try:
            graph = _Graph(moving, *record_cuda_graph(lambda: self._step(*own), tokens.device))
            graph.logits.fill_(nan)  # so that a graph of nothing is noticed
            graph.replay()
            self._works = torch.allclose(graph.logits, logits, rtol=1e-3, atol=1e-3, equal_nan=True)
        except RuntimeError:  # torch's, of any kind
            self._works = False
        if self._works:
            self._graphs[key] = graph
            for oldest in list(self._graphs)[:-MOST_GRAPHS]:
                del self._graphs[oldest]
        else:
            self._graphs.clear()
            warnings.warn("CUDA graphs do not work here: steps are launched one by one", PenwrightWarning, stacklevel=2)
        return logits


def _moving(inputs: Inputs) -> Moving:
    """What is another tensor at each step."""
    tokens, lengths, _, origins, _, _ = inputs
    return tokens, lengths, origins


def _key(step: DecodeStep, inputs: Inputs) -> Key:
    """Where all that stays is, and the shapes of the rest."""
    _, _, kept, _, source, padding = inputs
    staying = [next(step.parameters()), *kept, *source, *([] if padding is None else [padding])]
    places = ((x.data_ptr(), x.shape, x.stride()) for x in staying)
    return (*places, *(None if x is None else x.shape for x in _moving(inputs)))
