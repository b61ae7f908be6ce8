"""Int8 weights: the error of their products, rounding, and conversion of a model."""

import pytest
import torch
from torch import nn

from penwright.config import ModelSettings, Precision
from penwright.model.quantized import BLOCK, COMPILES, Int8Linear, int8_product, packed_weights, quantize, to_precision
from penwright.model.transformer import DecoderOnly, EncoderOnly
from penwright.model.weights import FITTED


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(1,), (7,), (2, 1), (2, 3)])
def test_int8_products_are_close_to_those_of_the_layer(rows: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(1)
    layer, x = nn.Linear(64, 48, bias=bias), torch.randn(*rows, 64)
    exact, rounded = layer(x), Int8Linear(layer)(x)
    assert rounded.shape == exact.shape and rounded.dtype == x.dtype
    assert (rounded - exact).norm() < 0.015 * exact.norm()


def test_gradients_use_the_dequantized_weights() -> None:
    layer, x = Int8Linear(nn.Linear(64, 48)), torch.randn(3, 64, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(3, 64))


def test_each_row_of_weights_has_its_own_scale() -> None:
    layer = nn.Linear(16, 3, bias=False)
    with torch.no_grad():
        layer.weight *= torch.tensor([[1e-3], [1.0], [1e3]])
    error = (Int8Linear(layer).weight - layer.weight).abs().amax(1) / layer.weight.abs().amax(1)
    assert error.max() < 0.01


def test_rounding_of_a_row_does_not_depend_on_other_rows() -> None:
    layer, rows = Int8Linear(nn.Linear(32, 8)), torch.randn(6, 32)
    torch.testing.assert_close(layer(rows)[:3], layer(rows[:3]), rtol=0, atol=0)


def test_zero_rows_stay_zero() -> None:
    layer = Int8Linear(nn.Linear(8, 4, bias=False))
    assert not any(layer(torch.zeros(n_rows, 8)).any() for n_rows in (1, 3))


@pytest.mark.parametrize("size", [1e-38, 1e-20, 1e-6, 1e6])
def test_tiny_and_large_rows_have_finite_close_products_beside_each_other(size: float) -> None:
    torch.manual_seed(1)
    layer, x = nn.Linear(64, 48, bias=False), torch.randn(5, 64) * torch.tensor([[size], [1], [0], [size], [1]])
    rounded, exact = Int8Linear(layer)(x), layer(x)
    assert rounded.isfinite().all()
    assert ((rounded - exact).norm(dim=1) <= 0.015 * exact.norm(dim=1) + 1e-8).all()


@pytest.mark.skipif(not COMPILES, reason="without instructions for int8, a single row is rounded to bfloat16")
def test_row_has_the_same_product_alone_and_in_a_batch() -> None:
    layer, x = Int8Linear(nn.Linear(64, 48)), torch.randn(5, 64)
    assert torch.equal(torch.cat([layer(row[None]) for row in x]), layer(x))


def test_to_precision_int8_replaces_every_linear_layer() -> None:
    model = DecoderOnly(20, ModelSettings.model_validate({"d_model": 16, "n_heads": 2, "n_layers": 2}))
    to_precision(model, "int8")
    assert not any(isinstance(part, nn.Linear) for part in model.modules())
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_to_precision_bfloat16_keeps_rotary_frequencies_exact() -> None:
    model = DecoderOnly(20, ModelSettings.model_validate({"d_model": 16, "n_heads": 2, "n_layers": 2}))
    to_precision(model, "bfloat16")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.decoder.rotary is not None and model.decoder.rotary.frequencies.dtype == torch.float32


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize("problem", ["regression", "multi_label_classification", "single_label_classification"])
def test_to_precision_keeps_fitted_parameters_exact(precision: Precision, problem: str) -> None:
    settings = {"d_model": 16, "n_heads": 2, "n_layers": 1, "problem_type": problem, "ngrams": True}
    balanced = {"balanced": problem == "single_label_classification"}
    model = EncoderOnly(20, ModelSettings.model_validate(settings | balanced), 1 if problem == "regression" else 3)
    fitted = {name: value.data.fill_(2014.3).clone() for name, value in model.named_parameters() if name in FITTED}
    to_precision(model, precision)
    assert len(fitted) == 2 and all(torch.equal(model.get_parameter(name), value) for name, value in fitted.items())


def test_module_without_linear_layers_is_unchanged() -> None:
    module = nn.Sequential(nn.LayerNorm(4), nn.ReLU())
    quantize(module)
    assert [type(part) for part in module] == [nn.LayerNorm, nn.ReLU]


@pytest.mark.parametrize(("width", "columns"), [(64, 64), (100, 70), (8, 3)])
def test_packed_weights_give_the_same_products(width: int, columns: int) -> None:
    layer, rows = Int8Linear(nn.Linear(width, columns)), torch.randn(5, width)
    packed, offsets, scales = packed_weights(layer.weight_int8, layer.scale)
    assert packed.shape[0] * BLOCK == len(offsets) == len(scales)
    found = torch.ops.penwright.int8_product(rows, packed, offsets, scales, columns)
    assert torch.equal(found, int8_product(rows, layer.weight_int8, layer.scale.float()))
    assert torch.equal(offsets[:columns], 128 * layer.weight_int8.sum(1, dtype=torch.int32))
