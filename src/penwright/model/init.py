"""Initialization of parameters: balanced scales, and sublayers that start with an output of zero."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import sqrt
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from penwright.config import ModelSettings
from penwright.model.attention import Attention
from penwright.model.feed_forward import FeedForward


@torch.no_grad()
def initialise(model: nn.Module, settings: ModelSettings) -> None:
    """Initialize weights from N(0, 1/width) and biases to zero.

    The output weights of each sublayer are set to zero or divided by sqrt(2 * n_layers).
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    # initialize embeddings after linear layers, because an output layer may share their matrix
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        if isinstance(module, Attention | FeedForward):
            adding = module.output if isinstance(module, Attention) else module.down
            if settings.zero_init_outputs:
                nn.init.zeros_(adding.weight)
            else:
                adding.weight.div_(sqrt(2 * settings.n_layers))


class _WithoutInit(TorchFunctionMode):
    """A context in which the functions of torch.nn.init do nothing."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return given.get("tensor")
        return func(*args, **given)


@contextmanager
def no_init_weights() -> Iterator[None]:
    """Build models without initializing their weights inside the `with` block, because weights are loaded later."""
    with _WithoutInit():
        yield


@contextmanager
def shapes_only() -> Iterator[None]:
    """Build models on the meta device inside the `with` block, without allocating memory for their weights.

    Random weights and arithmetic on this device would be slow, since torch would import its compiler (1.5 s). So
    weights are not initialized, and positions are computed on the CPU.
    """
    with torch.device("meta"), no_init_weights():
        yield
