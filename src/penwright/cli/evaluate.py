"""The commands that measure: `penwright evaluate` scores a run, `penwright novelty` finds copied text."""

import json as json_format
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penwright.cli.decoding_options import given_settings, with_settings
from penwright.cli.options import (
    Device,
    InPrecision,
    Json,
    OwnFiles,
    RunFolder,
    print_json,
    read_text,
    refuse_unused,
    warn,
)
from penwright.errors import PenwrightError
from penwright.text import count, significant

if TYPE_CHECKING:
    from penwright.evaluation.novelty import Novelty, NoveltyReport
    from penwright.evaluation.scores import Baseline, ErrorReport, LabelReport, Mistake, Score

MOST_LABELS, MOST_COLUMNS = 50, 12  # maximum number of rows in the score table, and of columns in the confusion matrix
LONGEST = 80  # maximum number of characters of a text to print
MOST_DOUBTFUL = 50  # maximum number of doubtful labels to print
CheckLabels = Annotated[
    bool,
    typer.Option(
        "--check-labels",
        help="For classifiers: list the texts of the run that may have a wrong label, instead of scoring.",
    ),
]
SHOWN = 200  # maximum number of characters of a passage to print


@with_settings(["beam_size"], before="output", note="Affects only translators. Default: the run's setting.")
def evaluate(
    run: RunFolder,
    data: OwnFiles = None,
    output: Annotated[Path | None, typer.Option(help="Write the translations to this file.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Set how DATA is read. Repeatable.", metavar="data.KEY=VALUE")
    ] = None,
    check_labels: CheckLabels = False,
    precision: InPrecision = None,
    device: Device = "cpu",
    json: Json = False,
    **settings: Any,
) -> None:
    """Score a run, and compare it with baselines.

    Evaluates the best checkpoint on the whole held-out set, or on your own files.
    """
    from penwright.config import merge, parse_override
    from penwright.evaluation.translation import bleu_in_words
    from penwright.streams import print_message
    from penwright.workflows.evaluate import evaluate
    from penwright.workflows.load import kept_precision, open_run

    decoding = given_settings(settings)
    of_translators = {"--output": output, "--beam": decoding.get("beam_size")}
    if check_labels:
        others = {"DATA": data, "--set": set_, "--precision": precision}
        refuse_unused({**of_translators, **others}, "with --check-labels, which checks the texts of the run")
        _check_labels(run, json)
        return
    if open_run(run).recipe.task != "translate":
        refuse_unused(of_translators, f"with {run}, which is not a translator")
    changes = merge(*(parse_override(text) for text in set_ or []))
    kept = precision or kept_precision(run, device)
    if kept not in (precision, "float32"):
        warn(f"evaluating in {kept}, the precision for decoding. To evaluate the model as trained: --precision float32")
    scores = evaluate(run, data or [], changes, device, output=output, precision=kept, say=print_message, **decoding)
    if json:
        print_json([_as_dict(score) for score in scores])
        return
    for score in scores:
        meaning = f"such a BLEU score usually means: {bleu_in_words(score.value)}" if score.name == "BLEU" else ""
        notes = [meaning, score.note, *(_in_words(score, baseline) for baseline in score.baselines)]
        print(f"{score.name}\t{score.value:.4f}\t{'; '.join(filter(None, notes))}".rstrip())
    for report in (score.report for score in scores if score.report is not None):
        print("\n".join(report_lines(report)))


def _check_labels(run: Path, json: bool) -> None:
    """Print the texts that may have a wrong label, with their files and rows."""
    from penwright.streams import print_message
    from penwright.workflows.evaluate import check_labels

    mistakes = check_labels(run, print_message)
    if json:
        print_json([each._asdict() for each in mistakes])
        return
    print("\n".join(mistake_lines(mistakes[:MOST_DOUBTFUL])))
    if len(mistakes) > MOST_DOUBTFUL:
        print_message(f"showing {MOST_DOUBTFUL} of {len(mistakes):,}; --json prints all")


def _as_dict(score: "Score") -> dict[str, object]:
    """Return a score as a dictionary for JSON. Omit a missing report."""
    fields = {**score._asdict(), "baselines": [item._asdict() for item in score.baselines]}
    report = fields.pop("report")
    return {**fields, "report": report.as_dict()} if report else fields


def _in_words(score: "Score", baseline: "Baseline") -> str:
    """Describe a baseline. If the score is not better than the baseline, say so."""
    verdict = "" if score.beats(baseline.value) else ", equal" if score.value == baseline.value else ", not beaten"
    return f"baseline {baseline.value:.4f} ({baseline.name}{verdict})"


def report_lines(report: "LabelReport | ErrorReport") -> Iterator[str]:
    """Yield the scores of each label, the confusion matrix and the worst mistakes, or the largest errors of numbers."""
    from penwright.evaluation.scores import ErrorReport

    if isinstance(report, ErrorReport):
        yield from ("", "largest errors:", "error\tpredicted\tscore\ttext")
        for error in report.errors:
            numbers = "\t".join(map(significant, (error.error, error.predicted, error.score)))
            yield f"{'+' * (error.error >= 0)}{numbers}\t{_shortened(error.text)}"
        return
    has_thresholds = any(each.threshold is not None for each in report.labels)
    yield from ("", "label\tprecision\trecall\tF1\ttexts" + "\tthreshold" * has_thresholds)
    by_f1 = sorted(report.labels, key=lambda each: 101.0 if each.f1 is None else each.f1)
    shown = report.labels if len(report.labels) <= MOST_LABELS else by_f1[:MOST_LABELS]
    for each in shown:
        threshold = [] if each.threshold is None else [f"{each.threshold:.3f}"]
        percents = map(_percent, (each.precision, each.recall, each.f1))
        yield "\t".join([each.label, *percents, f"{each.n_texts:,}", *threshold])
    if len(shown) < len(report.labels):
        yield f"(the {MOST_LABELS} of {len(report.labels):,} labels with the lowest F1; --json prints all labels)"
    if report.confusion:
        yield from ("", *_confusion(report))
    if (best := report.threshold) is not None:
        scores = f"F1 {best.f1:.1f}, precision {best.precision:.1f}, recall {best.recall:.1f}"
        yield ""
        options = f"--positive {shlex.quote(best.label)} --threshold {best.threshold!r}"
        yield f"best threshold: {options} ({scores}; tuned on these texts)"
    if report.mistakes:
        advice = " (to list doubtful labels in the data of the run: --check-labels)" if report.confusion else ""
        yield from ("", f"worst mistakes{advice}:", *mistake_lines(report.mistakes))


def mistake_lines(mistakes: "Sequence[Mistake]") -> Iterator[str]:
    """Yield a line for each mistake, below a header. The last column is the location, if it is known."""
    is_located = any(mistake.location for mistake in mistakes)
    yield "probability\tpredicted\tlabel\ttext" + "\trow" * is_located
    for mistake in mistakes:
        line = f"{mistake.probability:.3f}\t{mistake.predicted}\t{mistake.label}\t{_shortened(mistake.text)}"
        yield line + f"\t{mistake.location}" * is_located


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _confusion(report: "LabelReport") -> Iterator[str]:
    """Yield the lines of the confusion matrix or, if there are many labels, of its largest off-diagonal entries."""
    names = [each.label for each in report.labels]
    if len(names) <= MOST_COLUMNS:
        yield "\t".join(["label \\ predicted", *names])
        for name, row in zip(names, report.confusion, strict=True):
            yield "\t".join([name, *(f"{n:,}" for n in row)])
        return
    wrong = [
        (n, names[i], names[j]) for i, row in enumerate(report.confusion) for j, n in enumerate(row) if n and i != j
    ]
    yield "most frequent confusions:"
    yield "texts\tlabel\tpredicted"
    for n, label, predicted in sorted(wrong, key=lambda each: -each[0])[:MOST_COLUMNS]:
        yield f"{n:,}\t{label}\t{predicted}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def novelty(
    run: RunFolder,
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Text files, or output of `generate --jsonl`. Default: standard input.", metavar="FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """Measure how much of a text is copied from the training text.

    Reports the longest copied passage of each text, and the share of its word n-grams that are new.
    """
    from penwright.workflows.novelty import novelty

    texts = [text for path in files or ["-"] for text in _texts(read_text(path))]
    if not any(text.strip() for text in texts):
        raise PenwrightError(
            "there is no text to measure. Name a file that contains text, or pipe text to standard input"
        )
    report = novelty(run, texts)
    if json:
        print_json(asdict(report))
        return
    for line in novelty_lines(report):
        print(line)


def _texts(content: str) -> list[str]:
    """Return the "text" field of each line if every line is a JSON object with this field, else the whole content."""
    try:
        return [json_format.loads(line)["text"] for line in content.split("\n") if line.strip()]
    except (ValueError, TypeError, KeyError):
        return [content]


def novelty_lines(report: "NoveltyReport") -> "Iterator[str]":
    """Yield the lines of the report: the longest passage copied in each text, and a comparison with held-out text."""
    held_out_longest = max((_length(novelty) for novelty in report.held_out), default=0)
    for number, novelty in enumerate(report.texts, start=1):
        run = novelty.longest
        if run is None:
            yield f"{number}: no passage of 8 bytes or more is copied"
            continue
        passage = run.text if len(run.text) <= SHOWN else f"{run.text[:SHOWN]}..."
        remark = (
            ", longer than any passage that the held-out text shares with the training text"
            if _length(novelty) > held_out_longest
            else ""
        )
        yield (
            f"{number}: copies {len(run.text)} characters ({count(run.n_words, 'word')}) in a row "
            f"from {run.document}, line {run.line}{remark}: {json_format.dumps(passage, ensure_ascii=False)}"
        )
    lengths = sorted({n for novelty in report.texts for n in novelty.new})
    rows = [
        ("these texts", report.texts),
        (f"held-out text ({count(len(report.held_out), 'passage')})", report.held_out),
    ]
    width = max(len(name) for name, _ in rows)
    header = "".join(f"{f'n={n}':>6}" for n in lengths)
    yield f"{'new word n-grams, %':{width}}  {header}    longest copied passage, characters"
    for name, measured in rows:
        shares = "".join(f"{_share(measured, n):>6}" for n in lengths)
        copied = [_length(novelty) for novelty in measured]
        yield f"{name:{width}}  {shares}    median {median(copied or [0]):.0f}, maximum {max(copied, default=0)}"


def _length(novelty: "Novelty") -> int:
    return len(novelty.longest.text) if novelty.longest else 0


def _share(measured: "Sequence[Novelty]", n: int) -> str:
    values = [novelty.new[n] for novelty in measured if n in novelty.new]
    return f"{100 * mean(values):.0f}" if values else "-"
