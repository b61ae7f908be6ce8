"""Labelled texts: tables with a text and a label in each row, or folders with a subfolder for each label."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote

import numpy as np

from penwright.data.class_folders import class_source
from penwright.data.cleaning import Cleaning, Rule
from penwright.data.columns import labelled_columns, names_in
from penwright.data.corpus import (
    DEFAULT_READING,
    Broken,
    Columns,
    Corpus,
    LabelKind,
    Labelled,
    ReadingOptions,
)
from penwright.data.files import examine_text
from penwright.data.labels import (
    count_labels,
    find_separator,
    kind_of_labels,
    label_cleaning_remark,
    notes_on_labels,
    with_tidy_labels,
)
from penwright.data.one_hot import OneHotTable
from penwright.data.paths import expand_archives, is_folder
from penwright.data.readers.archives import archive_of
from penwright.data.readers.bilingual import holds_pairs
from penwright.data.readers.delimited import PREFIX, LabelledLines, labelled_lines
from penwright.data.readers.formats import FORMATS
from penwright.data.readers.hub import is_hub, open_hub
from penwright.data.readers.layout import is_known_header
from penwright.data.readers.tables import Table, delimited_table, find_table, select
from penwright.data.rows import (
    RowKind,
    Rows,
    RowSource,
    common_rules,
    first_side_leaks,
    open_evaluation_rows,
    open_rows,
)
from penwright.data.scores import comma_in
from penwright.data.splits import DEFAULT_FRACTION, Hashes, Mask, groups_to_split, held_out_groups, held_out_of_classes
from penwright.errors import PenwrightError
from penwright.text import count

MOST_HELD_OUT = 2000  # maximum number of held-out rows, unless the settings give a share
MOST_LABELS = 1000  # maximum number of different labels
MOST_LABELS_PER_TEXT = 0.5  # maximum number of different labels per text, if the settings name the label column
FEWEST_LINES = 2  # minimum number of lines in a file of labelled lines


def open_labelled(paths: Sequence[str | Path], reading: ReadingOptions = DEFAULT_READING) -> Corpus[Labelled]:
    """Open labelled texts for training. No held-out text occurs in the training set."""
    corpus = _with_label_values(open_rows(LABELLED, paths, reading))
    if corpus.label_kind and corpus.label_kind.problem_type == "regression":
        name = corpus.roles["label"][0][0] if "label" in corpus.roles else "score"
        if len({float(value) for value in corpus.label_values}) < 2:
            only = f"all texts have the score {corpus.label_values[0]}"
            raise PenwrightError(
                f"{corpus.files[0].path}: {only}, so there is nothing to learn. Choose another score column"
            )
        return replace(corpus, label_counts={name: len(corpus.training)})
    held_out = {label for example in corpus.held_out for label in example.labels}
    counts = count_labels(corpus, held_out)
    report = replace(corpus.report, notes=(*corpus.report.notes, *notes_on_labels(counts, held_out)))
    return replace(corpus, report=report, label_counts=counts)


def open_evaluation_labelled(
    paths: Sequence[str | Path], reading: ReadingOptions = DEFAULT_READING
) -> Corpus[Labelled]:
    """Open labelled texts for evaluation. Only blank and unreadable texts are dropped."""
    without_groups = replace(reading, columns=replace(reading.columns, group=None))
    return _with_label_values(open_evaluation_rows(LABELLED, paths, without_groups))


def _with_label_values(corpus: Corpus[Labelled]) -> Corpus[Labelled]:
    """Return the corpus with its distinct labels in `label_values`; unchanged if each text has one class."""
    if corpus.label_kind in (None, LabelKind()):
        return corpus
    values = {example.label for part in (corpus.training, corpus.held_out) for example in part}
    return replace(corpus, label_values=tuple(sorted(values)))


def _sources(paths: Sequence[str], reading: ReadingOptions) -> list[RowSource]:
    """Return the sources of these paths: tables, or folders with a subfolder for each class."""
    return [
        class_source(path, reading) if is_folder(path) else _from_table(_open(path, reading), reading.columns)
        for path in expand_archives(paths)
    ]


def _open(path: str, reading: ReadingOptions) -> Table:
    """Open a file or a Hub data set as a table with labels. Raises PenwrightError if it has no labels."""
    if is_hub(path):
        return open_hub(path)
    file, names = examine_text(path, reading.encoding), names_in(reading.columns)
    if holds_pairs(file):
        raise PenwrightError(
            f"{path} is {FORMATS[file.format].description}, without labels; pass a table of texts and labels"
        )
    table = find_table(file, names) or labelled_lines(file, FEWEST_LINES) or delimited_table(file, "\t", names)
    if isinstance(table, LabelledLines) and is_known_header(file.first_lines(1)[0].split(",")):
        table = replace(table, n_skipped=1)
    if len(table.columns) < 2:
        archive = archive_of(path)
        unpack = f". If each folder in {archive} is a class, unpack it and pass the folder" if archive else ""
        raise PenwrightError(
            f"{path} has no labels: pass a table with a text and a label in each row (.csv, .tsv, .jsonl), "
            f"a folder with a subfolder for each label, or lines such as 'label<TAB>text' or '{PREFIX}good text'"
            f"{unpack}"
        )
    return table


def _from_table(table: Table, columns: Columns) -> RowSource:
    """Return the rows of a table as labelled texts."""
    chosen = labelled_columns(table, columns)
    texts, labels = chosen.indices["text"], chosen.indices["label"]
    one_hot = OneHotTable.of(table, labels, chosen.profiles) if len(labels) > 1 else None
    are_pairs = len(texts) == 2 and columns.text_pairs is not False
    if columns.text_pairs and not are_pairs:
        raise PenwrightError(
            f"{table.name}: this model expects pairs of texts. Name their columns: --columns FIRST,SECOND"
        )
    names = (" | " if are_pairs else " + ").join(table.columns[text] for text in texts)
    if one_hot is None:
        label, shown, values = labels[0], f"column {table.columns[labels[0]]}", chosen.profiles[labels[0]].values
    else:
        label, shown, values = len(table.columns), f"columns {', '.join(one_hot.names)}", frozenset(one_hot.names)
    choice = f"text = column {names}, label = {shown}"
    if columns.label_names:
        names_of_labels = (f"{old} is {new or 'no label'}" for old, new in columns.label_names.items())
        choice += f" ({', '.join(names_of_labels)})"
    kind = _kind(table.name, values, columns) if one_hot is None else _kind_of_one_hot(one_hot, columns)
    choice += {"multi_label_classification": ", several labels", "regression": ", a number"}.get(kind.problem_type, "")
    comma = comma_in(table, values) if kind.problem_type == "regression" else ""
    choice += " with a decimal comma" if comma == "decimal" else ""
    choice += f" separated by {kind.separator}" if kind.separator else ""
    columns, unused = replace(columns, label_kind=kind, text_pairs=are_pairs), set(columns.label_names)
    read = partial(with_tidy_labels, one_hot or table, texts, label, columns, comma=comma, unused=unused)
    why = f"{table.name}: {table.form}" if isinstance(table, LabelledLines) else chosen.remark
    remark = "\n".join(filter(None, [why, label_cleaning_remark(table.name, values)]))
    groups = None
    if group_columns := chosen.indices.get("group"):
        choice += f", group = column {table.columns[group_columns[0]]}"
        groups = partial(_groups, table, group_columns[0])
    return RowSource(
        table.files,
        read,
        table.location,
        choice,
        remark=remark,
        roles=chosen.roles(table),
        label_kind=kind,
        text_pairs=are_pairs,
        groups=groups,
        unused_names=unused,
    )


def _kind_of_one_hot(table: OneHotTable, columns: Columns) -> LabelKind:
    """Return the kind of labels in several columns of 0 and 1. Raises PenwrightError if the settings want a number."""
    kind = columns.label_kind or table.kind()
    if kind.problem_type == "regression":
        raise PenwrightError(f"{table.name}: a score needs one column, not several. Name it: --set data.label=NAME")
    return kind._replace(separator=None)


def _kind(table: str, values: Collection[str], columns: Columns) -> LabelKind:
    """Return the kind of labels that the settings specify or, failing that, the kind detected from the values."""
    kind = columns.label_kind
    if kind is None:
        return kind_of_labels(table, values, is_named=columns.label is not None)
    if kind == LabelKind("multi_label_classification"):
        return kind._replace(separator=find_separator([value for value in values if not value.startswith("[")]))
    return kind


def _groups(table: Table, column: int) -> Iterator[str]:
    """Yield the group of every row, or "" for a row without one."""
    return ("" if isinstance(row, Broken) else row[0] for row in select(table, (column,), column))


def _rules(rows: Rows, cleaning: Cleaning) -> list[Rule]:
    """Return the rules that drop labelled texts. Blank texts and missing labels are counted separately."""
    missing: Rule = ("the label is missing", lambda _: (rows.second_sizes == 0) & (rows.broken == 0))
    blank: Rule = ("the text is blank", lambda _: (rows.first_sizes == 0) & (rows.broken == 0))
    return [missing, blank, *common_rules(rows, cleaning)]


def _check_rows(rows: Rows, keep: Mask, reading: ReadingOptions) -> list[str]:
    """Check the number of labels. Return notes on texts with different labels, and on labels that no text has."""
    if rows.label_kind and rows.label_kind.problem_type == "single_label_classification":
        _check_number_of_labels(rows, keep, is_requested=reading.columns.label is not None)
    n_texts, n_rows = len(np.unique(rows.first_hashes[keep])), len(np.unique(rows.hashes[keep]))
    doubtful = [f"{count(n_rows - n_texts, 'text')} with more than one label"] if n_rows > n_texts else []
    unused = set.intersection(*(set(source.unused_names) for source in rows.each))
    where = "no text of the training files has the label"
    return [*doubtful, *(f"data.label_names: {where} '{name}'" for name in sorted(unused))]


def _check_number_of_labels(rows: Rows, keep: Mask, *, is_requested: bool) -> None:
    """Raise PenwrightError if there are more than MOST_LABELS labels.

    If the settings name the label column (`is_requested`), MOST_LABELS_PER_TEXT allows more labels in large corpora.
    """
    n_labels, n_rows = len(np.unique(rows.second_hashes[keep])), int(keep.sum())
    if n_labels <= MOST_LABELS or (is_requested and n_labels <= n_rows * MOST_LABELS_PER_TEXT):
        return
    _, label = next(rows.read(keep))
    advice = (
        "A class can be learned only from several texts"
        if is_requested
        else f"If the label column is right, confirm it: --set {_label_setting(rows)}; if not, choose a different one"
    )
    raise PenwrightError(
        f"{rows.files[0].path}: {n_labels:,} different labels, such as '{label[:40]}', are too many "
        f"for {count(n_rows, 'text')}. {advice}"
    )


def _label_setting(rows: Rows) -> str:
    """Return the setting that names the detected label column."""
    chosen = rows.roles.get("label", ())
    return quote(f"data.label={chosen[0][0]}") if chosen else "data.label=..."


def _hold_out(rows: Rows, keep: Mask, reading: ReadingOptions) -> Mask:
    """Choose the rows to hold out: the same share of each class."""
    kept, fraction = int(keep.sum()), reading.held_out
    n_held_out = kept * fraction if fraction is not None else min(kept * DEFAULT_FRACTION, MOST_HELD_OUT)
    if rows.group_hashes is not None:
        groups = groups_to_split(*rows.group_hashes)
        chosen = held_out_groups(groups, _classes(rows, keep), keep, round(n_held_out), reading.seed)
    else:
        chosen = held_out_of_classes(rows.first_hashes, _classes(rows, keep), keep, round(n_held_out), reading.seed)
    if rows.label_kind and rows.label_kind.problem_type == "multi_label_classification":
        chosen = _without_lost_labels(rows, keep, chosen)
    if not chosen.any():
        raise PenwrightError(
            f"{rows.files[0].path} has {count(kept, 'labelled text')} but no class with two different texts, so none "
            "can be held out; add texts, or pass held-out files to --validation"
        )
    return chosen


def _classes(rows: Rows, keep: Mask) -> Hashes:
    """Return the class of each row: its rarest label, or the same class for all rows if labels are numbers."""
    if not rows.label_kind or rows.label_kind.problem_type == "single_label_classification":
        return rows.second_hashes
    classes = np.zeros_like(rows.second_hashes)
    if rows.label_kind.problem_type == "multi_label_classification":
        sets = [Labelled._make(row).labels or ("",) for row in rows.read(keep)]
        counts = Counter(label for labels in sets for label in labels)
        number = {label: index for index, label in enumerate(counts)}
        classes[keep] = [number[min(labels, key=lambda label: (counts[label], label))] for labels in sets]
    return classes


def _without_lost_labels(rows: Rows, keep: Mask, chosen: Mask) -> Mask:
    """Return the held-out rows, except those with a label that no training row has."""
    known = {label for row in rows.read(keep & ~chosen) for label in Labelled._make(row).labels}
    lost = np.zeros_like(chosen)
    lost[chosen] = [not known.issuperset(Labelled._make(row).labels) for row in rows.read(chosen)]
    together = rows.first_hashes if rows.groups is None else rows.groups
    return chosen & ~np.isin(together, together[lost])


LABELLED = RowKind(
    name="labelled, each class alike",
    unit="labelled text",
    chosen_by="the texts",
    sources=_sources,
    rules=_rules,
    check=_check_rows,
    hold_out=_hold_out,
    leak_rule=partial(first_side_leaks, "text"),
    example=Labelled._make,
    sides=slice(0, 1),
)
