import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penwright.config import Cosine, InverseSquareRoot, TrainingSettings, WarmupStableDecay
from penwright.data.batches import Markers
from penwright.data.bucketing import LabelledBatches
from penwright.data.store import Column
from penwright.training.budget import Clock, count_steps


@pytest.mark.parametrize("schedule", [Cosine(), InverseSquareRoot(), WarmupStableDecay(cooldown_fraction=0.5)])
def test_minutes_are_converted_to_the_number_of_steps_that_fit(schedule: Cosine) -> None:
    clock = Clock.of(2.0, schedule)
    settled = next(steps for step in range(1, 10_000) if (steps := clock.settle(step, 20 + step * 0.1)) is not None)
    assert settled == pytest.approx((120 - 20) / 0.1, rel=0.02)  # 20 seconds went into starting up


def test_number_of_steps_is_fixed_when_the_cooldown_begins() -> None:
    clock = Clock.of(1.0, WarmupStableDecay(cooldown_fraction=0.5))
    assert clock.settle(290, 29.0) is None
    settled = clock.settle(300, 30.0)
    assert settled == 600
    factor = WarmupStableDecay(cooldown_fraction=0.5).factor
    assert factor(299, settled) == 1.0 and factor(330, settled) < 1.0


def test_budget_shorter_than_a_step_ends_after_one_step() -> None:
    assert Clock.of(0.1, WarmupStableDecay()).settle(1, 60.0) == 1


def test_time_for_the_last_evaluation_is_reserved() -> None:
    clock = Clock.of(1.0, WarmupStableDecay(cooldown_fraction=0.5))
    clock.settle(100, 10.0)
    assert clock.settle(300, 30.0, reserved=10.0) == 500


@given(st.integers(20, 500), st.floats(1, 99), st.integers(10, 1000))
def test_correction_at_most_halves_or_doubles_the_remaining_steps(step: int, elapsed: float, left: int) -> None:
    total = Clock(100.0, 0.1, mark=(0, 0.0)).adjust(step, elapsed, 0.0, step + left, 0)
    assert total is None or left // 2 <= total - step <= 2 * left


def test_cooldown_of_the_whole_run_leaves_time_to_measure_the_throughput() -> None:
    clock = Clock.of(1.0, WarmupStableDecay(cooldown_fraction=1.0))
    assert clock.settles_at > 0 and clock.least_left == 0.25


@pytest.mark.parametrize("epochs", [0.001, 0.5, 1.3, 2.0])
def test_epochs_are_rounded_up_to_whole_steps(epochs: float) -> None:
    text = Column(np.zeros(400, dtype=np.uint16), np.arange(0, 401, 10), n_bytes=0)
    batches = LabelledBatches(text, np.zeros(40, dtype=np.int32), 64, 80, Markers(0, 1, 2))
    n_steps = count_steps(TrainingSettings(epochs=epochs), batches)
    assert n_steps is not None and n_steps - 1 < epochs * batches.per_epoch <= n_steps


@pytest.mark.parametrize(("n_epochs", "accumulate"), [(1, 1), (5, 1), (4, 2)])
def test_token_budget_counts_the_text_tokens_of_labelled_epochs(n_epochs: int, accumulate: int) -> None:
    lengths = [3, 5, 8, 18] * 10
    text = Column(np.zeros(sum(lengths), dtype=np.uint16), np.cumsum([0, *lengths]), n_bytes=0)
    batches = LabelledBatches(text, np.zeros(40, dtype=np.int32), 64, 80, Markers(0, 1, 2))
    per_epoch = sum(length + 2 for length in lengths)  # with their markers
    settings = TrainingSettings(tokens=n_epochs * per_epoch, accumulate=accumulate)
    assert count_steps(settings, batches) == n_epochs * batches.per_epoch / accumulate
