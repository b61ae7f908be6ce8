import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from penwright.config import Table
from penwright.data.batches import TextBatch
from penwright.errors import PenwrightError, PenwrightWarning
from penwright.losses import summed_loss
from penwright.model.block import Stack
from penwright.model.weights import weights_of
from penwright.run.folder import Run
from penwright.training.auto.machine import Machine
from penwright.training.optimizers import blocks_of
from penwright.training.trainer import TOO_MANY_SKIPPED, StepReport, Trainer

MakeTrainer = Callable[..., Trainer]
OnAClock = Callable[..., tuple[Trainer, list[float]]]
CPU = Machine(torch.device("cpu"), torch.float32, ())
CPU_BFLOAT16 = CPU._replace(precision=torch.bfloat16)


def train(trainer: Trainer) -> Trainer:
    for _ in trainer.steps():
        pass
    return trainer


def assert_same_weights(one: Trainer, other: Trainer, tolerance: float = 0.0) -> None:
    for name, tensor in weights_of(one.model).items():
        torch.testing.assert_close(tensor, weights_of(other.model)[name], rtol=0, atol=tolerance, msg=name)


def test_training_lowers_the_loss(make_trainer: MakeTrainer) -> None:
    losses = [report.loss for report in make_trainer(training={"steps": 60}).steps()]
    assert losses[-1] < 0.5 * losses[0]


def test_the_same_seed_gives_the_same_weights(make_trainer: MakeTrainer) -> None:
    assert_same_weights(train(make_trainer()), train(make_trainer()))


def test_another_seed_gives_other_weights(make_trainer: MakeTrainer) -> None:
    with pytest.raises(AssertionError):
        assert_same_weights(train(make_trainer()), train(make_trainer(seed=2)))


def test_consistency_begins_in_the_middle(make_trainer: MakeTrainer) -> None:
    plain = list(make_trainer().steps())
    consistent = make_trainer(training={"consistency": 0.7})
    for one, other in zip(plain, consistent.steps(), strict=True):
        assert consistent.is_consistent == (other.step > 3)
        assert (one.loss == other.loss) == (other.step <= 3)
        assert one.n_targets == other.n_targets


def test_throughput_is_measured_again_when_consistency_begins(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(training={"minutes": 1, "steps": None, "consistency": 0.7})
    clock = trainer.budget.clock
    assert clock is not None
    for seconds, mark in ((1.0, (3, 1.0)), (40.0, None)):
        clock.mark, trainer.state.seconds = (3, 1.0), seconds
        trainer._step()
        assert clock.mark == mark and trainer.is_consistent == (mark is None)


def test_training_continues_without_compiled_code_if_compilation_fails(make_trainer: MakeTrainer) -> None:
    def fail(*inputs: object) -> None:
        raise BackendCompilerFailed(None, RuntimeError("cc1plus was killed"), None)

    plain, trainer = (make_trainer(model={"dropout": 0.0}) for _ in range(2))
    stack = next(module for module in trainer.model.modules() if isinstance(module, Stack))
    stack.is_compiled, blocks_of(trainer.model)[0]._compiled_call_impl = True, fail
    with pytest.warns(PenwrightWarning, match="compilation failed, so training continues without it.*killed"):
        train(trainer)
    assert trainer.state.step == 6 and not stack.is_compiled
    assert_same_weights(trainer, train(plain))
    blocks_of(trainer.model)[0]._compiled_call_impl = fail
    trainer.state.step = 0
    with pytest.raises(PenwrightError, match="compilation failed: cc1plus was killed"):
        train(trainer)


def test_compiler_that_ctrl_c_ended_is_not_reported(make_trainer: MakeTrainer) -> None:
    def fail(*inputs: object) -> None:
        raise BackendCompilerFailed(None, RuntimeError("cc1plus was killed"), None)

    trainer = make_trainer()
    next(module for module in trainer.model.modules() if isinstance(module, Stack)).is_compiled = True
    blocks_of(trainer.model)[0]._compiled_call_impl = fail
    trainer.should_stop = lambda: True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert next(trainer.steps()).step == 1


def test_accumulated_batches_equal_one_large_batch(make_trainer: MakeTrainer) -> None:
    no_dropout = {"dropout": 0.0}
    four = train(make_trainer(model=no_dropout, training={"batch_tokens": 16, "accumulate": 4}))
    one = train(make_trainer(model=no_dropout, training={"batch_tokens": 64}))
    assert_same_weights(four, one, tolerance=2e-5)


def test_uneven_batches_are_weighted_by_their_targets(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(model={"dropout": 0.0})
    whole = trainer.batches.batch(0)
    assert isinstance(whole, TextBatch)
    parts = [
        TextBatch(3 * 8, whole.tokens[:3], whole.targets[:3], None),
        TextBatch(1 * 8, whole.tokens[3:], whole.targets[3:], None),
    ]
    trainer.batches.for_step = lambda step, accumulate: parts  # type: ignore[method-assign]
    split = next(trainer.steps())
    other = make_trainer(model={"dropout": 0.0})
    other.batches.for_step = lambda step, accumulate: [whole]  # type: ignore[method-assign]
    together = next(other.steps())
    assert split.loss == pytest.approx(together.loss, abs=1e-5)
    assert split.grad_norm == pytest.approx(together.grad_norm, abs=1e-4)


@pytest.mark.parametrize("consistency", [0.0, 0.7])
@pytest.mark.parametrize("machine", [CPU, CPU_BFLOAT16], ids=["float32", "bfloat16"])
def test_resume_is_bit_for_bit_equal_to_an_uninterrupted_run(
    machine: Machine, consistency: float, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    settings = {"machine": machine, "training": {"steps": 6, "ema_decay": 0.9, "consistency": consistency}}
    uninterrupted = train(make_trainer(**settings))
    interrupted = make_trainer(**settings)
    for report in interrupted.steps():
        if report.step == 4:
            break
    run = Run.create(tmp_path / "run")
    tensors, state = interrupted.save()
    run.checkpoints.save(4, interrupted.weights(), tensors, state)
    torch.manual_seed(99)  # as in another process
    resumed = make_trainer(**settings)
    resumed.load(run.checkpoints.newest()[0])
    train(resumed)
    assert_same_weights(resumed, uninterrupted)
    for name, tensor in uninterrupted.weights().items():
        torch.testing.assert_close(resumed.weights()[name], tensor, rtol=0, atol=0)


def test_bfloat16_loss_is_close_to_float32(make_trainer: MakeTrainer) -> None:
    losses = [
        [r.loss for r in make_trainer(machine, training={"steps": 40}).steps()] for machine in (CPU_BFLOAT16, CPU)
    ]
    assert losses[0][-1] == pytest.approx(losses[1][-1], rel=0.1)
    assert losses[0][-1] < 0.7 * losses[0][0]


def test_step_with_nan_gradients_keeps_the_weights(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    before = {name: tensor.clone() for name, tensor in weights_of(trainer.model).items()}
    trainer.model.embedding.tokens.weight.register_hook(lambda gradient: gradient * float("nan"))
    report = next(trainer.steps())
    assert trainer.state.skipped == 1 and report.grad_norm != report.grad_norm
    for name, tensor in weights_of(trainer.model).items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_diverged_training_stops_with_advice(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(training={"steps": 100})
    trainer.model.embedding.tokens.weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(PenwrightError, match="learning_rate"):
        train(trainer)
    assert trainer.state.skipped == TOO_MANY_SKIPPED


def test_skipped_steps_that_do_not_follow_each_other_do_not_end_training(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(training={"steps": 2 * TOO_MANY_SKIPPED + 2})
    weight = trainer.model.embedding.tokens.weight
    weight.register_hook(lambda gradient: gradient * (float("nan") if trainer.state.step % 2 else 1.0))
    assert train(trainer).state.skipped == TOO_MANY_SKIPPED + 1


def test_epochs_budget_trains_for_that_many_epochs(make_trainer: MakeTrainer) -> None:
    trainer = train(make_trainer(training={"steps": None, "epochs": 2.0}))
    assert trainer.budget.epoch == pytest.approx(2.0, abs=0.1)


def test_extended_budget_starts_where_the_last_one_ended(make_trainer: MakeTrainer) -> None:
    trainer = train(make_trainer())
    trainer.budget.extend()
    assert [report.step for report in trainer.steps()] == list(range(7, 13))


def test_extended_budget_begins_like_a_new_one(make_trainer: MakeTrainer) -> None:
    new, used = (make_trainer(training={"minutes": 1, "steps": None}).budget for _ in range(2))
    spent = {"step": 40, "seconds": 70.0, "total_steps": 40, "ends_by_the_clock": True, "ends_early": True}
    spent |= {"turn_step": 9, "turn_progress": 0.4, "evaluations_since_best": 2, "evaluations_over_fitted": 1}
    spent |= {"best_nats": 1.0, "stopped_early": True, "is_consistent": True, "clock_mark": [3, 1.0]}
    used.load({**used.save(), **spent})
    used.extend()
    assert used.save() == {**new.save(), "step": 40, "seconds": 70.0, "first_step": 40, "first_second": 70.0}


def test_gradient_clipping_bounds_the_step(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(
        training={"steps": 1, "max_grad_norm": 1e-9},
        optimizer={"type": "adamw", "eps": 1.0, "weight_decay": 0.0},
        model={"dropout": 0.0},
    )
    before = {name: tensor.clone() for name, tensor in weights_of(trainer.model).items()}
    train(trainer)
    for name, tensor in weights_of(trainer.model).items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=1e-8)


def test_label_smoothing_raises_the_loss_of_a_confident_model(make_trainer: MakeTrainer) -> None:
    trainer = train(make_trainer(training={"steps": 60}))
    trainer.model.eval()
    batch = trainer.batches.batch(0)
    assert summed_loss(trainer.model, batch, 0.2) > summed_loss(trainer.model, batch, 0.0)


@pytest.fixture
def on_a_clock(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> OnAClock:
    """A function that makes a trainer whose steps compute nothing, and the list with the seconds of its clock.

    A step takes the seconds that `pace` returns for the trainer and the seconds so far.
    """

    def make(schedule: Table, minutes: int, pace: Callable[[Trainer, float], float]) -> tuple[Trainer, list[float]]:
        trainer, seconds = make_trainer(schedule=schedule, training={"minutes": minutes, "steps": None}), [0.0]

        def step() -> StepReport:
            seconds[0] += pace(trainer, seconds[0])
            factor = trainer.budget.rate_factor
            trainer.state.step += 1
            return StepReport(trainer.state.step, 0.0, 0.0, factor, 1)

        monkeypatch.setattr("penwright.training.trainer.monotonic", lambda: seconds[0])
        monkeypatch.setattr(trainer, "_step", step)
        return trainer, seconds

    return make


@pytest.mark.parametrize("later_seconds", [0.05, 0.1, 0.2, 0.4], ids=lambda pace: f"{pace}s")
@pytest.mark.parametrize("schedule", [{"type": "wsd", "cooldown_fraction": 0.6}, {"type": "cosine"}])
def test_minutes_budget_holds_when_steps_slow_down_or_speed_up(
    later_seconds: float, schedule: Table, on_a_clock: OnAClock
) -> None:
    trainer, seconds = on_a_clock(schedule, 1, lambda _, now: 0.1 if now < 30 else later_seconds)
    factors = [report.factor for report in trainer.steps()]
    assert seconds[0] == pytest.approx(60, rel=0.05)
    assert max(abs(one - other) for one, other in pairwise(factors)) < 0.05
    assert factors[-1] == pytest.approx(min(factors)) and factors[-1] < 0.15


@pytest.mark.parametrize(("later_seconds", "n_steps"), [(0.1, 400), (0.05, 400), (1.0, 300)])
def test_early_cooldown_follows_the_clock_and_never_runs_longer(
    later_seconds: float, n_steps: int, on_a_clock: OnAClock
) -> None:
    half = {"type": "wsd", "cooldown_fraction": 0.5}
    trainer, seconds = on_a_clock(half, 2, lambda each, _: 0.1 if each.state.step < 200 else later_seconds)
    for report in trainer.steps():
        if report.step == 200:
            assert trainer.budget.cool_down()
    assert trainer.state.step == pytest.approx(n_steps, rel=0.25) and trainer.state.step <= 400
    assert report.factor < 0.1 and seconds[0] < 130


def test_longer_steps_of_consistency_keep_to_the_budget(on_a_clock: OnAClock) -> None:
    schedule = {"type": "wsd", "cooldown_fraction": 0.6}

    def pace(trainer: Trainer, _: float) -> float:
        if trainer.budget.progress >= 0.5 and not trainer.is_consistent:
            trainer.budget.measure_again()
            trainer._begin_consistency()
        return 0.2 if trainer.is_consistent else 0.1

    trainer, seconds = on_a_clock(schedule, 1, pace)
    trainer.settings = trainer.settings.model_copy(update={"consistency": 0.7})
    factors = [report.factor for report in trainer.steps()]
    assert seconds[0] == pytest.approx(60, rel=0.03)
    assert max(abs(one - other) for one, other in pairwise(factors)) < 0.05 and factors[-1] < 0.05


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.1])
def test_short_cooldown_keeps_its_requested_fraction(fraction: float, on_a_clock: OnAClock) -> None:
    trainer, _ = on_a_clock({"type": "wsd", "cooldown_fraction": fraction}, 1, lambda *_: 0.15)
    trainer.state.reserved_seconds = 0.1
    factors = [report.factor for report in trainer.steps()]
    assert sum(factor < 1 for factor in factors) / len(factors) == pytest.approx(fraction, abs=0.015)


def test_slow_evaluations_leave_a_short_cooldown(on_a_clock: OnAClock) -> None:
    def step_with_evaluation(trainer: Trainer, _: float) -> float:
        trainer.state.reserved_seconds = 60.0 if trainer.state.step >= 120 else 0.0
        return 60.0 if trainer.state.step == 120 else 0.1

    trainer, _ = on_a_clock({"type": "wsd", "cooldown_fraction": 0.5}, 2, step_with_evaluation)
    factors = [report.factor for report in trainer.steps()]
    assert 130 < len(factors) <= 150 and factors[-1] < 0.15


def test_steady_step_time_does_not_move_the_end(on_a_clock: OnAClock) -> None:
    trainer, _ = on_a_clock({"type": "wsd"}, 1, lambda *_: 0.15)
    assert {trainer.state.turn_step for _ in trainer.steps()} == {0} and trainer.state.ends_by_the_clock


def test_stalled_machine_still_cools_down(on_a_clock: OnAClock) -> None:
    half = {"type": "wsd", "cooldown_fraction": 0.5}
    trainer, _ = on_a_clock(half, 1, lambda each, _: 100 if each.state.step == 400 else 0.1)
    factors = [report.factor for report in trainer.steps()]
    assert 420 < len(factors) < 500 and factors[-1] < 0.1
    assert max(one - other for one, other in pairwise(factors)) < 0.2
