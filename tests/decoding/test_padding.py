import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.decoding.batches import batches_by_length, right_padded

CPU = torch.device("cpu")


def test_rows_are_padded_on_the_right() -> None:
    padded = right_padded([[5, 6], [7], []], CPU)
    assert padded.tokens.tolist() == [[5, 6], [7, 0], [0, 0]]
    assert padded.is_token.tolist() == [[True, True], [True, False], [False, False]]


def test_rows_can_be_padded_to_a_given_width() -> None:
    assert right_padded([[5]], CPU, width=3).tokens.tolist() == [[5, 0, 0]]


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(1, 20))
@settings(max_examples=50)
def test_batches_hold_every_sequence_once_within_max_tokens(lengths: list[int], max_tokens: int) -> None:
    batches = list(batches_by_length(lengths, max_tokens))
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    sizes = [len(batch) * max(lengths[number] for number in batch) for batch in batches]
    assert all(size <= max_tokens or len(batch) == 1 for size, batch in zip(sizes, batches, strict=True))
