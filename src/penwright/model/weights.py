"""The weights of a model as named tensors; shared weights occur once."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from penwright.errors import PenwrightError


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by name, without copying; shared ones appear under their first name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor], origin: str) -> None:
    """Copy weights into the model; raise PenwrightError if names or shapes do not match."""
    own = weights_of(model)
    if missing := sorted(own.keys() - weights.keys()):
        raise PenwrightError(f"{origin} lacks {', '.join(missing[:5])}: it was saved from another model")
    if superfluous := sorted(weights.keys() - own.keys()):
        raise PenwrightError(f"{origin} has {', '.join(superfluous[:5])}, which this model does not have")
    for name, parameter in own.items():
        if parameter.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)} but {tuple(parameter.shape)} in this model"
            raise PenwrightError(f"{origin}: {name} is {shapes}")
        parameter.copy_(weights[name])
