"""Sentence pairs: two aligned files, a table with two columns, a TMX file, or a hub data set."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from penwright.data.alignment import aligned, check_alignment
from penwright.data.columns import names_in, pair_columns
from penwright.data.examples import (
    NOTHING_LEFT_OUT,
    STANDARD,
    Cleaning,
    Columns,
    Corpus,
    Pair,
    Part,
    fingerprint_of,
    only_held_out,
)
from penwright.data.files import SourceFile, examine_text
from penwright.data.hub import is_hub, open_hub
from penwright.data.paths import suffix_of
from penwright.data.report import Report, count
from penwright.data.rows import SHORT, Rows, RowSource, Rule, clean, common_rules, measure
from penwright.data.splits import DEFAULT_FRACTION, Mask, held_out_rows
from penwright.data.tables import Table, delimited_table, has_tabs, is_table, open_table, select
from penwright.data.tmx import read_tmx, tmx_languages
from penwright.errors import PenwrightError

MOST_HELD_OUT = 1000  # pairs, unless a fraction is asked for
ALL_COLUMNS = Columns()


def open_pairs(
    paths: Sequence[str | Path],
    *,
    columns: Columns = ALL_COLUMNS,
    validation: Sequence[str | Path] = (),
    held_out: float | None = None,
    seed: int = 0,
    encoding: str | None = None,
    cleaning: Cleaning = STANDARD,
) -> Corpus[Pair]:
    """Pairs to learn translation from; no sentence of the held-out part stands on its side in the training part."""
    rows = measure(pair_sources(paths, columns, encoding))
    keep, dropped = clean(rows, _rules(rows, cleaning))
    if validation:
        where = measure(pair_sources(validation, columns, encoding))
        chosen, _ = clean(where, _rules(where, NOTHING_LEFT_OUT))
        how = "the validation files"
    else:
        where, chosen = rows, _hold_out(rows, keep, held_out, seed)
        how = f"chosen by the hashes of their sources and seed {seed}"
    apart = keep if validation else keep & ~chosen
    training, leaked = clean(rows, [_leak_rule(rows, where, chosen)], apart)
    n_held_out = int(chosen.sum())
    files = rows.files + (where.files if validation else ())
    report = Report(
        unit="pair",
        files=files,
        n_read=len(rows),
        n_kept=int(training.sum()) + (0 if validation else n_held_out),
        dropped=(*dropped, *leaked),
        split=f"held out: {count(n_held_out, 'pair')}, {how}; training: {count(int(training.sum()), 'pair')}",
        notes=(*(source.note for source in rows.sources), *_same_sides(rows, keep)),
    )
    choices = [source.choice for source in rows.sources]
    settings = {"columns": choices, "cleaning": cleaning, "held_out": held_out, "seed": seed}
    fingerprint = fingerprint_of(files, task="pairs", n_own=len(validation), **settings)
    return Corpus(_part(rows, training), _part(where, chosen), files, fingerprint, report)


def measured_pairs(
    paths: Sequence[str | Path], columns: Columns = ALL_COLUMNS, encoding: str | None = None
) -> Corpus[Pair]:
    """Pairs to measure a model on: all of them, as they are, but for those with a blank side."""
    rows = measure(pair_sources(paths, columns, encoding))
    chosen, _ = clean(rows, _rules(rows, NOTHING_LEFT_OUT))
    return only_held_out(_part(rows, chosen), rows.files, "pair")


def pair_sources(paths: Sequence[str | Path], columns: Columns, encoding: str | None) -> list[RowSource]:
    """What the paths hold: each table by itself, other files two by two."""
    if not paths:
        raise PenwrightError("no files were given to learn from")
    sources, plain = [], []
    for path in dict.fromkeys(map(str, paths)):
        if is_hub(path):
            sources.append(_from_table(open_hub(path), columns))
            continue
        file = examine_text(path, encoding)
        if suffix_of(path) == ".tmx":
            sources.append(_from_tmx(file, columns))
        elif is_table(path):
            sources.append(_from_table(open_table(file, names_in(columns)), columns))
        elif has_tabs(file):
            sources.append(_from_table(delimited_table(file, "\t", names_in(columns)), columns))
        else:
            plain.append(file)
    return [*sources, *(_from_lines(first, second, columns) for first, second in _two_by_two(plain))]


def _from_table(table: Table, columns: Columns) -> RowSource:
    source, target = pair_columns(table, columns)
    choice = f"source = column {table.columns[source]}, target = column {table.columns[target]}"
    return RowSource(table.files, partial(select, table, (source,), target), table.place, choice)


def _from_tmx(file: SourceFile, columns: Columns) -> RowSource:
    told = [None if name is None else str(name) for name in (columns.source, columns.target)]
    source, target = tmx_languages(file, *told)
    choice = f"source = {source}, target = {target}"
    return RowSource((file,), partial(read_tmx, file, source, target), lambda i: f"{file.path} unit {i + 1:,}", choice)


def _from_lines(first: SourceFile, second: SourceFile, columns: Columns) -> RowSource:
    check_alignment(first, second)
    if columns.source == suffix_of(second.path)[1:] or columns.target == suffix_of(first.path)[1:]:
        first, second = second, first
    return RowSource(
        (first, second),
        partial(aligned, first, second),
        lambda line: f"{first.path} line {line + 1:,}",
        "source; the file after it: target",
    )


def _two_by_two(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, SourceFile]]:
    """a.en a.de b.en b.de, or a.en b.en a.de b.de."""
    if len(files) == 1:
        raise PenwrightError(
            f"{files[0].path} has no columns: give the file with the translations too (line by line), "
            "or a table (.tsv, .csv, .jsonl, .tmx)"
        )
    if len(files) % 2:
        raise PenwrightError(
            f"{len(files)} files cannot be put together two by two: {', '.join(file.path for file in files)}"
        )
    half = len(files) // 2
    suffixes = [suffix_of(file.path) for file in files]
    if len(set(suffixes)) == 2 and len(set(suffixes[:half])) == len(set(suffixes[half:])) == 1:
        return zip(files[:half], files[half:], strict=True)
    return zip(islice(files, 0, None, 2), islice(files, 1, None, 2), strict=True)


def _rules(rows: Rows, cleaning: Cleaning) -> list[Rule]:
    rules, ratio = common_rules(rows, cleaning), cleaning.max_ratio
    if ratio is None:
        return rules

    def lopsided(_: Mask) -> Mask:
        longer = np.maximum(rows.first_sizes, rows.second_sizes)
        return (longer > SHORT) & (longer > ratio * np.minimum(rows.first_sizes, rows.second_sizes))

    return [*rules, (f"one side more than {ratio:g} times as long as the other", lopsided)]


def _hold_out(rows: Rows, keep: Mask, fraction: float | None, seed: int) -> Mask:
    kept = int(keep.sum())
    if len(np.unique(rows.first_hashes[keep])) < 2:
        raise PenwrightError(
            f"{rows.files[0].path} has {count(kept, 'pair')} of a single source: too little to learn from and to "
            "hold some out; give more, or files of your own as validation"
        )
    wanted = kept * fraction if fraction is not None else min(kept * DEFAULT_FRACTION, MOST_HELD_OUT)
    return held_out_rows(rows.first_hashes, keep, round(wanted), seed)


def _leak_rule(rows: Rows, where: Rows, chosen: Mask) -> Rule:
    def leaks(_: Mask) -> Mask:
        sides = (rows.first_hashes, where.first_hashes), (rows.second_hashes, where.second_hashes)
        found = [np.isin(side, held_out[chosen]) for side, held_out in sides]
        return found[0] | found[1]

    return "source or target also held out", leaks


def _same_sides(rows: Rows, keep: Mask) -> list[str]:
    same = int((keep & (rows.first_hashes == rows.second_hashes)).sum())
    return [f"{count(same, 'pair')} with source and target alike"] if same else []


def _part(rows: Rows, chosen: Mask) -> Part[Pair]:
    def read() -> Iterator[Pair]:
        return map(Pair._make, rows.read(chosen))

    n_characters, n_bytes = int(rows.second_sizes[chosen].sum()), int(rows.second_bytes[chosen].sum())
    return Part(read, int(chosen.sum()), n_characters, n_bytes)
