"""The choice inside of what is compiled is the one that is made outside of it."""

import numpy as np
import pytest
import torch

from penwright.config import DecodingSettings
from penwright.decoding.sampling.next_token import TokenRule
from penwright.decoding.sampling.sampler import RowRng, Sampling
from penwright.decoding.sampling.utf8 import Utf8Rules
from penwright.decoding.sampling.utf8_rows import Utf8Rows

PIECES = [b"a", b"b", b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", *[b"c"] * 70, b"<end>"]
SPELLING = Utf8Rules(PIECES, banned=(7, 40), end_id=len(PIECES) - 1)


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 0.8, 3.0])
def test_it_draws_what_sampling_draws_where_characters_are_not_whole_too(temperature: float) -> None:
    sampling = Sampling(settings=DecodingSettings(temperature=temperature))
    states = np.array([0, 1, 2, 0, 4, 1] * 20, dtype=np.uint8)
    situations = torch.from_numpy(SPELLING.situations(states, np.arange(120) % 5))
    logits, chances = torch.randn(120, len(PIECES)) * 3, torch.rand(120, dtype=torch.double)
    tokens, log_probs = torch.ops.penwright.next_token(
        logits, SPELLING.bits, situations, torch.full((120,), temperature), chances
    )
    possible = logits.clone()
    SPELLING.forbid(possible, situations.numpy())
    assert torch.equal(tokens, sampling.choose(possible, None, Drawn(chances)))
    torch.testing.assert_close(log_probs, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0])


class Drawn:
    """Chances that were drawn before."""

    def __init__(self, chances: torch.Tensor):
        self.chances = chances

    def next(self) -> torch.Tensor:
        return self.chances


def test_a_rule_says_where_its_row_stands_and_draws_as_many_chances_as_tokens() -> None:
    rows = Utf8Rows(SPELLING, [9, 12])
    rows.push(torch.tensor([0, 2]))
    rows.select([1])
    rule = rows.rule(5, 0.8, RowRng(3, [0]))
    assert (rule.state, rule.n_left) == (1, 5)
    *_, state, n_left, temperature, chances = rule.tensors(3)
    expected = RowRng(3, [0])
    assert chances.tolist() == [expected.next().item() for _ in range(3)]
    assert (state.tolist(), n_left.tolist(), temperature.tolist()) == ([1], [5], [pytest.approx(0.8)])
    assert TokenRule(SPELLING, 0, 4, 0.0).tensors(2)[-1].tolist() == [0, 0]  # greedily, nothing is drawn
