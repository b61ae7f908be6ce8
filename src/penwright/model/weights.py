"""A model's weights as named tensors, each once however many parts share it."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from penwright.errors import PenwrightError


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters themselves, by name; shared ones appear under the first of their names."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor], origin: str) -> None:
    """Copy the weights in; raises PenwrightError that names what is missing, superfluous or of another shape."""
    own = weights_of(model)
    if missing := sorted(own.keys() - weights.keys()):
        raise PenwrightError(f"{origin} lacks {', '.join(missing[:5])}: it was saved from another model")
    if superfluous := sorted(weights.keys() - own.keys()):
        raise PenwrightError(f"{origin} has {', '.join(superfluous[:5])}, which this model has not")
    for name, parameter in own.items():
        if parameter.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)} where this model has {tuple(parameter.shape)}"
            raise PenwrightError(f"{origin}: {name} is {shapes}")
        parameter.copy_(weights[name])
