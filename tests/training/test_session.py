import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path

import pytest
import torch

from penwright.errors import Interrupted, PenwrightError
from penwright.evaluation.scores import Sample, Score
from penwright.run.folder import Run
from penwright.training import loop
from penwright.training.distributed.launcher import STOP_SIGNALS
from penwright.training.loop import Session, save_interval
from penwright.training.observers import Observer
from penwright.training.trainer import StepReport, Trainer

MakeTrainer = Callable[..., Trainer]


class Recorder(Observer):
    """An observer that records the events of a session."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.evaluated_at: list[tuple[int, bool]] = []
        self.words: list[str] = []
        self.ended = False

    def message(self, text: str) -> None:
        self.words.append(text)

    def stepped(self, trainer: Trainer, report: StepReport) -> None:
        self.steps.append(report.step)

    def evaluated(self, trainer: Trainer, scores: Sequence[Score], samples: Sequence[Sample], best: bool) -> None:
        self.evaluated_at.append((trainer.state.step, best))

    def finished(self, trainer: Trainer) -> None:
        self.ended = True


def session_of(run: Run, trainer: Trainer, values: Sequence[float], recorder: Observer, name: str = "loss") -> Session:
    """Return a session whose evaluations give `values` as scores."""
    evaluations = iter(values)
    return Session(run, trainer, lambda: [Score(name, next(evaluations))], lambda: [Sample("a", "b")], [recorder])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run")


def test_evaluation_runs_every_n_steps_and_at_the_end(run: Run, make_trainer: MakeTrainer) -> None:
    recorder = Recorder()
    trainer = make_trainer(training={"steps": 7, "evaluate_every": 3})
    session_of(run, trainer, [3.0, 2.0, 1.0], recorder).fit()
    assert [step for step, _ in recorder.evaluated_at] == [3, 6, 7]
    assert recorder.steps == list(range(1, 8)) and recorder.ended


def test_check_after_each_step_can_end_the_session(run: Run, make_trainer: MakeTrainer) -> None:
    def check(trainer: Trainer) -> None:
        if trainer.state.step == 3:
            raise PenwrightError("enough")

    recorder = Recorder()
    trainer = make_trainer(training={"steps": 7})
    session = Session(run, trainer, list, list, [recorder])
    session.checks = [check]
    with pytest.raises(PenwrightError, match="enough"):
        session.fit()
    assert recorder.steps == [1, 2, 3] and recorder.ended and not run.checkpoints.all()


@pytest.mark.parametrize(("step", "is_due"), [(1, False), (19, False), (20, True), (99, True)])
def test_first_evaluation_of_a_minutes_budget_waits_for_20_steps(
    run: Run, make_trainer: MakeTrainer, step: int, is_due: bool
) -> None:
    trainer = make_trainer()
    trainer.settings = trainer.settings.model_copy(update={"minutes": 1.0, "steps": None})
    trainer.state.total_steps = None
    session = session_of(run, trainer, [1.0], Recorder())
    trainer.state.step, trainer.state.seconds = step, 50.0
    assert session._evaluation_is_due() == is_due


def test_evaluation_is_due_when_the_epochs_have_grown_by_half(run: Run, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    trainer.settings = trainer.settings.model_copy(update={"minutes": 600.0, "steps": None})
    trainer.state.total_steps, trainer.state.first_step = None, 10  # where an earlier budget ended
    session = session_of(run, trainer, [], Recorder())
    evaluated_epochs = []
    for step in range(11, 10 + round(12 * trainer.batches.per_epoch)):
        trainer.state.step, trainer.state.seconds = step, 0.1 * step
        if session._evaluation_is_due():
            evaluated_epochs.append((step - 10) / trainer.batches.per_epoch)
            session.last_evaluated_step = step
    assert evaluated_epochs == pytest.approx([2, 3, 4.5, 6.75, 10.125], abs=0.4)
    session.last_evaluated_step = 10
    assert session._evaluation_is_due()
    trainer.state.reserved_seconds = 0.01 * 60 * 600.0  # slow evaluations are not made early
    assert not session._evaluation_is_due()
    trainer.state.reserved_seconds = 0.004 * 60 * 600.0  # fast ones are, however little time has passed
    assert session._evaluation_is_due()
    session.last_evaluated_step = trainer.state.step
    assert not session._evaluation_is_due()


def test_best_checkpoint_is_kept_though_later_ones_are_worse(run: Run, make_trainer: MakeTrainer) -> None:
    recorder = Recorder()
    trainer = make_trainer(training={"steps": 10, "evaluate_every": 2, "keep": 1})
    session_of(run, trainer, [3.0, 1.0, 2.0, 2.5, 2.6], recorder).fit()
    assert run.checkpoints.best()[0].step == 4
    assert [checkpoint.step for checkpoint in run.checkpoints.all()] == [4, 10]


def test_equal_scores_are_ranked_by_nats(run: Run, make_trainer: MakeTrainer) -> None:
    evaluations = iter([(0.0, 5.0), (0.0, 4.0), (0.0, 4.5), (0.0, 4.0)])  # BLEU stays 0 for a while

    def evaluate() -> list[Score]:
        bleu, nats = next(evaluations)
        return [Score("BLEU", bleu, True), Score("nats per token", nats)]

    trainer = make_trainer(training={"steps": 8, "evaluate_every": 2})
    Session(run, trainer, evaluate, lambda: [Sample("a", "b")], [recorder := Recorder()]).fit()
    assert recorder.evaluated_at == [(2, True), (4, True), (6, False), (8, False)] and run.checkpoints.best_step() == 4


def test_scores_within_the_noise_are_ranked_by_nats(run: Run, make_trainer: MakeTrainer) -> None:
    evaluations = iter([(80.0, 0.40), (80.9, 0.42), (79.5, 0.39), (81.0, 0.45), (79.9, 0.41), (nan, 0.1)])

    def evaluate() -> list[Score]:
        accuracy, nats = next(evaluations)
        return [Score("accuracy", accuracy, True, standard_error=1.0), Score("nats per text", nats)]

    trainer = make_trainer(training={"steps": 12, "evaluate_every": 2})
    Session(run, trainer, evaluate, lambda: [Sample("a", "b")], [recorder := Recorder()]).fit()
    assert [best for _, best in recorder.evaluated_at] == [True, False, True, True, False, False]


def test_extended_run_keeps_the_best_within_the_noise(run: Run, make_trainer: MakeTrainer) -> None:
    evaluations = iter([(82.9, 0.45), (83.0, 0.43), (82.8, 0.38)])  # the last: equal within the noise, fewer nats

    def evaluate() -> list[Score]:
        accuracy, nats = next(evaluations)
        return [Score("accuracy", accuracy, True, standard_error=1.2), Score("nats per text", nats)]

    trainer = make_trainer(training={"steps": 6, "evaluate_every": 2})
    trainer.state.best, trainer.state.nats_of_best, trainer.state.best_nats = 83.8, 0.39, 0.37
    trainer.budget.extend()
    Session(run, trainer, evaluate, lambda: [Sample("a", "b")], [recorder := Recorder()]).fit()
    assert [best for _, best in recorder.evaluated_at] == [False, False, True]


@pytest.mark.parametrize(
    "last, error, kept",
    [
        ((79.5, 0.407), 1.0, 8),  # hardly worse
        ((79.5, 0.409), 1.0, 4),  # the loss is clearly higher
        ((78.9, 0.407), 1.0, 4),  # the accuracy is clearly lower
        ((80.0, 0.407), None, 4),  # without a standard error, nothing is known about chance
    ],
)
def test_last_model_is_kept_if_it_is_hardly_worse(
    last: tuple[float, float], error: float | None, kept: int, run: Run, make_trainer: MakeTrainer
) -> None:
    evaluations = iter([(79.0, 0.5), (80.0, 0.4), (79.5, 0.405), last])

    def evaluate() -> list[Score]:
        accuracy, nats = next(evaluations)
        return [Score("accuracy", accuracy, True, standard_error=error), Score("nats per text", nats)]

    trainer = make_trainer(training={"steps": 8, "evaluate_every": 2})
    Session(run, trainer, evaluate, lambda: [Sample("a", "b")], [recorder := Recorder()]).fit()
    assert recorder.evaluated_at == [(2, True), (4, True), (6, False), (8, False)]
    assert run.checkpoints.best_step() == kept
    assert trainer.state.best == (last[0] if kept == 8 else 80.0)


def test_last_model_does_not_replace_the_start_of_a_fine_tuned_run(run: Run, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(training={"steps": 2, "evaluate_every": 2})
    trainer.state.best, trainer.state.best_step, trainer.state.nats_of_best = 80.0, 0, 0.4
    scores = [Score("accuracy", 80.0, True, standard_error=1.0), Score("nats per text", 0.405)]
    Session(run, trainer, lambda: scores, lambda: [Sample("a", "b")], []).fit()
    assert trainer.state.best_step == 0


class Killed(BaseException):
    """Simulates a killed process: no code of ours catches it."""


@pytest.mark.parametrize(("values", "best"), [([3.0, 1.0], 4), ([1.0, 3.0], 2)])
def test_kill_right_after_the_rename_keeps_the_best_step(
    run: Run, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, values: list[float], best: int
) -> None:
    rename = Path.replace

    def rename_and_die(path: Path, target: Path) -> Path:
        renamed = rename(path, target)
        if target.name == "step-00000004":
            raise Killed
        return renamed

    monkeypatch.setattr(Path, "replace", rename_and_die)
    with pytest.raises(Killed):
        session_of(run, make_trainer(training={"steps": 10, "evaluate_every": 2}), values, Recorder()).fit()
    assert [checkpoint.step for checkpoint in run.checkpoints.all()] == [2, 4]
    assert (run.checkpoints.best_step(), run.checkpoints.best()[0].step) == (best, best)


def test_nan_score_is_never_the_best(run: Run, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(training={"steps": 6, "evaluate_every": 2})
    session_of(run, trainer, [nan, 5.0, nan], Recorder()).fit()
    assert run.checkpoints.best_step() == 4


def test_patience_stops_early_and_says_so(run: Run, make_trainer: MakeTrainer) -> None:
    recorder = Recorder()
    trainer = make_trainer(training={"steps": 100, "evaluate_every": 2, "patience": 2})
    session_of(run, trainer, [1.0, 2.0, 3.0, 4.0], recorder).fit()
    assert trainer.state.step == 6
    assert "stopped early" in recorder.words[0]


def test_metrics_and_samples_are_logged(run: Run, make_trainer: MakeTrainer) -> None:
    session_of(run, make_trainer(training={"steps": 4, "evaluate_every": 2}), [2.0, 1.0], Recorder()).fit()
    assert [(r["step"], r["loss"]) for r in run.records("metrics.jsonl")] == [(2, 2.0), (4, 1.0)]
    assert run.records("samples.jsonl")[0] == {"step": 2, "prompt": "a", "completion": "b", "reference": ""}


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_stop_signal_saves_after_the_step_and_says_how_to_resume(
    run: Run, make_trainer: MakeTrainer, number: signal.Signals
) -> None:
    class StopsAtStep3(Recorder):
        def stepped(self, trainer: Trainer, report: StepReport) -> None:
            if report.step == 3:
                signal.raise_signal(number)

    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match="--resume"):
        session_of(run, make_trainer(training={"steps": 9, "evaluate_every": 9}), [], StopsAtStep3()).fit()
    assert run.checkpoints.newest()[0].step == 3
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("code", [errno.EIO, errno.EPIPE, errno.ENOSPC])
def test_failing_display_neither_ends_training_nor_loses_a_checkpoint(
    run: Run, make_trainer: MakeTrainer, code: int
) -> None:
    class ClosedTerminal(Observer):
        def fail(self, *_: object) -> None:
            raise OSError(code, os.strerror(code))

        message = stepped = evaluated = finished = fail

    recorder, trainer = Recorder(), make_trainer(training={"steps": 8, "evaluate_every": 2, "patience": 1})
    observers = [ClosedTerminal(), recorder]
    Session(run, trainer, lambda: [Score("loss", 1.0)], list, observers).fit()
    assert recorder.ended and "stopped early" in recorder.words[0] and run.checkpoints.newest()[0].step == 4


def test_unwritable_stop_files_still_say_how_to_resume(run: Run, make_trainer: MakeTrainer) -> None:
    class BlocksStopFiles(Recorder):
        def stepped(self, trainer: Trainer, report: StepReport) -> None:
            (run.folder / "stopped").mkdir(exist_ok=True)
            (run.folder / "stop").mkdir(exist_ok=True)

    with pytest.raises(Interrupted, match="--resume"):
        session_of(run, make_trainer(training={"steps": 9, "evaluate_every": 9}), [], BlocksStopFiles()).fit()
    assert run.checkpoints.newest()[0].step == 1


def test_stop_request_ends_the_run_like_a_signal(run: Run, make_trainer: MakeTrainer) -> None:
    class RequestsStopAtStep3(Recorder):
        def stepped(self, trainer: Trainer, report: StepReport) -> None:
            if report.step == 3:
                run.request_stop()

    settings = {"steps": 9, "evaluate_every": 9}
    uninterrupted = make_trainer(training=settings)
    for _ in uninterrupted.steps():
        pass
    with pytest.raises(Interrupted, match="--resume"):
        session_of(run, make_trainer(training=settings), [], RequestsStopAtStep3()).fit()
    assert run.checkpoints.newest()[0].step == 3 and run.was_stopped and not run.is_stop_requested
    resumed = make_trainer(training=settings)
    resumed.load(run.checkpoints.newest()[0])
    run.clear_stop_files()
    session_of(run, resumed, [1.0], Recorder()).fit()
    assert not run.was_stopped
    for name, tensor in uninterrupted.weights().items():
        assert bool((resumed.weights()[name] == tensor).all()), name


def test_stop_request_at_the_last_step_leaves_a_finished_run(run: Run, make_trainer: MakeTrainer) -> None:
    run.request_stop()
    run.request_stop()  # a second request changes nothing
    session_of(run, make_trainer(training={"steps": 1}), [1.0], Recorder()).fit()
    assert run.is_finished and not run.was_stopped and not run.is_stop_requested


def test_evaluation_uses_the_averaged_weights(run: Run, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(training={"steps": 5, "ema_decay": 0.9, "evaluate_every": 5})
    assert trainer.average is not None
    seen = []

    def evaluate() -> list[Score]:
        seen.append(trainer.model.embedding.tokens.weight.clone())
        return [Score("loss", 1.0)]

    Session(run, trainer, evaluate, list, []).fit()
    name = "embedding.tokens.weight"
    assert bool((seen[0] == trainer.average.average[name]).all())
    assert not bool((seen[0] == trainer.model.embedding.tokens.weight).all())


HALF_COOLDOWN = {"type": "wsd", "warmup_steps": 0, "cooldown_fraction": 0.5}


def test_overfitting_brings_the_cooldown_forward(run: Run, make_trainer: MakeTrainer) -> None:
    recorder = Recorder()
    trainer = make_trainer(
        training={"steps": 100, "evaluate_every": 4, "cooldown_on_overfitting": True}, schedule=HALF_COOLDOWN
    )
    session_of(run, trainer, [3.0, 3.02, 3.1, 3.2, 2.0, 1.0, 1.5, 1.5], recorder, "nats per token").fit()
    assert trainer.state.step == 2 * 16  # found at 12 and 16, then 16 steps of cooldown
    assert "overfit" in recorder.words[0]
    assert run.checkpoints.best_step() == 24 and run.is_finished


def test_continued_overfitting_ends_the_run_also_after_a_resume(run: Run, make_trainer: MakeTrainer) -> None:
    recorder = Recorder()
    long = {**HALF_COOLDOWN, "cooldown_fraction": 0.75}
    trainer = make_trainer(training={"steps": 100, "evaluate_every": 4, "cooldown_on_overfitting": True}, schedule=long)
    session_of(run, trainer, [1.0, *[3.0] * 9], recorder, "nats per token").fit()  # the cooldown is from 12 to 48
    assert trainer.state.step == 32 and trainer.state.stopped_early and "stopped early" in recorder.words[-1]
    again = make_trainer(training={"steps": 100})
    again.load(run.checkpoints.newest()[0])
    assert again.state.stopped_early and run.is_finished


def test_overfitting_ends_a_run_with_a_constant_rate(run: Run, make_trainer: MakeTrainer) -> None:
    settings = {"steps": 100, "evaluate_every": 4, "cooldown_on_overfitting": True}
    trainer = make_trainer(training=settings, schedule={"type": "constant"})
    session_of(run, trainer, [1.0, *[3.0] * 9], Recorder(), "nats per token").fit()
    assert trainer.state.step == 16 and trainer.state.stopped_early


def test_noisy_scores_do_not_end_a_run(run: Run, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(
        training={"steps": 20, "evaluate_every": 4, "cooldown_on_overfitting": True}, schedule=HALF_COOLDOWN
    )
    session_of(run, trainer, [1.0, 3.0, 3.0, 3.0, 3.0], Recorder(), "accuracy").fit()
    assert trainer.state.step == 20


def test_lower_loss_before_the_first_step_is_not_a_sign_of_overfitting(run: Run, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(
        training={"steps": 20, "evaluate_every": 4, "cooldown_on_overfitting": True}, schedule=HALF_COOLDOWN
    )
    session = session_of(run, trainer, [1.0, 3.0, 2.9, 2.8, 2.7, 2.6], Recorder(), "nats per token")
    session.evaluate_now()  # as before fine-tuning
    session.fit()
    assert trainer.state.step == 20


def test_overfitting_is_ignored_by_default(run: Run, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(training={"steps": 20, "evaluate_every": 4}, schedule=HALF_COOLDOWN)
    session_of(run, trainer, [1.0, 3.0, 3.0, 3.0, 3.0], Recorder(), "nats per token").fit()
    assert trainer.state.step == 20


def test_extended_run_is_not_compared_with_the_earlier_best(run: Run, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(
        training={"steps": 20, "evaluate_every": 4, "cooldown_on_overfitting": True}, schedule=HALF_COOLDOWN
    )
    trainer.state.step = trainer.state.total_steps = 100
    trainer.state.best = trainer.state.best_nats = 1.0
    trainer.budget.extend()
    session_of(run, trainer, [1.5, 1.4, 1.3, 1.2, 1.1], Recorder(), "nats per token").fit()
    assert trainer.state.step == 120


def test_new_budget_is_saved_after_its_first_step(run: Run, make_trainer: MakeTrainer) -> None:
    class EndsAtStep102(Recorder):
        def stepped(self, trainer: Trainer, report: StepReport) -> None:
            if report.step == 102:
                raise SystemExit

    trainer = make_trainer(training={"steps": 20, "evaluate_every": 20})
    trainer.state.step = trainer.state.total_steps = 100
    trainer.budget.extend()
    with pytest.raises(SystemExit):
        session_of(run, trainer, [], EndsAtStep102()).fit()
    assert run.checkpoints.newest()[0].counters().total_steps == 120


def test_interrupted_run_is_not_finished(run: Run, make_trainer: MakeTrainer) -> None:
    class StopsAtStep3(Recorder):
        def stepped(self, trainer: Trainer, report: StepReport) -> None:
            if report.step == 3:
                signal.raise_signal(signal.SIGTERM)

    assert not run.is_finished
    with pytest.raises(Interrupted):
        session_of(run, make_trainer(training={"steps": 9, "evaluate_every": 9}), [], StopsAtStep3()).fit()
    assert not run.is_finished


def test_signal_during_the_last_evaluation_interrupts_nothing(run: Run, make_trainer: MakeTrainer) -> None:
    class SignalsInEvaluation(Recorder):
        def evaluated(self, trainer: Trainer, scores: Sequence[Score], samples: Sequence[Sample], best: bool) -> None:
            signal.raise_signal(signal.SIGTERM)

    session_of(run, make_trainer(training={"steps": 4, "evaluate_every": 4}), [1.0], SignalsInEvaluation()).fit()
    assert run.is_finished


def test_saved_state_includes_the_time_of_the_evaluation(run: Run, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(training={"steps": 4, "evaluate_every": 4})
    session = Session(run, trainer, lambda: time.sleep(0.3) or [Score("loss", 1.0)], list, [])
    session.fit()
    state = run.checkpoints.newest()[0].state()
    (record,) = run.records("metrics.jsonl")
    assert state["reserved_seconds"] >= 0.3
    assert state["seconds"] >= record["seconds"] + 0.29


@pytest.fixture
def _usual_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "EVALUATIONS", 10)


@pytest.mark.usefixtures("_usual_evaluations")
def test_small_text_is_evaluated_early_for_any_budget(run: Run, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(training={"steps": 220})
    per_epoch, recorder = trainer.batches.per_epoch, Recorder()
    Session(run, trainer, lambda: [Score("loss", 1.0)], list, [recorder]).fit()
    epochs = [step / per_epoch for step, _ in recorder.evaluated_at]
    assert epochs[-1] > 20, "the test needs more steps"
    for due_epoch in (2.0, 3.0, 4.5, 6.75):
        assert any(due_epoch <= each < due_epoch + 1 / per_epoch for each in epochs)
    assert len(epochs) < 20


def test_early_weights_are_kept_at_logarithmic_times(run: Run, make_trainer: MakeTrainer) -> None:
    class Clock(Observer):
        def stepped(self, trainer: Trainer, report: StepReport) -> None:
            trainer.state.seconds = 4.0 * report.step

    trainer = make_trainer(training={"steps": 12, "evaluate_every": 2, "keep": 1, "early": 2})
    Session(run, trainer, lambda: [Score("loss", 1.0 / trainer.state.step)], list, [Clock()]).fit()
    early = run.checkpoints.early()
    assert [each.step for each in early] == [1, 3], "kept after 4 s and 12 s, and no third one"
    for each in early:
        each.verify()
        assert {path.name for path in each.folder.iterdir()} == {"model.safetensors", "state.json", "manifest.json"}
    assert [each.step for each in run.checkpoints.all()] == [12], "other checkpoints are still pruned"
    run.delete_after(2)
    assert [each.step for each in run.checkpoints.early()] == [1]


def test_checkpoints_are_saved_between_evaluations(run: Run, make_trainer: MakeTrainer) -> None:
    class Clock(Observer):
        def stepped(self, trainer: Trainer, report: StepReport) -> None:
            trainer.state.seconds = 4.0 * report.step

    trainer = make_trainer(training={"steps": 12, "evaluate_every": 12, "keep": 9})
    session = session_of(run, trainer, [1.0, 1.0], Clock())
    session.save_interval = 10.0
    session.fit()
    assert [each.step for each in run.checkpoints.all()] == [3, 6, 9, 12]


@pytest.mark.usefixtures("_usual_evaluations")
def test_save_interval_grows_with_the_budget_and_the_model_size() -> None:
    small, large = [torch.empty(1000, device="meta")], [torch.empty(30_000_000, device="meta")]
    for weight in (*small, *large):
        weight.requires_grad_()
    frozen = [torch.empty(10**9, device="meta"), *small]
    assert save_interval(None, small) == save_interval(600.0, small) == 300.0
    assert save_interval(5.0, small) == save_interval(5.0, frozen) == 30.0
    assert save_interval(0.1, small) == 10.0
    assert 30.0 < save_interval(1.0, large) < save_interval(1.0, [*large, *large]) < 300.0


def test_early_weights_are_not_kept_by_default(run: Run, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(training={"steps": 2})
    session_of(run, trainer, [1.0, 1.0, 1.0], Recorder()).fit()
    assert run.checkpoints.early() == []
