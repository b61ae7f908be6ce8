"""penwright evaluate: the scores of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penwright.cli.options import Device, InPrecision, Json, OwnFiles, RunFolder, print_json, warn

if TYPE_CHECKING:
    from penwright.evaluation.scores import Baseline, Score

NAME = "evaluate"


def command(
    run: RunFolder,
    data: OwnFiles = None,
    beam: Annotated[int | None, typer.Option(help="For translation; 1 is greedy.", min=1)] = None,
    output: Annotated[Path | None, typer.Option(help="Keep the translations in this file.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="How the files are read: data.key=value.")] = None,
    precision: InPrecision = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Score a run beside baselines.

    Evaluates its best model on all of its held-out part, or on files of your own.
    """
    from penwright.cli.progress import err
    from penwright.config import merge, parse_override
    from penwright.workflows import api

    changes = merge(*(parse_override(text) for text in set_ or []))
    kept = precision or api.kept_precision(run, device)
    if kept not in (precision, "float32"):
        warn(f"measured in {kept}, as it is used since `penwright optimize`; --precision float32 is as it was trained")
    scores = api.evaluate(run, data or [], changes, device, beam_size=beam, output=output, precision=kept, say=err)
    if json:
        print_json([{**score._asdict(), "baselines": [each._asdict() for each in score.baselines]} for score in scores])
        return
    for score in scores:
        notes = [score.note, *(_in_words(score, baseline) for baseline in score.baselines)]
        print(f"{score.name}\t{score.value:.4f}\t{'; '.join(filter(None, notes))}".rstrip())


def _in_words(score: "Score", baseline: "Baseline") -> str:
    beaten = "" if score.beats(baseline.value) else ", not beaten"
    return f"baseline {baseline.value:.4f} ({baseline.name}{beaten})"
