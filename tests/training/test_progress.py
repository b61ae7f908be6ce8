import re
from collections.abc import Callable
from io import StringIO
from math import inf, nan

import pytest
from rich.console import Console

from penwright.evaluation.scores import Sample, Score
from penwright.training.progress import LineProgress, LiveProgress
from penwright.training.trainer import StepReport, Trainer


@pytest.mark.parametrize("bad_loss", [nan, inf])
def test_skipped_step_does_not_change_the_displayed_loss(make_trainer: Callable[..., Trainer], bad_loss: float) -> None:
    trainer, screen = make_trainer(training={"steps": 9}), StringIO()
    live, lines = LiveProgress(Console(file=screen, force_terminal=True, width=120)), LineProgress()
    for step, loss in enumerate([3.0, bad_loss, 2.0], 1):
        for progress in (live, lines):
            progress.stepped(trainer, StepReport(step, loss, loss, 1.0, 10))
    live.evaluated(trainer, [Score("accuracy", 50.0, True)], [], True)
    live.finished(trainer)
    assert "loss 2.950" in lines.line(trainer) and "loss 2.950" in screen.getvalue()


def test_samples_are_shown_at_start_middle_and_end(
    make_trainer: Callable[..., Trainer], capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, screen = make_trainer(training={"steps": 10}), StringIO()
    live, lines = LiveProgress(Console(file=screen, force_terminal=True, width=120)), LineProgress()
    for progress in (live, lines):
        for step in range(1, 10):
            trainer.state.step = step
            progress.stepped(trainer, StepReport(step, 3.0, 3.0, 1.0, 10))
            progress.evaluated(trainer, [Score("accuracy", 50.0, True)], [Sample("", f"sample {step}")], True)
        progress.finished(trainer)
    for shown in (screen.getvalue(), capsys.readouterr().err):
        assert re.findall(r"sample \d", shown) == ["sample 1", "sample 5", "sample 9"]
    assert "━" in screen.getvalue() and "left" in screen.getvalue()


def test_line_of_a_step_is_printed_once(
    make_trainer: Callable[..., Trainer], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penwright.training.progress.LOG_EVERY", -1.0)
    trainer, lines = make_trainer(training={"steps": 2}), LineProgress()
    for step in (1, 2):
        trainer.state.step = step
        lines.stepped(trainer, StepReport(step, 3.0, 3.0, 1.0, 10))
        lines.evaluated(trainer, [Score("accuracy", 50.0, True)], [], True)
    assert re.findall(r"(?m)^ *([a-z-]+)", capsys.readouterr().err) == ["step", "held-out"] * 2


def test_second_trainer_is_shown_with_its_own_figures(make_trainer: Callable[..., Trainer]) -> None:
    lines = LineProgress()
    for first_loss, seconds, targets in ((9.0, 100.0, 5_000), (3.0, 2.0, 40)):  # the second run starts from scratch
        trainer = make_trainer(training={"steps": 9})
        for step in (1, 2):
            trainer.state.seconds, trainer.state.targets = seconds + step, targets + 10 * step
            lines.stepped(trainer, StepReport(step, first_loss, first_loss, 1.0, 10))
    assert "loss 3.000" in lines.line(trainer) and "  10 tokens/s" in lines.line(trainer)


def test_time_left_of_a_budget_in_minutes_is_the_rest_of_it(make_trainer: Callable[..., Trainer]) -> None:
    trainer, lines = make_trainer(), LineProgress()
    trainer.settings = trainer.settings.model_copy(update={"minutes": 5.0, "steps": None})
    trainer.state.step, trainer.state.total_steps, trainer.state.seconds = 250, 2250, 100.0  # 75 seconds of baselines
    assert lines.line(trainer).endswith("01:40 elapsed, 03:20 left")
    trainer.state.first_step, trainer.state.first_second = 250, 90.0  # where an earlier budget ended
    assert lines.line(trainer).endswith("01:40 elapsed, 04:50 left")
    trainer.state.stopped_early = True
    assert lines.line(trainer).endswith("01:40 elapsed, 00:00 left")


def test_time_left_of_a_budget_in_steps_does_not_count_the_time_before_them(
    make_trainer: Callable[..., Trainer],
) -> None:
    trainer, lines = make_trainer(training={"steps": 100}), LineProgress()
    trainer.state.seconds = 60.0  # baselines, or the evaluation of a base
    assert lines.line(trainer).endswith("01:00 elapsed")
    for step in (1, 2, 3):
        trainer.state.step, trainer.state.seconds = step, 60.0 + step
        lines.stepped(trainer, StepReport(step, 3.0, 3.0, 1.0, 10))
    assert lines.line(trainer).endswith("01:03 elapsed, 01:37 left")


def test_no_time_is_left_without_steps(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer()
    trainer.state.total_steps, trainer.state.seconds = 0, 30.0  # as after contrastive fine-tuning
    assert trainer.budget.progress == 1
    assert LineProgress().line(trainer).endswith("00:30 elapsed, 00:00 left")
