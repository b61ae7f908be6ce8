"""Export of a trained run to another engine."""

from pathlib import Path

from penwright.config import Precision
from penwright.formats.export import Format, save_as
from penwright.formats.outside import Facts
from penwright.workflows.load import corpus_record, open_run


def export(folder: Path, to: Format, output: Path, precision: Precision = "float32") -> None:
    """Write a run's best model to a new folder in the format of another engine. See the modules of `formats`.

    The origin and licence of an imported model are stated in README.md.
    """
    opened_run = open_run(folder)
    record = corpus_record(opened_run.run)
    origin, card = record.imported, ""
    if origin is not None:
        front = f"---\nlicense: {origin.licence}\n---\n" if origin.licence else ""
        files = "".join(f"- {Path(file.path).name}, sha256 {file.sha256}\n" for file in record.files)
        card = f"{front}This model was {origin}, from:\n\n{files}"
    labels, licence = opened_run.card.labels, origin.licence if origin else None
    save_as(to, opened_run.model(), opened_run.tokenizer, output, precision, Facts(labels, licence, card))
