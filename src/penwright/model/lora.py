"""LoRA (Hu et al. 2022): frozen matrices, each with a trained update of low rank."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from penwright.config import LoraSettings
from penwright.model.attention import Attention
from penwright.model.layers import FeedForward

A, B = "lora_A", "lora_B"  # names of the two low-rank factors, as in PEFT


class LoraLinear(nn.Linear):
    """A frozen linear layer with an adapter: W x + scale * B A x. B starts at zero, so outputs start unchanged."""

    def __init__(self, frozen: nn.Linear, rank: int, scale: float):
        super().__init__(frozen.in_features, frozen.out_features, bias=False, device="meta")
        self.weight, self.bias, self.scale = frozen.weight, frozen.bias, scale
        self.lora_A = nn.Parameter(torch.empty(rank, frozen.in_features, device=frozen.weight.device))
        self.lora_B = nn.Parameter(torch.zeros(frozen.out_features, rank, device=frozen.weight.device))
        nn.init.kaiming_uniform_(self.lora_A, a=sqrt(5))

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:  # noqa: D102 - as in nn.Linear
        if torch.is_autocast_enabled(x.device.type):  # convert x once, for both the weight and lora_A
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return super().forward(x) + F.linear(F.linear(x, self.lora_A) * self.scale, self.lora_B)


def add_lora(model: nn.Module, settings: LoraSettings, head: Sequence[str] = ()) -> None:
    """Freeze the model except for `head`, and add an adapter to each block layer that is named in the settings.

    Args:
        model: The model to change.
        settings: The rank, and the names of the layers.
        head: The names of the modules that are trained in full.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.split(".")[0] in head)
    for name, layer in adapted_layers(model, settings).items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, LoraLinear(layer, settings.rank, settings.scale))


def adapted_layers(model: nn.Module, settings: LoraSettings) -> dict[str, nn.Linear]:
    """Return, by name, the layers that get an adapter."""
    return {
        f"{place}.{name}": layer
        for place, module in model.named_modules()
        if isinstance(module, Attention | FeedForward)
        for name, layer in module.named_children()
        if isinstance(layer, nn.Linear) and name in settings.targets
    }


def narrow(model: nn.Module) -> None:
    """Store the frozen matrices of adapted layers in bfloat16, in which autocast multiplies them."""
    for weight in _frozen_matrices(model):
        weight.data = weight.data.bfloat16()


@contextmanager
def widened(model: nn.Module) -> Iterator[None]:
    """Convert the bfloat16 matrices to float32 inside the `with` block, to multiply without autocast."""
    matrices = _frozen_matrices(model)
    narrow_ones = [weight.data for weight in matrices]
    for weight in matrices:
        weight.data = weight.data.float()
    try:
        yield
    finally:
        for weight, kept in zip(matrices, narrow_ones, strict=True):
            weight.data = kept


def _frozen_matrices(model: nn.Module) -> list[Tensor]:
    return [module.weight for module in model.modules() if isinstance(module, LoraLinear)]


def merged(base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], settings: LoraSettings) -> dict[str, Tensor]:
    """Return the base weights with the adapter added; weights that were trained in full replace those of the base.

    The sums are in float32, because bfloat16 would round away most of a small update.
    """
    weights = {**base, **{name: tensor for name, tensor in adapter.items() if not name.endswith((A, B))}}
    for name in adapter:
        if name.endswith(A):
            place = name.removesuffix(A)
            update = adapter[place + B].float() @ adapter[name].float()
            weights[f"{place}weight"] = weights[f"{place}weight"].float() + settings.scale * update
    return weights
