"""Decoding steps as CUDA graphs, which launch hundreds of small kernels at once instead of one by one from Python.

A graph reads and writes the memory addresses that its tensors had at capture, so it works for one cache only. After
the cache grows or rows are removed, the step is captured again once it is repeated.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import nan
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor

from penwright.decoding.exported import DecodeStep, Inputs, is_near
from penwright.errors import PenwrightWarning

DEVICES = ("cuda",)
STEPS_BEFORE = 1  # number of consecutive steps with the same key (see _key()) before a step is captured in a graph
MOST_GRAPHS = 16  # maximum number of graphs kept in memory

Replay = Callable[[], None]
Pool = Any  # torch's handle of a graph's memory pool, which other graphs may share, or None
Recorded = tuple[Replay, Tensor, Pool]
ChangingInputs = tuple[Tensor, Tensor, Tensor | None]  # the tokens, cache lengths and cache rows of a step
Key = tuple[object, ...]


def record_cuda_graph(step: Callable[[], Tensor], device: torch.device, pool: Pool) -> Recorded:
    """Capture `step` in a CUDA graph without running it; return its replay function, result and memory pool.

    Graphs with the same pool overwrite each other's results when they are replayed. `torch.cuda.graph` would first free
    all unused memory, which takes as long as several steps.

    Garbage collection is off during the capture, because freeing an older graph would make it fail. A capture that ends
    in another thread turns collection on again.
    """
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    own = own_stream(device)
    own.wait_stream(current)
    # `torch.cuda.stream` also switches to `device`, and back even if the capture fails
    with torch.cuda.stream(own), _without_garbage_collection():
        # other threads may use the GPU during the capture
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            logits = step()
        finally:
            graph.capture_end()
    current.wait_stream(own)
    return graph.replay, logits, graph.pool()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def own_stream(device: torch.device) -> "torch.cuda.Stream":
    """Return this thread's capture stream: concurrent matrix products must not share the workspace of a stream."""
    return _stream(device, get_ident())


@cache
def _stream(device: torch.device, thread: int) -> "torch.cuda.Stream":
    return torch.cuda.Stream(device)


class _Graph(NamedTuple):
    """A decoding step captured in a CUDA graph."""

    moving: ChangingInputs  # the tensors from which the graph reads the inputs that change at each step
    replay: Replay
    logits: Tensor  # the tensor to which the graph writes its result
    pool: Pool


class StepGraphs:
    """A decoding step that captures a graph for each frequent key (see _key()), and replays the graph."""

    def __init__(self, step: DecodeStep):
        self._step = step
        self._graphs: dict[Key, _Graph] = {}  # the least recently used graph comes first
        self._last: Key = ()
        self._n_in_a_row = 0  # number of consecutive steps whose key was `_last`
        self._works = True

    def __call__(self, inputs: Inputs) -> Tensor:
        """Run the step, which updates the cache; return the logits."""
        key = _key(self._step, inputs)
        graph = self._graphs.pop(key, None)
        if graph is None:
            self._n_in_a_row = self._n_in_a_row + 1 if key == self._last else 1
            self._last = key
            if self._n_in_a_row <= STEPS_BEFORE or not self._works:
                logits: Tensor = self._step(*inputs)
                return logits
            return self._capture(key, inputs)
        self._graphs[key] = graph
        for old, new in zip(graph.moving, _changing_inputs(inputs), strict=True):
            if old is not None and new is not None:
                old.copy_(new)
        graph.replay()
        return graph.logits.clone()

    def _capture(self, key: Key, inputs: Inputs) -> Tensor:
        """Run the step without a graph; capture a graph, and keep it if its replay gives the same logits.

        It is safe to run a step twice: it only writes the same keys and values again.
        """
        logits: Tensor = self._step(*inputs)
        tokens, lengths, kept, origins, source, is_token = inputs
        moving = tokens.clone(), lengths.clone(), None if origins is None else origins.clone()
        own: Inputs = (moving[0], moving[1], kept, moving[2], source, is_token)
        try:
            pool = next((graph.pool for graph in self._graphs.values()), None)  # a pool lives as long as its graphs
            graph = _Graph(moving, *record_cuda_graph(lambda: self._step(*own), tokens.device, pool))
            graph.logits.fill_(nan)  # an empty graph would leave NaNs, which the comparison with the logits detects
            graph.replay()
            self._works, reason = is_near(graph.logits, logits), "a graph computes wrong logits"
        except RuntimeError as error:  # raised if a capture fails
            self._works, reason = False, str(error).partition("\n")[0]
        if self._works:
            self._graphs[key] = graph
            for oldest in list(self._graphs)[:-MOST_GRAPHS]:
                del self._graphs[oldest]
        else:
            self._graphs.clear()
            warnings.warn(
                "CUDA graphs do not work on this GPU, so decoding is slower: kernels are launched one by one. "
                f"The reason: {reason}",
                PenwrightWarning,
                stacklevel=2,
            )
        return logits


def _changing_inputs(inputs: Inputs) -> ChangingInputs:
    """Return the inputs that change at each step."""
    tokens, lengths, _, origins, _, _ = inputs
    return tokens, lengths, origins


def _key(step: DecodeStep, inputs: Inputs) -> Key:
    """Return the addresses and shapes of the fixed input buffers, and the shapes of the inputs that change.

    All layers have the same shapes and strides, so those of the first layer are enough.
    """
    _, _, kept, _, source, is_token = inputs
    weights = [next(step.parameters()), step.model.decoder.cache_like]  # these move if the model is moved or fused
    staying = [*weights, *kept, *source, *([] if is_token is None else [is_token])]
    like = [*kept[:1], *source[:1], *staying[-1:]]
    return (
        *(x.data_ptr() for x in staying),
        *((x.shape, x.stride()) for x in like),
        *(None if x is None else x.shape for x in _changing_inputs(inputs)),
    )
