"""Learning rate schedules: warm-up, decay, and factors within [0, 1]."""

from math import isfinite, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.config import Constant, Cosine, InverseSquareRoot, Linear, Schedule, WarmupStableDecay

KINDS = (InverseSquareRoot, Cosine, Linear, WarmupStableDecay, Constant)
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@given(st.integers(1, 50), st.none() | st.integers(1, 200), st.integers(0, 400))
@settings(max_examples=50)
def test_every_factor_is_finite_and_between_zero_and_one(
    kind: type[Schedule], warmup_steps: int, total: int | None, step: int
) -> None:
    factor = kind(warmup_steps=warmup_steps).factor(step, total)
    assert isfinite(factor) and 0 <= factor <= 1


@every_kind
def test_warmup_is_linear_from_above_zero_to_the_peak(kind: type[Schedule]) -> None:
    factors = [kind(warmup_steps=4).factor(step, 100) for step in range(4)]
    assert factors == [0.25, 0.5, 0.75, 1.0]


@every_kind
def test_rate_never_rises_after_warmup(kind: type[Schedule]) -> None:
    factors = [kind(warmup_steps=4).factor(step, 100) for step in range(4, 101)]
    assert factors == sorted(factors, reverse=True)


@every_kind
def test_warmup_ends_without_a_jump(kind: type[Schedule]) -> None:
    schedule = kind(warmup_steps=50)
    assert schedule.factor(50, 1000) == pytest.approx(schedule.factor(49, 1000), abs=0.02)


@pytest.mark.parametrize("kind", [Cosine, Linear, WarmupStableDecay])
@pytest.mark.parametrize("final_fraction", [0.0, 0.25])
def test_decay_ends_at_its_final_fraction(kind: type[Schedule], final_fraction: float) -> None:
    schedule = kind(warmup_steps=3, final_fraction=final_fraction)
    assert schedule.factor(40, 40) == pytest.approx(final_fraction)


def test_cosine_and_linear_are_halfway_down_at_half_time() -> None:
    assert Cosine(final_fraction=0.2).factor(50, 100) == pytest.approx(0.6)
    assert Linear(final_fraction=0.2).factor(50, 100) == pytest.approx(0.6)


def test_wsd_is_constant_until_the_cooldown() -> None:
    schedule = WarmupStableDecay(cooldown_fraction=0.25)
    assert [schedule.factor(step, 100) for step in (0, 75)] == [1.0, 1.0]
    assert schedule.factor(88, 100) == pytest.approx(0.48)


def test_inverse_square_root_halves_in_four_times_the_steps() -> None:
    schedule = InverseSquareRoot(warmup_steps=100, final_fraction=0.3)
    assert schedule.factor(399, None) == pytest.approx(sqrt(100 / 400))
    assert schedule.factor(10**6, None) == 0.3


def test_wsd_without_cooldown_stays_at_the_peak() -> None:
    assert WarmupStableDecay(cooldown_fraction=0.0).factor(100, 100) == 1.0


@pytest.mark.parametrize("kind", [Cosine, Linear, WarmupStableDecay, Constant])
def test_rate_stays_at_the_peak_while_the_total_is_unknown(kind: type[Schedule]) -> None:
    assert kind(warmup_steps=3).factor(1000, None) == 1.0


@pytest.mark.parametrize("warmup_steps", [0, 10])
@pytest.mark.parametrize("step", [20, 35])
def test_cooldown_brought_forward_begins_at_once(warmup_steps: int, step: int) -> None:
    schedule = WarmupStableDecay(warmup_steps=warmup_steps, cooldown_fraction=0.25)
    total = schedule.total_if_cooled_from(step)
    assert schedule.factor(step, total) == 1.0 > schedule.factor(step + 1, total)
