"""Muon: momentum whose every matrix is made orthogonal before it is applied (Jordan et al. 2024)."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from penwright.training.distributed import ALONE, Ranks

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that drives singular values towards 1 in five rounds


def orthogonalise(
    matrices: Float[Tensor, "n rows columns"], precision: torch.dtype, rounds: int = 5
) -> Float[Tensor, "n rows columns"]:
    """The nearest semi-orthogonal matrix to each, roughly: singular values end between 0.7 and 1.2."""
    x = matrices.to(precision)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x  # the smaller product is the cheaper
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(rounds):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class MuonOptimizer(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; matrices of one shape are done together, since many small products are slow.

    torch.optim.Muon computes the same, matrix by matrix and always in bfloat16, which few CPUs have.
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
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]  # no loss is computed
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._step_together(parameters, group["lr"], group["momentum"], group["weight_decay"])

    def _step_together(self, parameters: list[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, buffers, momentum)  # Nesterov: look one step ahead
        updates = self.ranks.divide(partial(orthogonalise, precision=self.precision), torch.stack(ahead))
        rows, columns = parameters[0].shape
        torch._foreach_mul_(parameters, 1 - lr * weight_decay)
        torch._foreach_add_(parameters, list(updates), alpha=-lr * max(1.0, rows / columns) ** 0.5)
