"""Attention of a few targets to cached sources, compared with the plain kernel."""

import pytest
import torch

from penwright.model.attention import KernelMask, plain_attention
from penwright.model.attention_kernels import COMPILES, stepping_attention

ROWS, HEADS, TARGETS, SOURCES, WIDTH = 3, 4, 2, 7, 8


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.skipif(not COMPILES, reason="no AVX-512")), False])
def as_an_operator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penwright.model.attention_kernels.COMPILES", request.param)


@pytest.mark.usefixtures("as_an_operator")
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_stepping_attention_equals_the_plain_kernel(n_kv_heads: int, masked: bool) -> None:
    queries, keys, values = torch.randn(ROWS, HEADS, TARGETS, WIDTH), *torch.randn(2, ROWS, n_kv_heads, SOURCES, WIDTH)
    mask = KernelMask(torch.ones(ROWS, 1, TARGETS, SOURCES).tril(4).bool() if masked else None)
    found = stepping_attention()(queries, keys, values, mask, 0.0)
    torch.testing.assert_close(found, plain_attention(queries, keys, values, mask, 0.0))


@pytest.mark.usefixtures("as_an_operator")
@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16])
def test_stepping_attention_reads_sources_from_their_origin_rows(cache_dtype: torch.dtype) -> None:
    queries, kept = torch.randn(ROWS, HEADS, 1, WIDTH), torch.randn(2, ROWS + 1, HEADS, SOURCES, WIDTH).to(cache_dtype)
    origins = torch.randint(0, ROWS + 1, (ROWS, SOURCES))
    own = [torch.stack([x[row, :, place] for place, row in enumerate(origins.T)], 2) for x in kept]
    found = stepping_attention(origins)(queries, *kept, KernelMask(), 0.0)
    torch.testing.assert_close(found, plain_attention(queries, *(x.float() for x in own), KernelMask(), 0.0))
    assert found.dtype == torch.float32
