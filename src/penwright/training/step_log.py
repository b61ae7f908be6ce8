"""What the steps of training were like, as lines of the run's steps.jsonl: the curves of the page."""

from collections.abc import Sequence
from math import isfinite

from penwright.run.folder import STEPS, Run
from penwright.training.loop import Observer
from penwright.training.trainer import StepReport, Trainer

EVERY, AT_FIRST = 10, 100  # steps; of the first ones, where most happens, each


class StepLog(Observer):
    """Writes the means of ten steps, without those that were skipped since their gradient was not finite."""

    def __init__(self, run: Run):
        self.run = run
        self.reports: list[StepReport] = []

    def stepped(self, trainer: Trainer, report: StepReport) -> None:
        self.reports.append(report)
        if report.step <= AT_FIRST or report.step % EVERY == 0:
            self._write(trainer)

    def finished(self, trainer: Trainer) -> None:
        self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        if not self.reports:
            return
        state, rate = trainer.state, trainer.optimizers.peaks[-1][0]  # Muon's, where there is one
        figures = {
            "step": self.reports[-1].step,
            "seconds": round(state.seconds, 2),
            "targets": state.targets,
            "loss": _mean([report.loss for report in self.reports]),
            "gradient norm": _mean([report.grad_norm for report in self.reports]),
            "learning rate": rate * self.reports[-1].factor,
            "skipped": state.skipped,
            "total_steps": state.total_steps,
        }
        self.run.append(STEPS, figures)
        self.reports.clear()


def _mean(values: Sequence[float]) -> float | None:
    """Of those that are finite, if there are any."""
    finite = [value for value in values if isfinite(value)]
    return sum(finite) / len(finite) if finite else None
