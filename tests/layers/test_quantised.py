"""Weights of 8 bits: what they stand for, and how far their products are from those of the layer they replace."""

import pytest
import torch
from torch import nn

from penwright.config import ModelSettings
from penwright.model.decoder_only import DecoderOnly
from penwright.model.quantised import BLOCK, COMPILES, Int8Linear, int8_product, packed_weights, quantise, to_precision


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(1,), (7,), (2, 1), (2, 3)])
def test_products_are_within_a_hundredth_of_those_of_the_layer(rows: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(1)
    layer, x = nn.Linear(64, 48, bias=bias), torch.randn(*rows, 64)
    exact, rounded = layer(x), Int8Linear(layer)(x)
    assert rounded.shape == exact.shape and rounded.dtype == x.dtype
    assert (rounded - exact).norm() < 0.015 * exact.norm()


def test_gradients_pass_through_the_weights_that_int8_stands_for() -> None:
    layer, x = Int8Linear(nn.Linear(64, 48)), torch.randn(3, 64, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(3, 64))


def test_each_row_of_weights_has_its_own_scale() -> None:
    layer = nn.Linear(16, 3, bias=False)
    with torch.no_grad():
        layer.weight *= torch.tensor([[1e-3], [1.0], [1e3]])
    off = (Int8Linear(layer).weight - layer.weight).abs().amax(1) / layer.weight.abs().amax(1)
    assert off.max() < 0.01


def test_a_row_is_rounded_alike_whatever_stands_beside_it() -> None:
    layer, rows = Int8Linear(nn.Linear(32, 8)), torch.randn(6, 32)
    torch.testing.assert_close(layer(rows)[:3], layer(rows[:3]), rtol=0, atol=0)


def test_rows_of_zeros_stay_zero() -> None:
    layer = Int8Linear(nn.Linear(8, 4, bias=False))
    assert not any(layer(torch.zeros(n_rows, 8)).any() for n_rows in (1, 3))


@pytest.mark.skipif(not COMPILES, reason="without instructions for int8, a single row is rounded to bfloat16")
def test_a_row_has_the_same_product_alone_and_among_others() -> None:
    layer, x = Int8Linear(nn.Linear(64, 48)), torch.randn(5, 64)
    assert torch.equal(torch.cat([layer(row[None]) for row in x]), layer(x))


def test_every_linear_layer_is_replaced_and_the_rest_stays_exact() -> None:
    model = DecoderOnly(20, ModelSettings.model_validate({"d_model": 16, "n_heads": 2, "n_layers": 2}))
    to_precision(model, "int8")
    assert not any(isinstance(part, nn.Linear) for part in model.modules())
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_in_bfloat16_angles_stay_exact() -> None:
    model = DecoderOnly(20, ModelSettings.model_validate({"d_model": 16, "n_heads": 2, "n_layers": 2}))
    to_precision(model, "bfloat16")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.decoder.rotary is not None and model.decoder.rotary.frequencies.dtype == torch.float32


def test_a_module_without_linear_layers_is_left_alone() -> None:
    module = nn.Sequential(nn.LayerNorm(4), nn.ReLU())
    quantise(module)
    assert [type(part) for part in module] == [nn.LayerNorm, nn.ReLU]


@pytest.mark.parametrize(("width", "columns"), [(64, 64), (100, 70), (8, 3)])
def test_packed_weights_give_the_same_products(width: int, columns: int) -> None:
    layer, rows = Int8Linear(nn.Linear(width, columns)), torch.randn(5, width)
    packed, offsets, scales = packed_weights(layer.whole, layer.scale)
    assert packed.shape[0] * BLOCK == len(offsets) == len(scales)
    found = torch.ops.penwright.int8_product(rows, packed, offsets, scales, columns)
    assert torch.equal(found, int8_product(rows, layer.whole, layer.scale.float()))
    assert torch.equal(offsets[:columns], 128 * layer.whole.sum(1, dtype=torch.int32))
