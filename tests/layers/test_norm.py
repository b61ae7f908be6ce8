"""The norms: their formulas, and the place of eps."""

import torch

from penwright.config import NormSettings
from penwright.model.layers import make_norm

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    norm = make_norm(6, NormSettings(type="rms", eps=0.1), bias=True)
    torch.testing.assert_close(norm(X), X / (X.square().mean(-1, keepdim=True) + 0.1).sqrt())


def test_layer_norm_also_subtracts_the_mean() -> None:
    norm = make_norm(6, NormSettings(type="layer", eps=0.1), bias=True)
    centered = X - X.mean(-1, keepdim=True)
    torch.testing.assert_close(norm(X), centered / (centered.square().mean(-1, keepdim=True) + 0.1).sqrt())


def test_only_a_layer_norm_with_bias_has_a_bias() -> None:
    names = {
        (kind, bias): [name for name, _ in make_norm(6, NormSettings(type=kind), bias=bias).named_parameters()]
        for kind in ("rms", "layer")
        for bias in (False, True)
    }
    assert names.pop(("layer", True)) == ["weight", "bias"]
    assert all(found == ["weight"] for found in names.values())
