"""Positions: the formulas of the papers, in plain mathematics."""

from math import cos, sin

import pytest
import torch
from torch import Tensor

from penwright.config import ModelSettings
from penwright.errors import PenwrightError
from penwright.model.cache import Cache, positions_of
from penwright.model.embedding import Embedding
from penwright.model.positions import Rotary, Sinusoidal, SinusoidLayout

WIDTH = 8


def papers_encoding(position: int) -> list[float]:
    """Vaswani et al. 2017, section 3.5: sines at even dimensions 2i, cosines at 2i + 1, both of p / 10000^(2i/d)."""
    values = []
    for i in range(WIDTH // 2):
        angle = position / 10_000 ** (2 * i / WIDTH)
        values += [sin(angle), cos(angle)]
    return values


def encoding(layout: SinusoidLayout, position: int, offset: int = 0) -> Tensor:
    return Sinusoidal(WIDTH, layout, offset)(torch.tensor([[position]]))[0, 0]


@pytest.mark.parametrize("position", [0, 1, 7, 300])
def test_sinusoids_are_those_of_the_paper(position: int) -> None:
    expected = torch.tensor(papers_encoding(position))
    torch.testing.assert_close(encoding("interleaved", position), expected, atol=1e-4, rtol=0)


def test_the_layout_in_halves_holds_the_same_numbers_with_all_sines_first() -> None:
    interleaved = encoding("interleaved", 7)
    torch.testing.assert_close(encoding("halves", 7), torch.cat([interleaved[0::2], interleaved[1::2]]))


def test_the_frequencies_of_tensor2tensor_fall_to_one_ten_thousandth() -> None:
    expected = torch.tensor([sin(7 / 10_000 ** (i / 3)) for i in range(4)])
    torch.testing.assert_close(encoding("tensor2tensor", 7)[:4], expected)


def test_an_offset_moves_the_first_position() -> None:
    torch.testing.assert_close(encoding("halves", 5, offset=2), encoding("halves", 7))


def test_sinusoids_lie_on_unit_circles() -> None:
    pairs = Sinusoidal(WIDTH)(torch.arange(50)[None])[0].unflatten(-1, (-1, 2))
    torch.testing.assert_close(pairs.square().sum(-1), torch.ones(50, WIDTH // 2))


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_positions_count_along_the_text_and_not_along_the_batch(kind: str) -> None:
    torch.manual_seed(0)
    settings = ModelSettings.model_validate({"d_model": WIDTH, "n_heads": 2, "positions": {"type": kind}})
    embedded = Embedding(10, settings)(torch.full((2, 5), 3), torch.arange(5)[None])
    torch.testing.assert_close(embedded[0], embedded[1])
    assert not torch.allclose(embedded[:, 0], embedded[:, 1])


def scores_at(query_position: int, key_position: int) -> Tensor:
    generator = torch.Generator().manual_seed(8)
    query, key = torch.randn(2, 1, 1, 1, WIDTH, generator=generator, dtype=torch.float64)
    rotary = Rotary(WIDTH, base=10_000.0).double()
    turned = [rotary(torch.tensor([[p]])).apply(x) for p, x in ((query_position, query), (key_position, key))]
    return (turned[0] * turned[1]).sum()


@pytest.mark.parametrize("moved_by", [1, 40, 1000])
def test_rotated_scores_depend_on_distance_only(moved_by: int) -> None:
    torch.testing.assert_close(scores_at(9 + moved_by, 4 + moved_by), scores_at(9, 4))
    assert not torch.allclose(scores_at(9 + moved_by, 4), scores_at(9, 4))


def test_rotation_keeps_lengths() -> None:
    x = torch.randn(2, 3, 5, WIDTH, generator=torch.Generator().manual_seed(8))
    turned = Rotary(WIDTH, base=500.0)(torch.arange(5)[None]).apply(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[:, :, 0], x[:, :, 0])


def learned(context_length: int) -> ModelSettings:
    table = {"d_model": WIDTH, "n_heads": 2, "context_length": context_length, "positions": {"type": "learned"}}
    return ModelSettings.model_validate(table)


def test_a_text_longer_than_the_learned_positions_is_refused_with_both_lengths() -> None:
    with pytest.raises(PenwrightError, match=r"5 tokens is too long.*only 4 learned positions"):
        positions_of(torch.zeros(1, 5, dtype=torch.long), None, learned(4))


def test_a_continuation_beyond_the_learned_positions_is_refused() -> None:
    cache = Cache(learned(4), n_layers=1, batch=1, capacity=8, like=torch.zeros(1))
    cache.advance(3)
    assert positions_of(torch.zeros(1, 1, dtype=torch.long), cache, learned(4)).tolist() == [[3]]
    with pytest.raises(PenwrightError, match="too long"):
        positions_of(torch.zeros(1, 2, dtype=torch.long), cache, learned(4))
