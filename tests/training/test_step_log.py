"""The step log: the training curves of a run."""

from collections.abc import Callable
from math import inf, nan
from pathlib import Path

import pytest

from penwright.errors import PenwrightError
from penwright.run.folder import Run
from penwright.run.records import STEPS
from penwright.training.observers import FIRST_STEPS, LOG_EVERY, StepLog
from penwright.training.trainer import StepReport, Trainer


def test_first_steps_are_logged_singly_and_later_ones_as_means(
    tmp_path: Path, make_trainer: Callable[..., Trainer]
) -> None:
    run = Run.create(tmp_path / "run")
    trainer, log = make_trainer(training={"steps": FIRST_STEPS + LOG_EVERY + 3}), StepLog(run)
    reports = []
    for report in trainer.steps():
        reports.append(report)
        log.stepped(trainer, report)
    log.finished(trainer)
    *first, ten, last = run.records(STEPS)
    assert [record["loss"] for record in first] == [report.loss for report in reports[:FIRST_STEPS]]
    assert (ten["step"], last["step"], last["total_steps"]) == (
        FIRST_STEPS + LOG_EVERY,
        FIRST_STEPS + LOG_EVERY + 3,
        len(reports),
    )
    later = reports[FIRST_STEPS : FIRST_STEPS + LOG_EVERY]
    assert ten["loss"] == pytest.approx(sum(report.loss for report in later) / LOG_EVERY)
    assert last["gradient norm"] == pytest.approx(sum(report.grad_norm for report in reports[-3:]) / 3)
    assert last["learning rate"] == pytest.approx(reports[-1].factor * 0.02)
    assert 0 < first[0]["targets"] < last["targets"] == trainer.state.targets


def test_skipped_steps_are_left_out_of_the_means(tmp_path: Path, make_trainer: Callable[..., Trainer]) -> None:
    run = Run.create(tmp_path / "run")
    trainer, log = make_trainer(), StepLog(run)
    for step, (loss, norm) in enumerate([(2.0, 1.0), (nan, inf)], start=FIRST_STEPS + 1):
        log.stepped(trainer, StepReport(step, loss, norm, 1.0, 4))
    log.finished(trainer)
    log.stepped(trainer, StepReport(FIRST_STEPS + 3, nan, nan, 1.0, 4))
    log.finished(trainer)
    assert [(record["loss"], record["gradient norm"]) for record in run.records(STEPS)] == [(2.0, 1.0), (None, None)]


def test_full_disk_at_a_log_line_does_not_end_the_training(
    tmp_path: Path, make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, full = Run.create(tmp_path / "run"), [True]
    append = run.append

    def write(name: str, record: dict[str, object]) -> None:
        if full.pop() if full else False:
            raise PenwrightError("the disk is full")
        append(name, record)

    monkeypatch.setattr(run, "append", write)
    trainer, log = make_trainer(training={"steps": 2}), StepLog(run)
    losses = []
    for report in trainer.steps():
        losses.append(report.loss)
        log.stepped(trainer, report)
    assert [record["loss"] for record in run.records(STEPS)] == [pytest.approx(sum(losses) / 2)]
