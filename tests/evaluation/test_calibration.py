"""Calibration of classifiers: whether confidence equals accuracy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penwright.evaluation.classification import compute_calibration, debiased_error


def test_accuracy_is_counted_per_confidence_bin() -> None:
    found = compute_calibration(np.array([0.55, 0.58, 0.95, 0.9, 1.0]), np.array([True, False, True, True, False]))
    low, high = found.bins
    assert (low.low, low.high, low.n, low.accuracy, low.confidence) == (0.5, 0.6, 2, 0.5, pytest.approx(0.565))
    assert (high.low, high.high, high.n, high.accuracy) == (0.9, 1.0, 3, pytest.approx(2 / 3))
    assert found.error == pytest.approx((2 * 0.065 + 3 * abs(2 / 3 - 2.85 / 3)) / 5)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=50))
def test_every_text_is_in_exactly_one_bin(texts: list[tuple[float, bool]]) -> None:
    found = compute_calibration(
        np.array([c for c, _ in texts], dtype=float), np.array([r for _, r in texts], dtype=bool)
    )
    assert sum(each.n for each in found.bins) == found.n == len(texts)
    assert all(each.low - 1e-9 <= each.confidence <= each.high + 1e-9 for each in found.bins)
    assert 0 <= found.error <= 1


def test_debiased_error_removes_noise_and_keeps_real_error() -> None:
    rng = np.random.default_rng(0)
    plain, debiased, biased = [], [], []
    for _ in range(50):
        confidences = rng.uniform(0.5, 1, 300)
        found = compute_calibration(confidences, rng.random(300) < confidences)
        plain.append(found.error)
        debiased.append(debiased_error(found))
        off = compute_calibration(confidences, rng.random(300) < confidences - 0.2)
        biased.append(debiased_error(off))
    assert np.mean(debiased) < 0.7 * np.mean(plain)
    assert np.mean(biased) == pytest.approx(0.2, abs=0.01)
    assert debiased_error(compute_calibration(np.zeros(0), np.zeros(0, dtype=bool))) == 0
