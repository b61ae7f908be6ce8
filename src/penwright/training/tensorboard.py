"""Training curves for TensorBoard, where it is installed (pip install penwright[tensorboard])."""

from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from penwright.evaluation.samples import Sample
from penwright.evaluation.scores import Score
from penwright.training.loop import Observer
from penwright.training.trainer import StepReport, Trainer

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

EVERY = 20  # steps


def tensorboard_observer(folder: Path) -> Observer | None:
    """Writes to the `tensorboard` folder of the run; None where TensorBoard is not installed."""
    return _TensorBoard(folder / "tensorboard") if find_spec("tensorboard") else None


class _TensorBoard(Observer):
    """Imports TensorBoard, which is slow, and makes its folder only once there is something to write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def _writer(self) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - see the class

        return SummaryWriter(str(self.folder))

    def stepped(self, trainer: Trainer, report: StepReport) -> None:
        if report.step % EVERY == 0:
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
