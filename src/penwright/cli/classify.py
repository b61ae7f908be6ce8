"""The `penwright classify` command: label texts, or the rows of a table."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penwright.cli.options import Device, Json, RunFolder, Texts, given_texts, print_json, refuse_unused, warn
from penwright.cli.user_table import UserTable
from penwright.errors import UsageError
from penwright.text import significant

if TYPE_CHECKING:
    from penwright.classification.classifier import Classification

BETWEEN_LABELS = "|"  # separator of the labels of a text, and of their probabilities
NEW = ("labels", "score")  # fields of the JSON output that only some models have

Threshold = Annotated[
    float | None,
    typer.Option(
        help="Give no label to a text whose best label has a probability below P. If a text can have several "
        "labels, give it every label with at least this probability.",
        metavar="P",
        min=0,
        max=1,
    ),
]
PositiveLabel = Annotated[
    str | None,
    typer.Option(
        help="Predict LABEL if its probability is at least --threshold (default 0.5); otherwise, predict the most "
        "likely other label. `penwright evaluate` prints the best threshold.",
        metavar="LABEL",
    ),
]
TextColumns = Annotated[
    list[str] | None,
    typer.Option(
        help="With --csv: name or number of the text column. Repeatable. Default: as in training.", metavar="COLUMN"
    ),
]


def command(
    run: RunFolder,
    texts: Texts = None,
    top: Annotated[int, typer.Option(help="Print the K most likely labels of each text.", metavar="K", min=1)] = 1,
    threshold: Threshold = None,
    positive: PositiveLabel = None,
    csv: Annotated[
        str | None,
        typer.Option(
            help="Classify the rows of this table or spreadsheet (- for standard input), and print it with the "
            "predictions as new columns."
        ),
    ] = None,
    text: TextColumns = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Classify texts, lines of standard input, or table rows. Separate the two texts of a pair with a tab.

    Prints one line per text: label, probability and text, separated by tabs. Blank texts get no label. If a text can
    have several labels, the labels and the probabilities are separated by |. A regression model prints only a number
    and the text.
    """
    from penwright.workflows.load import load_classifier

    if csv is not None:
        refuse_unused({"TEXT": texts, "--json": json}, "with --csv, which classifies and prints a table")
        _classify_table(run, csv, text or [], _Choice(top, threshold, positive), device)
        return
    refuse_unused({"--text": text}, "without --csv")
    classifier, choice = load_classifier(run, device), _Choice(top, threshold, positive)
    choice.check(classifier.labels, classifier.problem)
    sources = given_texts(texts)
    results = [choice.limited(each) for each in classifier.classify(sources)]
    for number, (source, result) in enumerate(zip(sources, results, strict=True), start=1):
        if json:
            record = {name: value for name, value in asdict(result).items() if name not in NEW or value is not None}
            print_json({"text": source, **record})
            continue
        for warning in result.warnings:
            warn(f"text {number}: {warning}" if len(sources) > 1 else warning)
        print("\t".join([*_cells(result, choice, classifier.problem), source]))


class _Choice(NamedTuple):
    """The options that decide which label a text gets and how many labels are printed."""

    top: int
    threshold: float | None
    positive: str | None

    def check(self, labels: Sequence[str], problem: str) -> None:
        """Raise UsageError if --positive is not a label, or another option does not suit the model."""
        used = {"--top": self.top > 1, "--threshold": self.threshold, "--positive": self.positive}
        if problem == "regression":
            refuse_unused(used, "with this model, which gives each text one number")
        if problem == "multi_label_classification":
            refuse_unused({"--positive": self.positive}, "with this model, which gives each text any number of labels")
        if self.positive is not None and self.positive not in labels:
            raise UsageError(f"there is no label '{self.positive}'. The labels are {', '.join(labels[:20])}")

    def limited(self, result: "Classification") -> "Classification":
        """Return the classification with only its `top` labels; the one that --positive selects comes first."""
        scores, label = result.scores, result.label
        if result.labels is not None:
            return self._limited_set(result)
        if label is not None and self.positive is not None:
            others = [each for each in scores if each != self.positive]
            is_positive = scores[self.positive] >= (0.5 if self.threshold is None else self.threshold)
            label = self.positive if is_positive or not others else others[0]
            scores = {label: scores[label], **scores}
        elif label is not None and scores[label] < (self.threshold or 0.0):
            label = None
        kept = dict(islice(scores.items(), self.top)) if self.top > 1 else scores
        return replace(result, label=label, scores=kept)

    def _limited_set(self, result: "Classification") -> "Classification":
        """Return the labels with at least the given probability."""
        labels = result.labels or ()
        if self.threshold is not None:
            labels = tuple(label for label, probability in result.scores.items() if probability >= self.threshold)
        kept = [*islice(result.scores, self.top), *labels] if self.top > 1 else result.scores
        scores = {label: probability for label, probability in result.scores.items() if label in kept}
        return replace(result, label=labels[0] if labels else None, labels=labels, scores=scores)


def _classify_table(run: Path, path: str, names: Sequence[str], choice: "_Choice", device: str) -> None:
    """Print the table with new columns: `predicted`, `probability` and, with --top, `predicted_2` and so on.

    A regression model adds only `predicted`.
    """
    from penwright.run.provenance import corpus_record
    from penwright.workflows.load import load_classifier, open_run

    classifier, table = load_classifier(run, device), UserTable.read(path)
    choice.check(classifier.labels, classifier.problem)
    between = "\t" if classifier.reads_pairs else " "
    sources = table.texts(names, corpus_record(open_run(run).run).columns.get("text", ()), between)
    top, results = choice.top, [choice.limited(each) for each in classifier.classify(sources)]
    if n_warned := sum(bool(result.warnings) for result in results):
        first = next(result.warnings[0] for result in results if result.warnings)
        warn(
            f"warnings for {n_warned:,} of {len(results):,} rows: {first}"
            + (" (first warning)" if n_warned > 1 else "")
        )
    suffixes = ["", *(f"_{place}" for place in range(2, top + 1))]
    columns = [f"{name}{suffix}" for suffix in suffixes for name in ("predicted", "probability")]
    columns = columns[:1] if classifier.problem == "regression" else columns
    cells = [_cells(result, choice, classifier.problem) for result in results]
    table.write(columns, [[row[place] for row in cells] for place in range(len(columns))])


def _cells(result: "Classification", choice: _Choice, problem: str) -> list[str]:
    """Return the new cells of a row: the `top` most likely labels with their probabilities; "" for a missing label.

    If `top` is 1, the labels from a multi-label model share one cell, and so do their probabilities.
    """
    top, threshold = choice.top, choice.threshold or 0.0
    if problem == "regression":
        return ["" if result.score is None else significant(result.score)]
    if result.labels is not None and top == 1:
        probabilities = [f"{result.scores[label]:.3f}" for label in result.labels]
        return [BETWEEN_LABELS.join(result.labels), BETWEEN_LABELS.join(probabilities)]
    cells = [(label, f"{probability:.3f}") for label, probability in islice(result.scores.items(), top)]
    if result.labels is not None:
        cells = [(label if result.scores[label] >= threshold else "", probability) for label, probability in cells]
    elif cells and result.label is None:
        cells[0] = ("", cells[0][1])
    cells += [("", "")] * (top - len(cells))
    return [cell for pair in cells for cell in pair]
