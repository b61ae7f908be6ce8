"""Observers of a training session, including a log in the run folder and a writer for TensorBoard."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from penwright.errors import PenwrightError
from penwright.evaluation.scores import Sample, Score
from penwright.run.folder import Run
from penwright.run.records import STEPS
from penwright.training.trainer import StepReport, Trainer

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Event = Literal["message", "stepped", "evaluated", "finished"]  # names of the methods of Observer
LOG_EVERY, FIRST_STEPS = 10, 100  # number of steps per line of the log; number of initial steps that get a line each


class Observer:
    """An observer of a run. Subclasses override the methods of the events that they handle."""

    def message(self, text: str) -> None:
        """Show a message to the user: a choice with its reason, or a warning."""

    def stepped(self, trainer: Trainer, report: StepReport) -> None:
        """Handle the report of a step."""

    def evaluated(self, trainer: Trainer, scores: Sequence[Score], samples: Sequence[Sample], best: bool) -> None:
        """Handle an evaluation on the held-out set. `best` means that no earlier evaluation was better."""

    def finished(self, trainer: Trainer) -> None:
        """Handle the end of the session, successful or not."""


def notify(observers: Sequence[Observer], event: Event, *details: object) -> None:
    """Call the method named `event` of each observer. A closed terminal or a full disk must not end the training."""
    for observer in observers:
        with suppress(OSError):
            getattr(observer, event)(*details)


class StepLog(Observer):
    """An observer that logs means over several steps. Values of skipped steps, which are not finite, are ignored."""

    def __init__(self, run: Run):
        self.run = run
        self.reports: list[StepReport] = []

    def stepped(self, trainer: Trainer, report: StepReport) -> None:
        """Collect the report. At regular intervals, write the means of the collected reports."""
        self.reports.append(report)
        if report.step <= FIRST_STEPS or report.step % LOG_EVERY == 0:
            self._write(trainer)

    def finished(self, trainer: Trainer) -> None:
        """Write the remaining reports."""
        self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        if not self.reports:
            return
        state, rate = trainer.state, trainer.optimizers.peaks[-1][0]  # peak learning rate (of Muon if it is used)
        figures = {
            "step": self.reports[-1].step,
            "seconds": round(state.seconds, 2),
            "targets": state.targets,
            "loss": _mean([report.loss for report in self.reports]),
            "gradient norm": _mean([report.grad_norm for report in self.reports]),
            "learning rate": rate * self.reports[-1].factor,
            "skipped": state.skipped,
            "total_steps": state.total_steps,
            **({"consistent": True} if trainer.is_consistent else {}),
        }
        with suppress(PenwrightError):  # if the disk is full, the next line includes these reports
            self.run.append(STEPS, figures)
            self.reports.clear()


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean of the finite values, or None if there are none."""
    finite = [value for value in values if isfinite(value)]
    return sum(finite) / len(finite) if finite else None


TENSORBOARD_EVERY = 20  # number of steps between two TensorBoard values


def tensorboard_observer(folder: Path) -> Observer | None:
    """Return an observer that writes to the run's `tensorboard` folder, or None if TensorBoard is not installed."""
    return _TensorBoard(folder / "tensorboard") if find_spec("tensorboard") else None


class _TensorBoard(Observer):
    """An observer that writes TensorBoard files. The slow import of TensorBoard is delayed until the first value."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def _writer(self) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  # slow, see the docstring of the class

        return SummaryWriter(str(self.folder))

    def stepped(self, trainer: Trainer, report: StepReport) -> None:
        if report.step % TENSORBOARD_EVERY == 0:
            figures = {"loss": report.loss, "gradient norm": report.grad_norm, "learning rate factor": report.factor}
            for name, value in figures.items():
                self._writer.add_scalar(f"training/{name}", value, report.step)

    def evaluated(self, trainer: Trainer, scores: Sequence[Score], samples: Sequence[Sample], best: bool) -> None:
        step = trainer.state.step
        for score in scores:
            self._writer.add_scalar(f"held out/{score.name}", score.value, step)
        for number, sample in enumerate(samples):
            self._writer.add_text(f"sample {number}", f"{sample.prompt}{sample.completion}", step)

    def finished(self, trainer: Trainer) -> None:
        self._writer.close()
