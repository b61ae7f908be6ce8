"""Labelled texts: tables with a text and a label in each row, or folders with a subfolder for each label."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote

import numpy as np

from penwright.data.columns import labelled_columns, names_in
from penwright.data.corpus import DEFAULT_READING, Broken, Columns, Corpus, CorpusPart, Labelled, ReadingOptions, Rule
from penwright.data.files import SourceFile, examine, examine_text
from penwright.data.labels import (
    count_labels,
    label_cleaning_remark,
    notes_on_labels,
    require_single_labels,
    single_label,
)
from penwright.data.paths import TEXT_SUFFIXES, expand_archives, is_folder, suffix_of, visible_files
from penwright.data.readers.bilingual import holds_pairs
from penwright.data.readers.delimited import PREFIX, LabelledLines, labelled_lines
from penwright.data.readers.formats import FORMATS
from penwright.data.readers.hub import is_hub, open_hub
from penwright.data.readers.tables import Table, delimited_table, has_tabs, is_table_file, open_table, select
from penwright.data.report import count
from penwright.data.rows import (
    RowKind,
    Rows,
    RowSource,
    TwoSides,
    common_rules,
    group_hashes,
    open_evaluation_rows,
    open_rows,
)
from penwright.data.splits import DEFAULT_FRACTION, Mask, held_out_groups, held_out_of_classes
from penwright.errors import PenwrightError

MOST_HELD_OUT = 2000  # maximum number of held-out rows, unless the settings give a share
MOST_LABELS = 1000  # maximum number of different labels
MOST_LABELS_PER_TEXT = 0.5  # maximum ratio of labels to texts in a large corpus whose label column is set
FEWEST_LINES = 2  # minimum number of lines in a file of labelled lines
SPLITS = {"train", "training", "test", "testing", "dev", "valid", "val", "validation", "eval"}
UNLABELLED = ("unsup", "unlabeled", "unlabelled")
TRAINING = ("train", "training")
CLASSES = {  # common names of class folders
    *("pos", "neg", "neu", "positive", "negative", "neutral", "mixed", "good", "bad", "spam", "ham"),
    *("true", "false", "real", "fake", "yes", "no", "0", "1", "2", "3", "4", "5", "human", "machine", "ai"),
}


def open_labelled(paths: Sequence[str | Path], reading: ReadingOptions = DEFAULT_READING) -> Corpus[Labelled]:
    """Open labelled texts for training. No held-out text occurs in the training part."""
    corpus = open_rows(LABELLED, paths, reading)
    held_out = {example.label for example in corpus.held_out}
    counts = count_labels(corpus, held_out)
    report = replace(corpus.report, notes=(*corpus.report.notes, *notes_on_labels(counts, held_out)))
    return replace(corpus, report=report, label_counts=counts)


def open_evaluation_labelled(
    paths: Sequence[str | Path], reading: ReadingOptions = DEFAULT_READING
) -> Corpus[Labelled]:
    """Open labelled texts for evaluation. Only blank and unreadable texts are dropped."""
    without_groups = replace(reading, columns=replace(reading.columns, group=None))
    return open_evaluation_rows(LABELLED, paths, without_groups)


def _sources(paths: Sequence[str], reading: ReadingOptions) -> list[RowSource]:
    """Return the sources of these paths: tables, or folders with a subfolder for each class."""
    return [
        _from_folder(path, reading) if is_folder(path) else _from_table(_open(path, reading), reading.columns)
        for path in expand_archives(paths)
    ]


def _from_folder(folder: str, reading: ReadingOptions) -> RowSource:
    """Return the files of a folder as texts, labelled with their subfolders."""
    if reading.columns.group is not None:
        raise PenwrightError(f"{folder} has no group column. Pass a table that has one, or leave out data.group")
    found, remark = class_files(folder, reading.encoding)
    files = [(reading.columns.label_names.get(name, name), file) for name, file in found]
    choice = "each folder is a class, each file a text"
    every = tuple(file for _, file in files)
    return RowSource(every, partial(class_rows, files), lambda number: every[number].path, choice, remark=remark)


def _open(path: str, reading: ReadingOptions) -> Table:
    """Open a file or a Hub data set as a table with labels. Raises PenwrightError if it has no labels."""
    if is_hub(path):
        return open_hub(path)
    file, names = examine_text(path, reading.encoding), names_in(reading.columns)
    if holds_pairs(file):
        raise PenwrightError(
            f"{path} is {FORMATS[file.format].description}, without labels; pass a table of texts and labels"
        )
    if is_table_file(file):
        return open_table(file, names)
    lines = None if has_tabs(file) else labelled_lines(file, FEWEST_LINES)
    table: Table = lines or delimited_table(file, "\t", names)
    if len(table.columns) < 2:
        raise PenwrightError(
            f"{path} has no labels: pass a table with a text and a label in each row (.csv, .tsv, .jsonl), "
            f"a folder with a subfolder for each label, or lines such as 'label<TAB>text' or '{PREFIX}good text'"
        )
    return table


def _from_table(table: Table, columns: Columns) -> RowSource:
    """Return the rows of a table as labelled texts."""
    chosen = labelled_columns(table, columns)
    texts, (label,) = chosen.places["text"], chosen.places["label"]
    names = " + ".join(table.columns[text] for text in texts)
    choice = f"text = column {names}, label = column {table.columns[label]}"
    if columns.label_names:
        choice += f" ({', '.join(f'{old} is {new}' for old, new in columns.label_names.items())})"
    values = chosen.profiles[label].values
    if columns.label is None:
        require_single_labels(table.name, values)
    read = partial(_with_tidy_labels, table, texts, label, columns.label_names)
    why = f"{table.name}: {table.form}" if isinstance(table, LabelledLines) else chosen.remark
    remark = "\n".join(filter(None, [why, label_cleaning_remark(table.name, values)]))
    groups = None
    if place := chosen.places.get("group"):
        choice += f", group = column {table.columns[place[0]]}"
        groups = partial(_groups, table, place[0])
    return RowSource(table.files, read, table.place, choice, remark=remark, roles=chosen.roles(table), groups=groups)


def _groups(table: Table, column: int) -> Iterator[str]:
    """Yield the group of every row, or "" for a row without one."""
    return ("" if isinstance(row, Broken) else row[0] for row in select(table, (column,), column))


def _with_tidy_labels(
    table: Table, texts: Sequence[int], label: int, names: Mapping[str, str]
) -> Iterator[TwoSides | Broken]:
    """Yield the text and the label of every row, with labels tidied and renamed as the settings say."""
    tidy: dict[str, str] = {}
    for number, row in enumerate(select(table, texts, label)):
        if isinstance(row, Broken):
            yield row
            continue
        text, found = row
        if found not in tidy:
            single = single_label(found, table.place(number))
            tidy[found] = names.get(found) or names.get(single, single)
        yield text, tidy[found]


def _check_rows(rows: Rows, keep: Mask, reading: ReadingOptions) -> list[str]:
    """Check the number of labels. Return a note if some texts have several labels."""
    _check_number_of_labels(rows, keep, is_requested=reading.columns.label is not None)
    n_texts, n_rows = len(np.unique(rows.first_hashes[keep])), len(np.unique(rows.hashes[keep]))
    return [f"{count(n_rows - n_texts, 'text')} with more than one label"] if n_rows > n_texts else []


def _check_number_of_labels(rows: Rows, keep: Mask, *, is_requested: bool) -> None:
    """Raise PenwrightError if there are more than MOST_LABELS labels.

    If the settings name the label column (`is_requested`), MOST_LABELS_PER_TEXT allows more labels in large corpora.
    """
    n_labels, n_rows = len(np.unique(rows.second_hashes[keep])), int(keep.sum())
    if n_labels <= MOST_LABELS or (is_requested and n_labels <= n_rows * MOST_LABELS_PER_TEXT):
        return
    _, label = next(rows.read(keep))
    advice = (
        "Each class needs several texts to learn from"
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
    wanted = kept * fraction if fraction is not None else min(kept * DEFAULT_FRACTION, MOST_HELD_OUT)
    if any(source.groups for source in rows.each):
        return held_out_groups(group_hashes(rows), rows.second_hashes, keep, round(wanted), reading.seed)
    chosen = held_out_of_classes(rows.first_hashes, rows.second_hashes, keep, round(wanted), reading.seed)
    if not chosen.any():
        raise PenwrightError(
            f"{rows.files[0].path} has {count(kept, 'labelled text')} but no class with two different texts, so none "
            "can be held out; add texts, or pass held-out files to --validation"
        )
    return chosen


def _leak_rule(rows: Rows, where: Rows, chosen: Mask) -> Rule:
    """Return the rule that drops training rows with a held-out text."""
    return "text is also held out", lambda _: np.isin(rows.first_hashes, where.first_hashes[chosen])


def _part(rows: Rows, chosen: Mask) -> CorpusPart[Labelled]:
    """Return the chosen rows as a part of a corpus."""

    def read() -> Iterator[Labelled]:
        return map(Labelled._make, rows.read(chosen))

    n_characters, n_bytes = int(rows.first_sizes[chosen].sum()), int(rows.first_bytes[chosen].sum())
    return CorpusPart(read, int(chosen.sum()), n_characters, n_bytes)


def class_folders(folder: str | Path) -> tuple[dict[str, list[Path]], str]:
    """Return the text files of each class by name, and a remark on files that are not read.

    If the folder contains `train` and `test`, only `train` is read. Raises PenwrightError for fewer than two classes.
    """
    folder, remarks = Path(folder), []
    inner = _subfolders(folder)
    names = {each.name.lower() for each in inner}
    training = next((each for each in inner if each.name.lower() in TRAINING), None)
    if training and names <= SPLITS:
        others = [str(each) for each in inner if each != training]
        if others:
            remarks.append(f"not read: {', '.join(others)} (for evaluation, use --validation or `penwright evaluate`)")
        folder, inner = training, _subfolders(training)
    unlabelled = [each for each in inner if each.name.lower() in UNLABELLED]
    remarks += [f"not read: {each} (no labels)" for each in unlabelled]
    found = {each.name: _text_files(each) for each in inner if each not in unlabelled}
    classes = {name: files for name, files in found.items() if files}
    if len(classes) < 2:
        raise PenwrightError(
            f"{folder} does not contain two class folders with texts (found: {', '.join(classes) or 'none'}). Put the "
            "texts of each class into a folder with its name, or pass a table with a text and a label in each row"
        )
    apart = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")]
    if apart:
        remarks.append(f"not read: {count(len(apart), 'file')} in {folder} outside the class folders")
    return classes, "; ".join(remarks)


def classes_in(folder: str | Path) -> tuple[list[str], bool]:
    """Return the subfolders that may be classes, and whether all of them have common class names.

    The list is empty if the folder itself contains text files.
    """
    folder = Path(folder)
    try:
        has_own_texts = any(suffix_of(file) in TEXT_SUFFIXES for file in folder.iterdir() if file.is_file())
        classes = [] if has_own_texts else list(class_folders(folder)[0])
    except (PenwrightError, OSError):  # not a folder, or a folder without classes
        return [], False
    return classes, bool(classes) and {name.lower() for name in classes} <= CLASSES


def class_rows(files: Sequence[tuple[str, SourceFile]]) -> Iterator[tuple[str, str]]:
    """Yield each file's text with its class."""
    return (("".join(file.blocks()).strip(), name) for name, file in files)


def class_files(folder: str | Path, encoding: str | None) -> tuple[list[tuple[str, SourceFile]], str]:
    """Examine the files of all classes. Return each with its class, and a remark on unreadable files."""
    classes, remark = class_folders(folder)
    files, remarks = [], [remark] if remark else []
    for name, paths in classes.items():
        for path in paths:
            try:
                files.append((name, examine(path, encoding)))
            except PenwrightError as error:
                remarks.append(f"not read: {error}")
    return files, "; ".join(remarks)


def _subfolders(folder: Path) -> list[Path]:
    above = {folder.resolve(), *folder.resolve().parents}  # a link may lead to one of these folders
    inner = (each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    return sorted(each for each in inner if each.resolve() not in above)


def _text_files(folder: Path) -> list[Path]:
    return sorted(file for file in visible_files(folder) if suffix_of(file) in TEXT_SUFFIXES)


LABELLED = RowKind(
    name="labelled, each class alike",
    unit="labelled text",
    chosen_by="the texts",
    sources=_sources,
    rules=common_rules,
    check=_check_rows,
    hold_out=_hold_out,
    leak_rule=_leak_rule,
    part=_part,
)
