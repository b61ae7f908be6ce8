import pytest
import torch

from penwright.model.layers import Dropout, dropout_factors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9999])
def test_values_are_dropped_with_probability_p_and_the_rest_scaled(p: float, dtype: torch.dtype) -> None:
    x = torch.ones(400_001, dtype=dtype, requires_grad=True)
    y = Dropout(p)(x)
    dropped = y == 0
    assert float(dropped.float().mean()) == pytest.approx(p, abs=0.005)
    expected = torch.full_like(y, 1 / (1 - p))
    torch.testing.assert_close(y, torch.where(dropped, 0.0, expected), rtol=0.2 if p > 0.99 else 0.01, atol=0)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


def test_neighbouring_values_are_dropped_independently() -> None:
    """Four neighbours share one 64-bit random number."""
    dropped = (Dropout(0.5)(torch.ones(100_000, 4)) == 0).float()
    assert torch.corrcoef(dropped.T).fill_diagonal_(0).abs().max() < 0.02


def test_nothing_is_dropped_in_evaluation_or_at_zero() -> None:
    x = torch.ones(3, 5)
    assert Dropout(0.0)(x) is x and Dropout(0.5).eval()(x) is x


def test_rare_dropout_leaves_all_other_values_scaled_alike() -> None:
    y = Dropout(1e-6)(torch.ones(1_000_000))
    assert set(y.unique().tolist()) <= {0.0, y.max().item()} and float(y.max()) == pytest.approx(1, abs=1e-4)


def test_dropout_is_reproducible_by_seed() -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(Dropout(0.3)(torch.ones(7, 11)))
    assert torch.equal(*results)


@pytest.mark.parametrize("shape", [(7, 11), (4,), (2, 3, 5)])
def test_operator_passes_opcheck_and_is_tagged_nondeterministic(shape: tuple[int, ...]) -> None:
    checks = ("test_schema", "test_faketensor")
    assert set(torch.library.opcheck(dropout_factors, (torch.ones(shape), 0.3), test_utils=checks).values()) == {
        "SUCCESS"
    }
    assert torch.Tag.nondeterministic_seeded in dropout_factors._opoverload.tags
