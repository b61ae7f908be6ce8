"""The feed-forward network: the formula of every activation, and dropout."""

import pytest
import torch
from torch import Tensor

from penwright.config import ModelSettings
from penwright.model.layers import ACTIVATIONS, GATED, FeedForward


def feed_forward_of(**changes: object) -> FeedForward:
    torch.manual_seed(5)
    return FeedForward(ModelSettings.model_validate({"d_model": 8, "n_heads": 2, "d_ff": 12} | changes))


def formula(kind: str, x: Tensor) -> Tensor:
    """Return the activation, computed with elementary functions."""
    match kind:
        case "relu":
            return x * (x > 0)
        case "relu_squared":
            return x**2 * (x > 0)
        case "silu" | "swiglu":
            return x / (1 + (-x).exp())
        case "gelu" | "geglu":
            return x * (1 + torch.erf(x / 2**0.5)) / 2
        case _:
            return x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_each_kind_computes_its_formula(kind: str, bias: bool) -> None:
    layer, x = feed_forward_of(feed_forward=kind, bias=bias), torch.randn(2, 3, 8)
    if kind in GATED:
        assert layer.gate is not None
        expected = layer.down(formula(kind, layer.gate(x)) * layer.up(x))
    else:
        expected = layer.down(formula(kind, layer.up(x)))
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_dropout_zeroes_its_share_of_the_hidden_layer(kind: str) -> None:
    layer = feed_forward_of(feed_forward=kind, feed_forward_dropout=0.25, d_ff=1000)
    hidden: list[Tensor] = []
    layer.down.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0]))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = torch.randn(10, 10, 8)
        layer.train()(x)
        layer.eval()(x)
    dropped = (hidden[0] == 0) & (hidden[1] != 0)
    share = dropped.sum() / (hidden[1] != 0).sum()
    assert abs(share.item() - 0.25) < 0.01


def test_each_token_is_computed_independently() -> None:
    layer, x = feed_forward_of(), torch.randn(2, 3, 8)
    torch.testing.assert_close(layer(x)[:, 1:2], layer(x[:, 1:2]))
