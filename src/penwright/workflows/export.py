"""Export of a trained run to another engine."""

from pathlib import Path

from penwright.config import Precision
from penwright.formats.export import Format, save_as
from penwright.workflows.load import open_run


def export(folder: Path, to: Format, output: Path, precision: Precision = "float32") -> None:
    """Write a run's best model to a new folder in the format of another engine. See the modules of `formats`."""
    opened_run = open_run(folder)
    save_as(to, opened_run.model(), opened_run.tokenizer, output, precision)
