"""The optimizers of a run (AdamW, and Muon for matrices), and the moving average of the weights."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from penwright.config import AdamW, Muon, Optimizer, Recipe
from penwright.model.block import Block
from penwright.model.weights import weights_of
from penwright.training.cuda_graphs import TrainingGraphs
from penwright.training.distributed.parallel import like, locals_of
from penwright.training.distributed.ranks import ALONE, Ranks

# coefficients of the quintic polynomial of Muon's Newton-Schulz iteration
COEFFICIENTS = 3.4445, -4.7750, 2.0315


def orthogonalize(
    matrices: Float[Tensor, "n rows columns"], precision: torch.dtype, rounds: int = 5
) -> Float[Tensor, "n rows columns"]:
    """Approximate the nearest semi-orthogonal matrices: singular values become 0.7 to 1.2, unless they are tiny."""
    x = matrices.to(precision)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x  # for a wide matrix, the product x @ x.mT is smaller
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(rounds):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class MuonOptimizer(torch.optim.Optimizer):
    """Muon: Nesterov momentum whose updates are orthogonalized.

    Matrices of the same shape are processed together, since many small matrix multiplications are slow.
    torch.optim.Muon computes the same updates, but one matrix at a time and always in bfloat16, which few CPUs support.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        precision: torch.dtype = torch.float32,
        ranks: Ranks = ALONE,
    ):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.precision, self.ranks = precision, ranks

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]  # returns no loss
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._step_together(parameters, group["lr"], group["momentum"], group["weight_decay"])

    def _step_together(
        self, parameters: list[Tensor], lr: float | Tensor, momentum: float, weight_decay: float
    ) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        n_rows, n_columns = parameters[0].shape
        buffers = locals_of([self.state[parameter]["momentum_buffer"] for parameter in parameters])
        gradients = locals_of([parameter.grad for parameter in parameters if parameter.grad is not None])
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        lookahead = torch._foreach_lerp(gradients, buffers, momentum)  # Nesterov momentum: look one step ahead
        updates = self.ranks.map_matrices(partial(orthogonalize, precision=self.precision), lookahead, n_rows)
        weights = locals_of(parameters)
        if weight_decay:
            torch._foreach_mul_(weights, 1 - lr * weight_decay)
        scale = -(max(1.0, n_rows / n_columns) ** 0.5)
        if isinstance(lr, Tensor):
            torch._foreach_add_(weights, torch._foreach_mul(updates, lr), alpha=scale)
        else:
            torch._foreach_add_(weights, updates, alpha=lr * scale)


Named = dict[str, nn.Parameter]
# the names of the tensors that each optimizer keeps for a parameter
KEPT: dict[type, set[str]] = {
    MuonOptimizer: {"momentum_buffer"},
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
}


class Optimizers:
    """The optimizers of a model: AdamW alone, or Muon for the matrices of the blocks and AdamW for the rest."""

    def __init__(
        self, model: nn.Module, settings: Optimizer, precision: torch.dtype = torch.float32, ranks: Ranks = ALONE
    ):
        """Set up the optimizers. Muon multiplies matrices in `precision`, with the work divided among `ranks`."""
        parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        inner = _matrices_of_blocks(model) if settings.type == "muon" else {}
        others = {name: parameter for name, parameter in parameters.items() if name not in inner}
        adamw = settings.adamw if settings.type == "muon" else settings
        self.parts: list[tuple[torch.optim.Optimizer, Named]] = []
        if others:  # adapters are all matrices of blocks
            self.parts.append((_adamw(model, others, adamw), others))
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

    def step(self, factor: float, graphs: TrainingGraphs | None = None) -> None:
        """Take a step with `factor` times the peak learning rates, then clear the gradients."""
        for (part, _), peaks in zip(self.parts, self.peaks, strict=True):
            for group, peak in zip(part.param_groups, peaks, strict=True):
                group["lr"] = peak * factor if graphs is None else _in_tensor(peak * factor, group)
        if graphs is None:
            self._update()
        else:
            graphs.update(self._update)
        self.zero_grad()

    def _update(self) -> None:
        for part, _ in self.parts:
            part.step()

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for part, _ in self.parts:
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Return the moments and counters of all parameters, under keys like "PARAMETER_NAME/exp_avg"."""
        return {
            f"{name}/{key}": value
            for part, named in self.parts
            for name, parameter in named.items()
            for key, value in part.state.get(parameter, {}).items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state()` returned.

        Raises ValueError for the state of another optimizer, and for a tensor whose shape differs from its parameter's.
        """
        for part, named in self.parts:
            for name, parameter in named.items():
                keys = [key for key in state if key.rpartition("/")[0] == name]
                if {key.rpartition("/")[2] for key in keys} not in (set(), KEPT[type(part)]):
                    raise ValueError(f"{name} was trained by another optimizer. Restore [optimizer] in the recipe")
                if wrong := [key for key in keys if state[key].numel() > 1 and state[key].shape != parameter.shape]:
                    raise ValueError(f"{wrong[0]} has a different shape than its parameter")
                part.state[parameter] = {key.rpartition("/")[2]: like(state[key], parameter) for key in keys}


def _in_tensor(rate: float, group: dict[str, Any]) -> Tensor:
    """Write a learning rate into the tensor from which CUDA graphs read it; return this tensor."""
    if not isinstance(group["lr"], Tensor):
        group |= {"lr": torch.zeros((), device=group["params"][0].device), "capturable": True}
    tensor: Tensor = group["lr"]
    return tensor.fill_(rate)


def blocks_of(model: nn.Module) -> list[Block]:
    """Return all Transformer blocks of the model."""
    return [module for module in model.modules() if isinstance(module, Block)]


def _matrices_of_blocks(model: nn.Module) -> Named:
    inner = {id(parameter) for block in blocks_of(model) for parameter in block.parameters() if parameter.ndim == 2}
    named = model.named_parameters()
    return {name: parameter for name, parameter in named if id(parameter) in inner and parameter.requires_grad}


def _adamw(model: nn.Module, parameters: Named, settings: AdamW) -> torch.optim.Optimizer:
    """Create AdamW. Only matrices get weight decay: decaying norms, biases and embeddings does not help."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed = [p for p in parameters.values() if p.ndim >= 2 and id(p) not in tables]
    others = [p for p in parameters.values() if p.ndim < 2 or id(p) in tables]
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    kept = [group for group in groups if group["params"]]
    return torch.optim.AdamW(kept, settings.learning_rate, settings.betas, settings.eps, fused=True)


class WeightAverage:
    """An exponential moving average of the weights, often better than the last weights (Polyak and Juditsky 1992).

    At first, it covers about the last tenth of the steps, so the first weights soon lose their influence.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.current = weights_of(model)
        self.average = {name: tensor.clone() for name, tensor in self.current.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the weights after step `step`, counted from 1."""
        weight = 1 - min(self.decay, step / (step + 10))
        torch._foreach_lerp_(locals_of([*self.average.values()]), locals_of([*self.current.values()]), weight)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights of the model by their average inside the `with` block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load the averaged weights."""
        for name, tensor in self.average.items():
            tensor.copy_(like(weights[name], tensor))

    @torch.no_grad()
    def _swap(self) -> None:
        for name, current in self.current.items():
            previous = current.clone()
            current.copy_(self.average[name])
            self.average[name].copy_(previous)


class BaseAverage(WeightAverage):
    """The weighted mean of a base model's weights and the trained weights (Wortsman et al. 2022).

    It keeps more of the skills of the base than the trained weights alone do.
    """

    def __init__(self, model: nn.Module, base_weight: float):
        super().__init__(model, decay=0.0)
        self.base_weight = base_weight
        self.base = {name: tensor.clone() for name, tensor in self.current.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Compute the mean again, with the current weights."""
        average, base, current = (locals_of([*each.values()]) for each in (self.average, self.base, self.current))
        torch._foreach_copy_(average, torch._foreach_lerp(current, base, self.base_weight))


def make_average(model: nn.Module, recipe: Recipe) -> WeightAverage | None:
    """Return the average of the weights that the recipe asks for, or None."""
    if recipe.finetuning and recipe.finetuning.base_weight:
        return BaseAverage(model, recipe.finetuning.base_weight)
    return WeightAverage(model, recipe.training.ema_decay) if recipe.training.ema_decay else None
