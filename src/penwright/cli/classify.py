"""The `penwright classify` command: label texts, or the rows of a table."""

import csv
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penwright.cli.options import Device, Json, RunFolder, Texts, given_texts, lines_of, print_json, read_text, warn
from penwright.errors import PenwrightError, UsageError
from penwright.text import significant

if TYPE_CHECKING:
    from penwright.classification.classifier import Classification

DELIMITERS = ",;\t|"
OFFICE = (b"PK", b"\xd0\xcf\x11\xe0")  # first bytes of Office documents, new and old
JSON = re.compile(r'\s*(\[\s*)?\{\s*"')  # start of a JSON object, or of a list of objects
SAVE = "Save the table as .csv, .xlsx or .ods"
SAMPLE = 100  # number of rows to read to decide whether the first row is a header
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
        if texts or json:
            problem = "give texts or --csv, not both" if texts else "--csv prints a table, not JSON. Leave out --json"
            raise UsageError(problem)
        _classify_table(run, csv, text or [], _Choice(top, threshold, positive), device)
        return
    if text:
        raise UsageError("--text names a column of the table of --csv. Give texts without --text")
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
        print("\t".join([*_cells(result, choice), source]))


class _Choice(NamedTuple):
    """The options that decide which label a text gets and how many labels are printed."""

    top: int
    threshold: float | None
    positive: str | None

    def check(self, labels: Sequence[str], problem: str) -> None:
        """Raise UsageError if --positive is not a label, or another option does not suit the model."""
        used = {"--top": self.top > 1, "--threshold": self.threshold, "--positive": self.positive}
        unsuited = {"regression": tuple(used), "multi_label_classification": ("--positive",)}
        for option in unsuited.get(problem, ()):
            if used[option]:
                what = "one number" if problem == "regression" else "any number of labels"
                raise UsageError(f"{option} has no effect: this model gives each text {what}")
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
        kept = dict(islice(result.scores.items(), self.top)) if self.top > 1 else result.scores
        return replace(result, label=labels[0] if labels else None, labels=labels, scores=kept)


def _sheet(path: str) -> list[list[str]] | None:
    """Return the rows of a spreadsheet, or None for plain text. Raises PenwrightError for other binary formats."""
    from penwright.data.files import format_of
    from penwright.data.readers.spreadsheets import read_sheet
    from penwright.data.readers.tables import SHEETS

    if not Path(path).is_file() or not os.access(path, os.R_OK):
        return None  # a pipe, or a problem that read_text() reports
    with Path(path).open("rb") as file:
        head = file.read(4)
    if head == b"PAR1":
        raise PenwrightError(f"{path} is a Parquet file, which --csv does not read. {SAVE}")
    kind = format_of(Path(path), path) if head.startswith(OFFICE) else None
    if kind is not None and kind.name not in SHEETS:
        raise PenwrightError(f"{path} is {kind.description}, not a table. {SAVE}")
    return read_sheet(Path(path), kind.name) if kind else None


def _classify_table(run: Path, path: str, names: Sequence[str], choice: "_Choice", device: str) -> None:
    """Print the table with new columns: `predicted`, `probability` and, with --top, `predicted_2` and so on.

    A regression model adds only `predicted`.
    """
    from penwright.run.folder import Run
    from penwright.run.provenance import corpus_record
    from penwright.workflows.load import load_classifier

    classifier, table = load_classifier(run, device), UserTable.read(path)
    choice.check(classifier.labels, classifier.problem)
    between = "\t" if classifier.reads_pairs else " "
    sources = table.texts(names, corpus_record(Run.open(run)).columns.get("text", ()), between)
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
    cells = [_cells(result, choice) for result in results]
    table.write(columns, [[row[place] for row in cells] for place in range(len(columns))])


def _cells(result: "Classification", choice: _Choice) -> list[str]:
    """Return the new cells of a row: the `top` most likely labels with their probabilities; "" for a missing label.

    If `top` is 1, the labels from a multi-label model share one cell, and so do their probabilities.
    """
    top, threshold = choice.top, choice.threshold or 0.0
    if result.score is not None:
        return [significant(result.score)]
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


class UserTable(NamedTuple):
    """A table with a header."""

    path: str
    header: list[str]
    rows: list[list[str]]
    delimiter: str

    @classmethod
    def read(cls, path: str) -> "UserTable":
        """Read a table (- for standard input), or the first sheet with content of a spreadsheet.

        The delimiter is the one that splits the header into the most cells; for a spreadsheet, it is a comma.
        """
        if path != "-" and (sheet := _sheet(path)) is not None:
            return cls._of(path, sheet, ",", "Name every column in the first row")
        from penwright.data.readers.delimited import Dialect, read_cells
        from penwright.data.readers.layout import find_dialect

        text = read_text(path).removeprefix("\ufeff")
        if JSON.match(text):
            raise PenwrightError(f"{path} is JSON, which --csv does not read. {SAVE}")
        lines = lines_of(text if "\n" in text else text.replace("\r", "\n"))
        widths = {each: len(next(iter(read_cells(lines, Dialect(each, '"'))), [])) for each in DELIMITERS}
        delimiter = max(DELIMITERS, key=lambda each: widths[each])
        every = list(read_cells(lines, find_dialect(lines, delimiter), widths[delimiter]))
        return cls._of(path, every, delimiter, "Put cells that contain the delimiter in quotation marks")

    @classmethod
    def _of(cls, path: str, every: Sequence[list[str]], delimiter: str, advice: str) -> "UserTable":
        """Return a table with these rows, the header first. `advice` says how to mend a row that is too long."""
        from penwright.data.readers.spreadsheets import require_few_cells

        header, *rows = every or [[]]
        require_few_cells(path, len(rows) * len(header))
        if not any(header):
            raise PenwrightError(f"{path} has no header line. Insert a first line that names the columns")
        for number, row in enumerate(rows, start=2):
            if len(row) > len(header):
                raise PenwrightError(
                    f"{path}: row {number} has {len(row)} cells, but the header has {len(header)}. {advice}"
                )
        return cls(path, header, [row + [""] * (len(header) - len(row)) for row in rows], delimiter)

    def texts(self, names: Sequence[str], trained: Sequence[tuple[str, int]], between: str = " ") -> list[str]:
        """Return the text of each row. The cells of several columns are joined by `between`.

        Without column names, the columns that the run was trained on are used. As in training, blank cells are
        skipped, except in pairs.
        """
        from penwright.data.readers.layout import find_header

        columns = [self._column(name) for name in names]
        if not columns and all(name in self.header for name, _ in trained):
            columns = [self.header.index(name) for name, _ in trained]
        if not columns and len(self.header) == 1:
            columns = [0]
            if find_header([self.header, *self.rows[:SAMPLE]], 1) is None:
                warn(f"{self.path}: the first row is read as the name of the column, not as a text: {self.header[0]}")
        if not columns:
            raise UsageError(
                f"which column of {self.path} is the text? Name it with --text. Columns: {', '.join(self.header)}"
            )
        rows = ([row[column].replace(between, " ").strip() for column in columns] for row in self.rows)
        return [between.join(cells if between == "\t" else filter(None, cells)) for cells in rows]

    def _column(self, name: str) -> int:
        """Return the index of a column, given its name or its number from 1."""
        if name in self.header:
            return self.header.index(name)
        if name.isdecimal() and 1 <= int(name) <= len(self.header):
            return int(name) - 1
        raise UsageError(f"{self.path} has no column '{name}'. Columns: {', '.join(self.header)}")

    def write(self, names: Sequence[str], columns: Sequence[Sequence[str]]) -> None:
        """Write the table with the new columns to standard output. If a name is already taken, append a number."""
        header = list(self.header)
        for name in names:
            taken = (f"{name}_{number}" for number in range(2, len(header) + 3))
            header.append(name if name not in header else next(each for each in taken if each not in header))
        writer = csv.writer(sys.stdout, delimiter=self.delimiter, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([*row, *added] for row, *added in zip(self.rows, *columns, strict=True))
