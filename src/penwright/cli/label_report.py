"""The report on a classifier's labels, as tab-separated lines."""

import shlex
from collections.abc import Iterator, Sequence

from penwright.evaluation.label_report import LabelReport, Mistake

MOST_LABELS, MOST_COLUMNS = 50, 12  # maximum number of rows in the score table, and of columns in the confusion matrix
LONGEST = 80  # maximum number of characters of a text to print


def report_lines(report: LabelReport) -> Iterator[str]:
    """Yield the scores of each label, the confusion matrix and the worst mistakes."""
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
        yield f"best threshold: --positive {shlex.quote(best.label)} --threshold {best.threshold:.3f} ({scores})"
    if report.mistakes:
        yield from ("", "worst mistakes:", *mistake_lines(report.mistakes))


def mistake_lines(mistakes: Sequence[Mistake]) -> Iterator[str]:
    """Yield a line for each mistake, below a header."""
    yield "probability\tpredicted\tlabel\ttext"
    for mistake in mistakes:
        text = " ".join(mistake.text.split())
        text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
        yield f"{mistake.probability:.3f}\t{mistake.predicted}\t{mistake.label}\t{text}"


def _confusion(report: LabelReport) -> Iterator[str]:
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
