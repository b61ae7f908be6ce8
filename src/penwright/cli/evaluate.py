"""The `penwright evaluate` command: score a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penwright.cli.decoding_options import given_settings, with_settings
from penwright.cli.options import Device, InPrecision, Json, OwnFiles, RunFolder, print_json, warn
from penwright.errors import UsageError

if TYPE_CHECKING:
    from penwright.evaluation.scores import Baseline, Score

CheckLabels = Annotated[
    bool,
    typer.Option(
        "--check-labels",
        help="For classifiers: list the training texts that may have a wrong label, instead of scoring.",
    ),
]


@with_settings(["beam_size"], before="output", note="Affects only translators. Default: the run's setting.")
def command(
    run: RunFolder,
    data: OwnFiles = None,
    output: Annotated[Path | None, typer.Option(help="Write the translations to this file.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Set how DATA is read: data.KEY=VALUE. Repeatable.")
    ] = None,
    check_labels: CheckLabels = False,
    precision: InPrecision = None,
    device: Device = "cpu",
    json: Json = False,
    **settings: Any,
) -> None:
    """Score a run, and compare it with baselines.

    Evaluates the best checkpoint on the whole held-out part, or on your own files.
    """
    from penwright.cli.label_report import report_lines
    from penwright.cli.progress import print_message
    from penwright.config import merge, parse_override
    from penwright.evaluation.translation import bleu_in_words
    from penwright.workflows import api

    if check_labels:
        if data:
            raise UsageError("--check-labels checks the training texts of RUN; leave out DATA")
        _check_labels(run, json)
        return
    changes = merge(*(parse_override(text) for text in set_ or []))
    kept = precision or api.kept_precision(run, device)
    if kept not in (precision, "float32"):
        warn(f"evaluating in {kept}, the precision for decoding. To evaluate the model as trained: --precision float32")
    scores = api.evaluate(
        run, data or [], changes, device, output=output, precision=kept, say=print_message, **given_settings(settings)
    )
    if json:
        print_json([_as_dict(score) for score in scores])
        return
    for score in scores:
        meaning = f"such a BLEU score usually means: {bleu_in_words(score.value)}" if score.name == "BLEU" else ""
        notes = [meaning, score.note, *(_in_words(score, baseline) for baseline in score.baselines)]
        print(f"{score.name}\t{score.value:.4f}\t{'; '.join(filter(None, notes))}".rstrip())
    for report in filter(None, (score.report for score in scores)):
        print("\n".join(report_lines(report)))


def _check_labels(run: Path, json: bool) -> None:
    """Print the training texts that may have a wrong label."""
    from penwright.cli.label_report import mistake_lines
    from penwright.workflows import api

    mistakes = api.check_labels(run)
    if json:
        print_json([each._asdict() for each in mistakes])
    else:
        print("\n".join(mistake_lines(mistakes)))


def _as_dict(score: "Score") -> dict[str, object]:
    """Return a score as a dictionary for JSON. Omit a missing report."""
    fields = {**score._asdict(), "baselines": [item._asdict() for item in score.baselines]}
    report = fields.pop("report")
    return {**fields, "report": report.as_dict()} if report else fields


def _in_words(score: "Score", baseline: "Baseline") -> str:
    """Describe a baseline. If the score is not better than the baseline, say so."""
    verdict = "" if score.beats(baseline.value) else ", not beaten"
    return f"baseline {baseline.value:.4f} ({baseline.name}{verdict})"
