"""Whether a classifier is right as often as it says."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penwright.config import ModelSettings
from penwright.data.batches import LabelledBatch
from penwright.evaluation.classification import calibration, compute_calibration
from penwright.model.encoder_only import EncoderOnly


def test_accuracy_is_counted_among_texts_that_it_was_as_sure_about() -> None:
    found = compute_calibration(np.array([0.55, 0.58, 0.95, 0.9, 1.0]), np.array([True, False, True, True, False]))
    low, high = found.bins
    assert (low.low, low.high, low.n, low.accuracy, low.confidence) == (0.5, 0.6, 2, 0.5, pytest.approx(0.565))
    assert (high.low, high.high, high.n, high.accuracy) == (0.9, 1.0, 3, pytest.approx(2 / 3))
    assert found.error == pytest.approx((2 * 0.065 + 3 * abs(2 / 3 - 2.85 / 3)) / 5)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=50))
def test_every_text_is_in_one_bin(texts: list[tuple[float, bool]]) -> None:
    found = compute_calibration(
        np.array([c for c, _ in texts], dtype=float), np.array([r for _, r in texts], dtype=bool)
    )
    assert sum(each.n for each in found.bins) == found.n == len(texts)
    assert all(each.low - 1e-9 <= each.confidence <= each.high + 1e-9 for each in found.bins)
    assert 0 <= found.error <= 1


def test_a_model_is_measured_on_what_it_says_itself() -> None:
    settings = ModelSettings(d_model=16, n_layers=1, n_heads=2, context_length=8, zero_init_outputs=False)
    model = EncoderOnly(11, settings, 3).double()
    tokens = torch.randint(0, 11, (6, 5))
    padding = torch.ones_like(tokens, dtype=torch.bool)
    targets = torch.tensor([0, 1, 2, 0, 1, 2])
    found = calibration(model, [LabelledBatch(6, tokens=tokens, padding=padding, targets=targets)], torch.device("cpu"))
    best = model.eval()(tokens, padding).softmax(-1).max(-1)
    right = int((best.indices == targets).sum())
    assert sum(each.n * each.accuracy for each in found.bins) == pytest.approx(right)
    assert sum(each.n * each.confidence for each in found.bins) == pytest.approx(float(best.values.detach().sum()))
