"""Top-k of many scores."""

import numpy as np
import pytest
import torch

from penwright.decoding.sampling.topk import WORTH_IT, masked_topk, topk
from penwright.decoding.sampling.utf8 import Utf8Rules


@pytest.mark.parametrize("columns", [8000, 8003, 64 * 40, 130])
@pytest.mark.parametrize("n", [1, 5, 12])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_largest_agrees_with_torch_topk(rows: int, n: int, columns: int) -> None:
    scores = torch.stack([torch.randperm(columns) for _ in range(rows)]).float()
    found, expected = topk(scores, n), scores.topk(n)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.indices, expected.indices)


def test_minus_infinity_comes_last_and_one_block_can_hold_several_of_the_top_k() -> None:
    scores = torch.full((8, 8000), -torch.inf)
    scores[:, [70, 71, 72, 7999]] = torch.tensor([3.0, 2.0, 4.0, 1.0])
    assert scores.numel() > WORTH_IT
    assert topk(scores, 4).indices.tolist() == [[72, 70, 71, 7999]] * 8
    assert topk(scores, 6).values[:, 4:].tolist() == [[-torch.inf, -torch.inf]] * 8


@pytest.mark.parametrize("vocab_size", [29, 64, 130])
def test_likeliest_obeys_utf8_and_bans_and_normalizes_over_all_tokens(vocab_size: int) -> None:
    logits, banned = torch.randn(6, vocab_size), (3, 7, vocab_size - 1)
    pieces = [b"a"] * 10 + [b"\x80"] * (vocab_size - 10)  # ASCII letters, and bytes that end a character
    utf8_rules, states = Utf8Rules(pieces, banned), np.array([0, 1, 0, 1, 1, 0], dtype=np.uint8)
    situations = utf8_rules.situations(states, np.array([9]))
    expected = logits.log_softmax(-1)
    expected[:, banned] = -torch.inf
    expected[states == 0, 10:] = -torch.inf
    expected[states == 1, :10] = -torch.inf
    best = expected.topk(5)
    operator = torch.ops.penwright.masked_topk(logits, utf8_rules.bits, torch.from_numpy(situations), 5)
    for values, indices, logsumexp in (operator, masked_topk(logits.clone(), utf8_rules, situations, 5)):
        assert torch.equal(indices, best.indices)
        torch.testing.assert_close(values - logsumexp[:, None], best.values)
