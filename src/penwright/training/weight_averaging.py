"""An average of the weights, which often scores better than the last weights do (Polyak and Juditsky 1992)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from penwright.model.weights import weights_of


class WeightAverage:
    """An exponential moving average that begins as a plain mean, so that the first weights are soon forgotten."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.current = weights_of(model)
        self.average = {name: tensor.clone() for name, tensor in self.current.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the weights after this step, counted from 1."""
        weight = 1 - min(self.decay, step / (step + 10))
        torch._foreach_lerp_(list(self.average.values()), list(self.current.values()), weight)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights within the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Set the average to these weights."""
        for name, tensor in self.average.items():
            tensor.copy_(weights[name])

    @torch.no_grad()
    def _swap(self) -> None:
        for name, current in self.current.items():
            kept = current.clone()
            current.copy_(self.average[name])
            self.average[name].copy_(kept)
