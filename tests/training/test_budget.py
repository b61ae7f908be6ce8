import pytest

from penwright.config import Cosine, InverseSquareRoot, WarmupStableDecay
from penwright.training.budget import Clock


@pytest.mark.parametrize("schedule", [Cosine(), InverseSquareRoot(), WarmupStableDecay(cooldown_fraction=0.5)])
def test_minutes_become_the_steps_that_fit_into_them(schedule: Cosine) -> None:
    clock = Clock.of(2.0, schedule)
    settled = next(steps for step in range(1, 10_000) if (steps := clock.settle(step, 20 + step * 0.1)) is not None)
    assert settled == pytest.approx((120 - 20) / 0.1, rel=0.02)  # 20 seconds went into starting up


def test_a_cooldown_is_settled_when_it_begins() -> None:
    clock = Clock.of(1.0, WarmupStableDecay(cooldown_fraction=0.5))
    assert clock.settle(290, 29.0) is None
    settled = clock.settle(300, 30.0)
    assert settled == 600
    factor = WarmupStableDecay(cooldown_fraction=0.5).factor
    assert factor(299, settled) == 1.0 and factor(330, settled) < 1.0


def test_a_budget_that_one_step_exceeds_ends_after_it() -> None:
    assert Clock.of(0.1, WarmupStableDecay()).settle(1, 60.0) == 1


def test_time_for_a_last_look_is_set_aside() -> None:
    clock = Clock.of(1.0, WarmupStableDecay(cooldown_fraction=0.5))
    clock.settle(100, 10.0)
    assert clock.settle(300, 30.0, reserved=10.0) == 500
