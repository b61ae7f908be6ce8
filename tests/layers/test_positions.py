"""Position encodings, compared with the formulas of the papers."""

from math import cos, sin

import pytest
import torch
from torch import Tensor

from penwright.config import ModelSettings
from penwright.errors import PenwrightError
from penwright.model.cache import Cache, positions_of
from penwright.model.embedding import Embedding, Rotary, Sinusoidal, SinusoidLayout

WIDTH = 8


def paper_encoding(position: int) -> list[float]:
    """Follow Vaswani et al. 2017, 3.5: sines at dimensions 2i, cosines at 2i + 1, of p / 10000^(2i/d)."""
    values = []
    for i in range(WIDTH // 2):
        angle = position / 10_000 ** (2 * i / WIDTH)
        values += [sin(angle), cos(angle)]
    return values


def encoding(layout: SinusoidLayout, position: int, offset: int = 0) -> Tensor:
    return Sinusoidal(WIDTH, layout, offset)(torch.tensor([[position]]))[0, 0]


@pytest.mark.parametrize("position", [0, 1, 7, 300])
def test_sinusoids_match_the_paper(position: int) -> None:
    expected = torch.tensor(paper_encoding(position))
    torch.testing.assert_close(encoding("interleaved", position), expected, atol=1e-4, rtol=0)


def test_halves_layout_puts_all_sines_first() -> None:
    interleaved = encoding("interleaved", 7)
    torch.testing.assert_close(encoding("halves", 7), torch.cat([interleaved[0::2], interleaved[1::2]]))


def test_tensor2tensor_frequencies_fall_to_one_ten_thousandth() -> None:
    expected = torch.tensor([sin(7 / 10_000 ** (i / 3)) for i in range(4)])
    torch.testing.assert_close(encoding("tensor2tensor", 7)[:4], expected)


def test_offset_shifts_the_first_position() -> None:
    torch.testing.assert_close(encoding("halves", 5, offset=2), encoding("halves", 7))


def test_sinusoid_pairs_have_norm_one() -> None:
    pairs = Sinusoidal(WIDTH)(torch.arange(50)[None])[0].unflatten(-1, (-1, 2))
    torch.testing.assert_close(pairs.square().sum(-1), torch.ones(50, WIDTH // 2))


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_positions_vary_along_the_text_not_the_batch(kind: str) -> None:
    torch.manual_seed(0)
    settings = ModelSettings.model_validate({"d_model": WIDTH, "n_heads": 2, "positions": {"type": kind}})
    embedded = Embedding(10, settings)(torch.full((2, 5), 3), torch.arange(5)[None])
    torch.testing.assert_close(embedded[0], embedded[1])
    assert not torch.allclose(embedded[:, 0], embedded[:, 1])


def scores_at(query_position: int, key_position: int) -> Tensor:
    generator = torch.Generator().manual_seed(8)
    query, key = torch.randn(2, 1, 1, 1, WIDTH, generator=generator, dtype=torch.float64)
    rotary = Rotary(WIDTH, base=10_000.0).double()
    rotated = [rotary(torch.tensor([[p]])).apply(x) for p, x in ((query_position, query), (key_position, key))]
    return (rotated[0] * rotated[1]).sum()


@pytest.mark.parametrize("shift", [1, 40, 1000])
def test_rotary_scores_depend_only_on_distance(shift: int) -> None:
    torch.testing.assert_close(scores_at(9 + shift, 4 + shift), scores_at(9, 4))
    assert not torch.allclose(scores_at(9 + shift, 4), scores_at(9, 4))


def test_rotation_preserves_norms() -> None:
    x = torch.randn(2, 3, 5, WIDTH, generator=torch.Generator().manual_seed(8))
    rotated = Rotary(WIDTH, base=500.0)(torch.arange(5)[None]).apply(x)
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotated[:, :, 0], x[:, :, 0])


def learned(context_length: int) -> ModelSettings:
    table = {"d_model": WIDTH, "n_heads": 2, "context_length": context_length, "positions": {"type": "learned"}}
    return ModelSettings.model_validate(table)


def test_text_longer_than_learned_positions_is_refused() -> None:
    with pytest.raises(PenwrightError, match=r"5 tokens is too long.*only 4 learned positions"):
        positions_of(torch.zeros(1, 5, dtype=torch.long), None, learned(4))


def test_continuation_beyond_learned_positions_is_refused() -> None:
    cache = Cache(learned(4), n_layers=1, batch=1, capacity=8, like=torch.zeros(1))
    cache.advance(3)
    assert positions_of(torch.zeros(1, 1, dtype=torch.long), cache, learned(4)).tolist() == [[3]]
    with pytest.raises(PenwrightError, match="too long"):
        positions_of(torch.zeros(1, 2, dtype=torch.long), cache, learned(4))
