"""The optimizer of a run: one or two of torch's kind, stepped together, their state kept by parameter names."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from penwright.config import AdamW, Muon, Optimizer
from penwright.layers.block import Block
from penwright.training.distributed import ALONE, Ranks
from penwright.training.muon import MuonOptimizer

Named = dict[str, nn.Parameter]


class Optimizers:
    """What changes the weights of a model at each step."""

    def __init__(
        self, model: nn.Module, settings: Optimizer, precision: torch.dtype = torch.float32, ranks: Ranks = ALONE
    ):
        """`precision` is that of Muon's matrix products, which `ranks` share."""
        parameters = dict(model.named_parameters())
        inner = _matrices_of_blocks(model) if settings.type == "muon" else {}
        rest = {name: parameter for name, parameter in parameters.items() if name not in inner}
        adamw = settings.adamw if settings.type == "muon" else settings
        self.parts: list[tuple[torch.optim.Optimizer, Named]] = [(_adamw(model, rest, adamw), rest)]
        if isinstance(settings, Muon):
            muon = MuonOptimizer(
                inner.values(),
                lr=settings.learning_rate,
                momentum=settings.momentum,
                weight_decay=settings.weight_decay,
                precision=precision,
                ranks=ranks,
            )
            self.parts.append((muon, inner))
        self.peaks = [[group["lr"] for group in part.param_groups] for part, _ in self.parts]

    def step(self, factor: float) -> None:
        """One step at `factor` times the peak learning rates; gradients are forgotten afterwards."""
        for (part, _), peaks in zip(self.parts, self.peaks, strict=True):
            for group, peak in zip(part.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            part.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part, _ in self.parts:
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Moments and counters, by the name of their parameter."""
        return {
            f"{name}/{key}": value
            for part, named in self.parts
            for name, parameter in named.items()
            for key, value in part.state.get(parameter, {}).items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Put back what state() gave; raises ValueError for a tensor of another shape."""
        for part, named in self.parts:
            for name, parameter in named.items():
                keys = [key for key in state if key.rpartition("/")[0] == name]
                if wrong := [key for key in keys if state[key].numel() > 1 and state[key].shape != parameter.shape]:
                    raise ValueError(f"{wrong[0]} has another shape than its parameter")
                device = parameter.device  # checkpoints are read into the memory of the CPU
                part.state[parameter] = {key.rpartition("/")[2]: state[key].to(device, copy=True) for key in keys}


def blocks_of(model: nn.Module) -> list[Block]:
    """All blocks of all stacks."""
    return [module for module in model.modules() if isinstance(module, Block)]


def _matrices_of_blocks(model: nn.Module) -> Named:
    inner = {id(parameter) for block in blocks_of(model) for parameter in block.parameters() if parameter.ndim == 2}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in inner}


def _adamw(model: nn.Module, parameters: Named, settings: AdamW) -> torch.optim.Optimizer:
    """Weight decay pulls on matrices only: to shrink norms, biases and embeddings has no use."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed = [p for p in parameters.values() if p.ndim >= 2 and id(p) not in tables]
    others = [p for p in parameters.values() if p.ndim < 2 or id(p) in tables]
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    kept = [group for group in groups if group["params"]]
    return torch.optim.AdamW(kept, settings.learning_rate, settings.betas, settings.eps, fused=True)
