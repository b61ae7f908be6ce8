"""The layers of a block besides attention: norms, dropout and the feed-forward network."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from penwright.config import ModelSettings, NormSettings

LEVELS = 2**15  # number of probabilities that dropout on a CPU can have


class RMSNorm(nn.RMSNorm):
    """RMSNorm that casts its weight to the dtype of its input, as fast kernels require; it sums in float32."""

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """Normalize the last dimension."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def make_norm(width: int, settings: NormSettings, *, bias: bool) -> nn.Module:
    """Make a norm over the last dimension; only LayerNorm can have a bias."""
    if settings.type == "rms":
        return RMSNorm(width, eps=settings.eps)
    return nn.LayerNorm(width, eps=settings.eps, bias=bias)


@torch.library.custom_op("penwright::dropout_factors", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def dropout_factors(like: torch.Tensor, p: float) -> torch.Tensor:
    """Draw a factor for each element of `like`: 0 with probability p, otherwise 1 / (1 - p).

    This custom operator is faster than `F.dropout` and than code from torch.compile: it draws 16 bits per element.
    """
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)  # an int64 holds four int16s
    levels = draws.view(torch.int16)[: like.numel()].view(like.shape).bitwise_and_(LEVELS - 1)
    dropped = max(1, min(round(p * LEVELS), LEVELS - 1))
    return levels.sub_(dropped - 1).clamp_(0, 1).to(like.dtype).mul_(LEVELS / (LEVELS - dropped))


@dropout_factors.register_fake
def _(like: torch.Tensor, p: float) -> torch.Tensor:
    return torch.empty(like.shape, dtype=like.dtype)


def drop(x: Float[Tensor, "*shape"], p: float) -> Float[Tensor, "*shape"]:
    """Zero elements with probability p and scale up the rest; on a CPU, p is rounded to a multiple of 1/32768."""
    if p == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    return x * dropout_factors(x.detach(), p)


class Dropout(nn.Dropout):
    """Dropout that is faster than `nn.Dropout` on a CPU."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Apply dropout in training mode; in evaluation mode, return `x`."""
        return drop(x, self.p) if self.training else x


def relu_squared(x: Tensor) -> Tensor:
    """Return ReLU(x)^2 (So et al. 2021, Primer)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu_squared": relu_squared,
    "swiglu": F.silu,
    "geglu": F.gelu,
}
GATED = ("swiglu", "geglu")


class FeedForward(nn.Module):
    """A feed-forward network with dropout on its hidden layer.

    It computes down(activation(up(x))), or, with a gate, down(activation(gate(x)) * up(x)).
    """

    def __init__(self, settings: ModelSettings):
        super().__init__()
        width, hidden, bias = settings.d_model, settings.d_ff, settings.bias
        self.activation = ACTIVATIONS[settings.feed_forward]
        self.gate = nn.Linear(width, hidden, bias=bias) if settings.feed_forward in GATED else None
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)
        self.dropout = Dropout(settings.feed_forward_dropout)

    def forward(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"]:
        """Apply the network to each position."""
        hidden = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
        return self.down(self.dropout(hidden))
