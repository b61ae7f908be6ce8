"""Which task a person's files are meant for, told from their names and looks."""

from collections.abc import Sequence
from pathlib import Path

from penwright.data.columns import label_column, named_label_column, named_pair
from penwright.data.files import SourceFile, examine_text
from penwright.data.headers import LANGUAGE_NAMES
from penwright.data.paths import TEXT_SUFFIXES, is_collection, is_folder, is_pattern, suffix_of, unzipped
from penwright.data.readers.archives import is_archive
from penwright.data.readers.bilingual import holds_pairs, holds_segments
from penwright.data.readers.classes import classes_hint
from penwright.data.readers.formats import FORMATS
from penwright.data.readers.hub import is_hub, open_hub
from penwright.data.readers.tables import Table, names_text, sample_of, table_in
from penwright.errors import PenwrightError


def detect_task(paths: Sequence[str | Path], *, encoding: str | None = None) -> tuple[str, str]:
    """`generate`, `translate` or `classify`, and why, in a sentence; the first file speaks for all tables."""
    if not paths:
        raise PenwrightError("no files were given to learn from")
    first, *others = _single_files([str(path) for path in paths])
    if is_hub(first):
        return _task_of_table(open_hub(first))
    if is_folder(first):
        hint = classes_hint(first)
        return "generate", f"{first} is a folder, whose files are read as running text{hint}"
    if is_archive(first):
        return "generate", f"{first} is an archive of texts, which are read as running text"
    if is_pattern(first):
        return "generate", f"{first} is a pattern, and the files that it fits are read as running text"
    return _task_of_file(examine_text(first, encoding), others, encoding)


def _single_files(paths: list[str]) -> list[str]:
    """Put the files in an archive in its place, if they are so few that they may be a table or a pair of texts."""
    files = unzipped(paths)
    return files if len(files) <= max(2, len(paths)) else paths


def _task_of_file(first: SourceFile, others: Sequence[str], encoding: str | None) -> tuple[str, str]:
    if holds_pairs(first):
        return "translate", f"{first.path} is {FORMATS[first.format].what}"
    table = table_in(first)
    if table:
        return _task_of_table(table)
    if not others:
        return "generate", f"{first.path} is running text"
    return _task_of_files(first, others, encoding)


def _task_of_files(first: SourceFile, others: Sequence[str], encoding: str | None) -> tuple[str, str]:
    """Translation for two aligned files: a.en and a.de, or en.txt and de.txt; others must have as many lines."""
    if holds_segments(first) and not is_collection(others[0]):
        second = examine_text(others[0], encoding)
        if second.format == first.format and first.n_lines == second.n_lines:
            return "translate", f"{first.path} and {second.path} have the same number of segments, {first.n_lines:,}"
    endings = suffix_of(first.path), suffix_of(others[0])
    stems = [Path(name).name.split(".")[0].lower().replace("_", "-") for name in (first.path, others[0])]
    unlike = endings[0] != endings[1] and not {*endings} & {*TEXT_SUFFIXES, ""}
    named = unlike and stems[0] == stems[1] and all(ending[1:] in LANGUAGE_NAMES for ending in endings)
    languages = stems[0] != stems[1] and all(stem.split("-")[-1] in LANGUAGE_NAMES for stem in stems)
    if (unlike or languages) and Path(others[0]).is_file():
        second = examine_text(others[0], encoding)
        if first.n_lines == second.n_lines:
            return "translate", f"{first.path} and {second.path} have the same number of lines, {first.n_lines:,}"
        if named:  # that they do not fit together is said where they are read
            return "translate", f"{first.path} and {second.path} are named as one text in two languages"
    return "generate", f"{first.path} and the others are running text"


def _task_of_table(table: Table) -> tuple[str, str]:
    if len(table.columns) < 2:
        return "generate", f"{table.name} has one column, of running text"
    named = named_label_column(table)
    if named is not None:
        return "classify", f"{table.name} has a column '{table.columns[named]}'"
    pair = named_pair(table)
    if pair is not None:
        return "translate", f"{table.name} has the columns '{table.columns[pair[0]]}' and '{table.columns[pair[1]]}'"
    if len(table.columns) > 2 and names_text(table):
        return "generate", f"{table.name} has rows of text, and neither labels nor translations by name"
    label = label_column(table, sample_of(table))
    if label is not None:
        return "classify", f"column {table.columns[label]} of {table.name} has few different short values"
    return "translate", f"{table.name} has two columns of text"
