"""Attention masks: which sources each target may see, written out for small cases."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.model.attention import KernelMask, Mask

FOUR = torch.arange(4)[None]


def rows(mask: KernelMask) -> list[str]:
    """Draw the allowed sources of each target in the first row of the batch."""
    assert mask.allowed is not None
    return ["".join("x" if allowed else "." for allowed in row) for row in mask.allowed[0, 0].tolist()]


def test_unrestricted_mask_needs_no_tensor() -> None:
    assert Mask().resolve(FOUR, 4) == KernelMask(None, is_causal=False)


def test_causal_mask_is_only_a_flag() -> None:
    assert Mask(causal=True).resolve(FOUR, 4) == KernelMask(None, is_causal=True)


def test_window_wider_than_the_text_needs_no_tensor() -> None:
    assert Mask(causal=True, window=4).resolve(FOUR, 4) == KernelMask(None, is_causal=True)


def test_causal_window_includes_the_token_itself() -> None:
    assert rows(Mask(causal=True, window=2).resolve(FOUR, 4)) == ["x...", "xx..", ".xx.", "..xx"]


def test_non_causal_window_is_symmetric() -> None:
    assert rows(Mask(window=2).resolve(FOUR, 4)) == ["xx..", "xxx.", ".xxx", "..xx"]


def test_padding_is_one_row_for_all_targets() -> None:
    padding = torch.tensor([[True, True, True, False]])
    assert rows(Mask(is_token=padding).resolve(FOUR, 4)) == ["xxx."]


def test_segments_and_causality_are_combined() -> None:
    segments = torch.tensor([[0, 0, 1, 1]])
    assert rows(Mask(causal=True, segments=segments).resolve(FOUR, 4)) == ["x...", "xx..", "..x.", "..xx"]


def test_new_targets_see_the_cached_sources() -> None:
    assert rows(Mask(causal=True).resolve(torch.tensor([[2, 3]]), 4, whole=False)) == ["xxx.", "xxxx"]


def test_rows_of_a_batch_may_have_different_positions() -> None:
    allowed = Mask(causal=True).resolve(torch.tensor([[1], [3]]), 4, whole=False).allowed
    assert allowed is not None
    assert allowed[:, 0, 0].tolist() == [[True, True, False, False], [True, True, True, True]]


def test_fully_masked_target_sees_everything() -> None:
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    assert rows(Mask(is_token=nothing).resolve(FOUR, 4)) == ["xxxx"]


@given(st.integers(1, 6), st.integers(1, 6), st.booleans(), st.lists(st.integers(0, 2), min_size=6, max_size=6))
@settings(max_examples=50)
def test_mask_allows_what_every_rule_allows(length: int, window: int, causal: bool, documents: list[int]) -> None:
    segments = torch.tensor([documents[:length]])
    mask = Mask(causal, window, segments=segments).resolve(torch.arange(length)[None], length)
    assert mask.allowed is not None
    for target in range(length):
        for source in range(length):
            near = abs(target - source) < window
            expected = near and not (causal and source > target) and documents[source] == documents[target]
            assert mask.allowed[0, 0, target, source].item() == expected
