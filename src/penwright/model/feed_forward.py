"""The position-wise feed-forward network: two layers and an activation, optionally with a gate (Shazeer 2020)."""

from collections.abc import Callable
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from penwright.config import ModelSettings
from penwright.model.dropout import Dropout


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
