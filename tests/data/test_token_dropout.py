"""Token dropout: in training, a classifier sees only some of the tokens."""

from typing import Literal

import numpy as np
import pytest
import torch

from penwright.config import ModelSettings
from penwright.data.batches import LabelledBatch, Markers
from penwright.data.bucketing import LabelledBatches, TokenDropout
from penwright.data.store import Column
from penwright.model.transformer import EncoderOnly

MARKERS = Markers(pad=0, start=1, end=2)
N_TOKENS = np.random.default_rng(3).integers(0, 40, 600)  # tokens in each text; 0 is an empty text


def texts() -> Column:
    """Return texts that count up from 10, so that each token gives its position."""
    tokens = np.concatenate([np.arange(10, 10 + n) for n in N_TOKENS])
    return Column(tokens.astype(np.uint16), np.concatenate([[0], np.cumsum(N_TOKENS)]), 0)


def batches(token_dropout: TokenDropout | None, seed: int = 7) -> LabelledBatches:
    return LabelledBatches(texts(), np.arange(600, dtype=np.int32), 48, 512, MARKERS, seed, token_dropout)


def epoch(of: LabelledBatches, number: int = 0) -> list[LabelledBatch]:
    n_batches = int(of.per_epoch)
    return [of.batch(number * n_batches + place) for place in range(n_batches)]


def classifier(**more: object) -> EncoderOnly:
    torch.manual_seed(5)
    table = {"d_model": 16, "n_heads": 2, "zero_init_outputs": False, **more}
    return EncoderOnly(60, ModelSettings.model_validate(table), n_labels=3).eval()


def test_every_text_occurs_once_per_epoch_with_its_label() -> None:
    labels = torch.cat([batch.targets for batch in epoch(batches(TokenDropout(0.6)))])
    assert sorted(labels.tolist()) == list(range(600))


def test_kept_tokens_stay_in_order_with_their_positions() -> None:
    for batch in epoch(batches(TokenDropout(0.6))):
        assert batch.positions is not None
        for row, label in enumerate(batch.targets.tolist()):
            real, end = batch.is_token[row], int(N_TOKENS[label]) + 1
            places = batch.positions[row][real].tolist()
            assert batch.tokens[row][real].tolist() == [1 if p == 0 else 2 if p == end else p + 9 for p in places]
            assert places == sorted(set(places)) and 1 in places


def test_dropped_tokens_take_no_space_in_the_batch() -> None:
    shown, whole = (epoch(batches(TokenDropout(0.7) if dropped else None)) for dropped in (True, False))
    assert len(shown) == len(whole)
    cells = [sum(batch.tokens.numel() for batch in each) for each in (shown, whole)]
    assert cells[0] < 0.5 * cells[1]
    assert max(len(batch.targets) for batch in shown) == max(len(batch.targets) for batch in whole)


@pytest.mark.parametrize("settings", [{}, {"window": 5}, {"positions": {"type": "sinusoidal"}}], ids=str)
def test_dropping_tokens_equals_masking_them(settings: dict[str, object]) -> None:
    model = classifier(**settings)
    for batch in epoch(batches(TokenDropout(0.5)))[:8]:
        assert batch.positions is not None
        lengths = torch.tensor([int(N_TOKENS[label]) + 2 for label in batch.targets])
        places = torch.arange(int(lengths.max()))
        tokens = torch.where(places == 0, 1, torch.where(places == lengths[:, None] - 1, 2, places + 9))
        mask = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, kept, real in zip(mask, batch.positions, batch.is_token, strict=True):
            row[kept[real]] = True
        expected = model(tokens.where(places < lengths[:, None], 0), mask)
        torch.testing.assert_close(model(batch.tokens, batch.is_token, batch.positions), expected)


def test_dropped_tokens_differ_by_epoch_and_repeat_for_the_same_seed() -> None:
    of = batches(TokenDropout(0.5))

    def shown(of: LabelledBatches, number: int) -> list[list[int]]:
        found = {}
        for batch in epoch(of, number):
            for place, label in enumerate(batch.targets.tolist()):
                found[label] = batch.tokens[place][batch.is_token[place]].tolist()
        return [found[label] for label in range(600)]

    first = shown(of, 0)
    assert first != shown(of, 1)
    assert shown(batches(TokenDropout(0.5)), 0) == first  # as after a resume
    assert shown(batches(TokenDropout(0.5), seed=8), 0) != first


@pytest.mark.parametrize(
    ("mean", "least", "most"), [(0.1, 0.0, 0.2), (0.45, 0.0, 0.9), (0.6, 0.3, 0.9), (0.95, 0.95, 0.95)]
)
def test_dropout_rates_spread_as_widely_as_the_mean_allows(mean: float, least: float, most: float) -> None:
    shares = 1 - TokenDropout(mean).draw_lengths(np.full(800, 4000), np.random.default_rng(1)) / 4000
    assert shares.min() == pytest.approx(least, abs=0.03)
    assert shares.max() == pytest.approx(most, abs=0.03)
    assert shares.mean() == pytest.approx(mean, abs=0.03)


@pytest.mark.parametrize(("pooling", "always"), [("mean", {1}), ("first", {0, 1})])
def test_first_token_is_always_kept_and_start_token_for_first_pooling(
    pooling: Literal["mean", "first"], always: set[int]
) -> None:
    of = batches(TokenDropout(1.0, keeps_start=pooling == "first"))
    for batch in epoch(of):
        assert batch.positions is not None
        for places, real in zip(batch.positions, batch.is_token, strict=True):
            assert set(places[real].tolist()) == always


def test_evaluation_shows_every_token() -> None:
    for dropped, whole in zip(batches(TokenDropout(0.9)).in_order(), batches(None).in_order(), strict=True):
        assert dropped.positions is None
        assert torch.equal(dropped.tokens, whole.tokens)
