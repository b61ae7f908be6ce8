"""Attention: kernels, scaling, masks, and heads that share keys and values."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from penwright.config import ModelSettings
from penwright.model.attention import (
    CAUSAL_BLOCK,
    Attention,
    KernelMask,
    Mask,
    _single_target_attention,
    fused_attention,
    plain_attention,
)

CAUSAL = Mask(causal=True).resolve(torch.arange(5)[None], 5)


def attention_of(**changes: object) -> Attention:
    torch.manual_seed(4)
    table = {"d_model": 12, "n_heads": 2, "zero_init_outputs": False} | changes
    return Attention(ModelSettings.model_validate(table)).double().eval()


def random_heads(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(6))


@pytest.mark.parametrize(
    ("mask", "length"),
    [
        (KernelMask(), 5),
        (CAUSAL, 5),
        (Mask(causal=True, window=2).resolve(torch.arange(5)[None], 5), 5),
        (CAUSAL, CAUSAL_BLOCK),
        (CAUSAL, 2 * CAUSAL_BLOCK + 3),
    ],
)
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_plain_kernel_matches_the_fused_kernel(mask: KernelMask, length: int, n_kv_heads: int) -> None:
    inputs = [random_heads(2, heads, length, 6).requires_grad_() for heads in (4, n_kv_heads, n_kv_heads)]
    plain, fused = (kernel(*inputs, mask, 0.0) for kernel in (plain_attention, fused_attention))
    torch.testing.assert_close(plain, fused)
    for ours, theirs in zip(
        torch.autograd.grad(plain.square().sum(), inputs),
        torch.autograd.grad(fused.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("no_type_checks")
def test_varying_lengths_are_compiled_once() -> None:
    compiled = CompileCounter()
    attend = torch.compile(lambda *inputs: plain_attention(*inputs, CAUSAL, 0.0), backend=compiled, dynamic=True)
    for length in (20, 3 * CAUSAL_BLOCK, 2 * CAUSAL_BLOCK + 3, CAUSAL_BLOCK + 1, 5):
        attend(*(random_heads(2, 2, length, 6) for _ in range(3)))
    assert compiled.frame_count == 1


def test_bfloat16_autocast_is_close_to_float32() -> None:
    attention, x = attention_of().float(), random_heads(2, 5, 12).float().requires_grad_()
    exact = attention(x, attention.keys_values(x), CAUSAL)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = attention(x, attention.keys_values(x), CAUSAL)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.01)


def test_zero_scores_are_not_masked() -> None:
    values = random_heads(1, 1, 5, 4)
    found = fused_attention(torch.zeros_like(values), values, values, CAUSAL, 0.0)
    running_mean = values.cumsum(2) / torch.arange(1, 6)[:, None]
    torch.testing.assert_close(found, running_mean)


@pytest.mark.parametrize("d_head", [4, 16])
def test_scores_are_divided_by_the_root_of_the_head_width(d_head: int) -> None:
    queries, keys, values = (random_heads(2, 3, 5, d_head) for _ in range(3))
    expected = (queries @ keys.mT / d_head**0.5).softmax(-1) @ values
    torch.testing.assert_close(fused_attention(queries, keys, values, KernelMask(), 0.0), expected)


def test_mask_is_applied_before_the_softmax() -> None:
    values = torch.ones(1, 1, 5, 4, dtype=torch.float64)
    found = fused_attention(random_heads(1, 1, 5, 4), random_heads(1, 1, 5, 4), values, CAUSAL, 0.0)
    torch.testing.assert_close(found, values)  # rows of weights that sum to one keep ones


def test_query_heads_share_keys_and_values_in_groups() -> None:
    queries, keys, values = random_heads(1, 4, 5, 6), random_heads(1, 2, 5, 6), random_heads(1, 2, 5, 6)
    repeated = [heads.repeat_interleave(2, dim=1) for heads in (keys, values)]
    expected = fused_attention(queries, *repeated, CAUSAL, 0.0)
    torch.testing.assert_close(fused_attention(queries, keys, values, CAUSAL, 0.0), expected)


def test_identical_rows_give_identical_outputs() -> None:
    attention, x = attention_of(), random_heads(1, 5, 12).expand(2, 5, 12)
    first, second = attention(x, attention.keys_values(x), CAUSAL)
    torch.testing.assert_close(first, second)


def test_keys_and_values_may_have_another_length() -> None:
    attention, x, source = attention_of(), random_heads(2, 5, 12), random_heads(2, 9, 12)
    assert attention(x, attention.keys_values(source), KernelMask()).shape == x.shape


def test_unmasked_attention_ignores_the_order_of_the_sources() -> None:
    attention, x, order = attention_of(), random_heads(2, 5, 12), torch.tensor([3, 1, 4, 0, 2])
    expected = attention(x, attention.keys_values(x), KernelMask())
    torch.testing.assert_close(attention(x, attention.keys_values(x[:, order]), KernelMask()), expected)


def test_attention_dropout_acts_only_in_training() -> None:
    attention, x = attention_of(attention_dropout=0.5), random_heads(2, 5, 12)
    used = attention(x, attention.keys_values(x), CAUSAL)
    torch.testing.assert_close(attention(x, attention.keys_values(x), CAUSAL), used)
    attention.train()
    assert not torch.allclose(attention(x, attention.keys_values(x), CAUSAL), used)


def test_qk_norm_makes_attention_independent_of_the_query_norm() -> None:
    torch.manual_seed(4)
    attention = Attention(ModelSettings.model_validate({"d_model": 12, "n_heads": 2}), qk_norm=True).double()
    torch.nn.init.eye_(attention.output.weight)
    x, values = random_heads(1, 5, 12), random_heads(1, 5, 12)
    kept = attention.keys_values(values)
    torch.testing.assert_close(attention(100 * x, kept, CAUSAL), attention(x, kept, CAUSAL), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 3])
def test_single_target_with_shared_keys_and_a_mask(rows: int) -> None:
    queries, keys, values = random_heads(3, 8, 1, 4), random_heads(3, 2, 7, 4), random_heads(3, 2, 7, 4).flip(2)
    mask = Mask(causal=True).resolve(torch.tensor([[2], [6], [0]])[:rows], 7, whole=False)
    found = _single_target_attention(queries, keys, values, mask, 0.0)
    torch.testing.assert_close(found, plain_attention(queries, keys, values, mask, 0.0))
