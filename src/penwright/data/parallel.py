"""Sentence pairs from aligned files, tables with two columns, TMX files or Hub data sets."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penwright.data.cleaning import Cleaning, Rule
from penwright.data.columns import names_in, pair_columns
from penwright.data.corpus import DEFAULT_READING, Columns, Corpus, Pair, ReadingOptions
from penwright.data.files import SourceFile, examine_text
from penwright.data.paths import expand_archives, suffix_of
from penwright.data.readers.bilingual import (
    bilingual_languages,
    bilingual_pairs,
    holds_pairs,
    holds_segments,
    segment_pairs,
)
from penwright.data.readers.hub import is_hub, open_hub
from penwright.data.readers.tables import Table, find_table, select
from penwright.data.rows import (
    SHORT,
    RowKind,
    Rows,
    RowSource,
    common_rules,
    hold_out_some,
    open_evaluation_rows,
    open_rows,
)
from penwright.data.splits import Mask
from penwright.errors import PenwrightError
from penwright.languages import languages_between, side_name, side_names
from penwright.text import count

Opener = Callable[[Columns], RowSource]  # function that opens a source with the given columns or languages
MOST_HELD_OUT = 1000  # maximum number of held-out pairs, unless the settings give a share
CONVINCING = 0.6  # report extra lines if skipping them reduces the mismatch of line lengths to below this fraction
SAMPLE = 2000  # number of lines compared to see whether one file is a translation of the other
FEWEST = 20  # minimum number of line pairs for a comparison
ALIKE = 0.4  # minimum correlation between the line lengths of a text and of its translation
MOST_LINES = 5_000_000  # maximum number of lines in a file that is searched for extra lines


def open_pairs(paths: Sequence[str | Path], reading: ReadingOptions = DEFAULT_READING) -> Corpus[Pair]:
    """Open sentence pairs for training. No source or target of a held-out pair is in the training set."""
    return open_rows(PAIRS, paths, reading)


def open_evaluation_pairs(paths: Sequence[str | Path], reading: ReadingOptions = DEFAULT_READING) -> Corpus[Pair]:
    """Open sentence pairs for evaluation. Only unreadable pairs and pairs with a blank side are dropped."""
    return open_evaluation_rows(PAIRS, paths, reading)


def _sources(paths: Sequence[str], reading: ReadingOptions) -> list[RowSource]:
    """Return the sources of these paths: one for each table, and one for each pair of other files."""
    columns = reading.columns
    openers: list[Opener] = []
    plain = []
    for path in expand_archives(paths):
        if is_hub(path):
            openers.append(partial(_from_table, open_hub(path)))
            continue
        file = examine_text(path, reading.encoding)
        if holds_pairs(file):
            openers.append(partial(_from_bilingual, file))
        elif table := find_table(file, names_in(columns)):
            openers.append(partial(_from_table, table))
        else:
            plain.append(file)
    openers += [partial(_from_two, first, second, reading.encoding) for first, second in _in_pairs(plain)]
    sources = [open_source(columns) for open_source in openers]
    if columns.source is not None or columns.target is not None or columns.as_trained:
        return sources
    return list(_in_one_direction(sources, openers, columns))


def _in_one_direction(sources: Sequence[RowSource], openers: Sequence[Opener], columns: Columns) -> Iterator[RowSource]:
    """Yield the sources, with sides swapped where needed to match the first source whose languages are known.

    Sources that are swapped, or in other languages, get a remark that says so.
    """
    known = next((source for source in sources if languages_between(source.names)), sources[0])
    languages = languages_between(known.names)
    for source, open_source in zip(sources, openers, strict=True):
        own = languages_between(source.names)
        if languages is None or own in (None, languages):
            yield source
            continue
        names = source.names[::-1] if own == languages[::-1] else languages
        path, others = source.files[0].path, f"{languages.source} to {languages.target}"
        try:
            turned = open_source(replace(columns, source=names[0], target=names[1]))
        except PenwrightError:  # the file does not contain these languages
            turned = source
        if languages_between(turned.names) == languages:
            remark = f"{path}: used in the direction {others}, to match {known.files[0].path}"
        else:
            remark = (
                f"{path}: its languages differ from those of {known.files[0].path} ({others}); "
                "the model learns both language pairs"
            )
        yield replace(turned, remark="\n".join(filter(None, [turned.remark, remark])))


def _from_table(table: Table, columns: Columns) -> RowSource:
    """Return the rows of a table as pairs."""
    chosen = pair_columns(table, columns)
    sources, (target,) = chosen.indices["source"], chosen.indices["target"]
    names = " + ".join(table.columns[source] for source in sources), table.columns[target]
    return RowSource(
        table.files,
        partial(select, table, sources, target),
        table.location,
        f"source = column {names[0]}, target = column {names[1]}",
        names,
        chosen.remark,
        chosen.roles(table),
    )


def _from_bilingual(file: SourceFile, columns: Columns) -> RowSource:
    """Return the pairs of a bilingual file such as TMX, in the languages that the settings name."""
    trained = {key: roles[0][0] for key, roles in columns.as_trained.items() if roles}
    requested = [columns.source or trained.get("source"), columns.target or trained.get("target")]
    names = bilingual_languages(file, *(None if name is None else str(name) for name in requested))
    choice = f"source = {names[0]}, target = {names[1]}"
    read = partial(bilingual_pairs, file, *names)
    roles = {"source": ((names[0], 1),), "target": ((names[1], 2),)}
    return RowSource((file,), read, lambda i: f"{file.path} unit {i + 1:,}", choice, names, roles=roles)


def _from_two(first: SourceFile, second: SourceFile, encoding: str | None, columns: Columns) -> RowSource:
    """Return the pairs of two files: lines, or segments with the same time or number."""
    are_segments = holds_segments(first) and first.format == second.format
    if not are_segments:
        check_alignment(first, second)
    sides = side_names(first.path, second.path)
    names = sides.names if sides and all(sides.names) else (side_name(first.path), side_name(second.path))
    is_swapped = sides is not None and sides.is_target_first
    if columns.source is not None or columns.target is not None:
        endings, languages = [suffix_of(each.path)[1:] for each in (first, second)], languages_between(names)
        known = [{*each} for each in zip(endings, names, languages or names, strict=True)]
        for each in (columns.source, columns.target):
            if languages and isinstance(each, str) and not each.isdecimal() and each not in known[0] | known[1]:
                raise PenwrightError(
                    f"{first.path} and {second.path} are named {' and '.join(names)}, but the settings name '{each}'. "
                    "Correct data.source and data.target, or leave them out"
                )
        is_swapped = columns.source in known[1] or columns.target in known[0]
    if is_swapped:
        first, second, names = second, first, (names[1], names[0])
    read = partial(segment_pairs, first, second, encoding) if are_segments else partial(aligned, first, second)
    unit, choice = "segment" if are_segments else "line", "the source; the file after it is the target"
    return RowSource((first, second), read, lambda line: f"{first.path} {unit} {line + 1:,}", choice, names)


def _in_pairs(files: Sequence[SourceFile]) -> Sequence[tuple[SourceFile, SourceFile]]:
    """Return the files in pairs. They are listed as a.en a.de b.en b.de, or as a.en b.en a.de b.de."""
    if len(files) == 1:
        raise PenwrightError(
            f"{files[0].path} has no columns: pass a second file with its translations, line by line, "
            "or a table (.tsv, .csv, .jsonl, .tmx)"
        )
    if len(files) % 2:
        raise PenwrightError(
            f"{len(files)} files cannot be paired, since their number is odd: {', '.join(file.path for file in files)}"
        )
    half = len(files) // 2
    neighbors = list(zip(files[::2], files[1::2], strict=True))
    halves = list(zip(files[:half], files[half:], strict=True))
    for pairs in (neighbors, halves):
        if all(side_names(first.path, second.path) for first, second in pairs):
            return pairs
    suffixes = [suffix_of(file.path) for file in files]
    if len(set(suffixes)) == 2 and len(set(suffixes[:half])) == len(set(suffixes[half:])) == 1:
        return halves
    for first, second in neighbors if len(files) > 2 else ():
        languages = languages_between([side_name(first.path), side_name(second.path)])
        if languages and languages.source == languages.target:
            raise PenwrightError(
                f"{first.path} and {second.path} are both named '{languages.source}', so they are not the two sides "
                "of a translation. List the files in pairs, such as a.en a.de b.en b.de"
            )
    return neighbors


def _rules(rows: Rows, cleaning: Cleaning) -> list[Rule]:
    """Return the cleaning rules for pairs: the common rules, and a limit on the ratio of the lengths."""
    rules, ratio = common_rules(rows, cleaning), cleaning.max_ratio
    if ratio is None:
        return rules

    def lopsided(_: Mask) -> Mask:
        longer = np.maximum(rows.first_sizes, rows.second_sizes)
        return (longer > SHORT) & (longer > ratio * np.minimum(rows.first_sizes, rows.second_sizes))

    return [*rules, (f"one side more than {ratio:g} times as long as the other", lopsided)]


def _leak_rule(rows: Rows, where: Rows, chosen: Mask) -> Rule:
    """Return the rule that drops training pairs whose source or target also occurs in the held-out set."""

    def leaks(_: Mask) -> Mask:
        sides = (rows.first_hashes, where.first_hashes), (rows.second_hashes, where.second_hashes)
        is_held_out = [np.isin(side, held_out[chosen]) for side, held_out in sides]
        return is_held_out[0] | is_held_out[1]

    return "source or target is also held out", leaks


def _identical_sides(rows: Rows, keep: Mask, _: ReadingOptions) -> list[str]:
    """Return a note on pairs whose source and target are identical."""
    same = int((keep & (rows.first_hashes == rows.second_hashes)).sum())
    return [f"{count(same, 'pair')} with identical source and target"] if same else []


def look_like_translations(first: SourceFile, second: SourceFile) -> bool:
    """Return whether two files look like translations of each other: different lines, but of correlated lengths."""
    lines = [file.first_lines(SAMPLE) for file in (first, second)]
    pairs = [(a, b) for a, b in zip(*lines, strict=False) if a.strip() and b.strip()]
    if len(pairs) < FEWEST or sum(a == b for a, b in pairs) > len(pairs) // 2:
        return False
    a, b = (np.log([len(line) for line in side]) for side in zip(*pairs, strict=True))
    if min(a.std(), b.std()) == 0:
        return False
    return bool(np.corrcoef(a, b)[0, 1] > ALIKE)


def check_alignment(first: SourceFile, second: SourceFile) -> None:
    """Raise PenwrightError if the files differ in their number of lines.

    The message gives both counts and, if line lengths show it, the line where the files diverge.
    """
    if first.n_lines == second.n_lines:
        return
    longer, shorter = (first, second) if first.n_lines > second.n_lines else (second, first)
    missing = longer.n_lines - shorter.n_lines
    names = suffix_of(longer.path)[1:] or longer.path, suffix_of(shorter.path)[1:] or shorter.path
    counts = ", ".join(f"{name} {_spaced(n)}" for name, n in zip(names, (longer.n_lines, shorter.n_lines), strict=True))
    if names[0] == names[1]:
        counts = f"{_spaced(longer.n_lines)} and {_spaced(shorter.n_lines)} lines"
    lengths = (np.fromiter(map(len, file.lines()), dtype=np.float64) for file in (longer, shorter))
    gap = first_gap(*lengths) if longer.n_lines <= MOST_LINES else None
    where = f"; first difference near line {_spaced(gap + 1)}" if gap is not None else ""
    have = "1 line of {} has" if missing == 1 else f"{_spaced(missing)} lines of {{}} have"
    raise PenwrightError(
        f"{have.format(longer.path)} no counterpart in {shorter.path} ({counts}{where}). "
        "Add or remove lines until they correspond one to one."
    )


def first_gap(longer: NDArray[np.float64], shorter: NDArray[np.float64]) -> int | None:
    """Return the line (from 0) at which extra lines begin in `longer`, or None if the line lengths do not reveal it.

    Every position is tried: lines before it are paired directly, and lines after it with a shift. At the correct
    position, the lengths of paired lines differ least.
    """
    missing, n = len(longer) - len(shorter), len(shorter)
    if n < 10 or missing > n // 2:
        return None
    ratios = np.log((longer[:n] + 5) / (shorter + 5)), np.log((longer[missing:] + 5) / (shorter + 5))
    level = np.median(np.concatenate(ratios))  # the typical ratio: one language may be wordier than the other
    unshifted, shifted = (np.abs(ratio - level) for ratio in ratios)
    costs = np.concatenate([[0.0], np.cumsum(unshifted)]) + np.concatenate([np.cumsum(shifted[::-1])[::-1], [0.0]])
    gap = int(np.argmin(costs))
    before = unshifted[:gap].sum() / shifted[:gap].sum(initial=1e-9)
    after = shifted[gap:].sum() / unshifted[gap:].sum(initial=1e-9)
    return gap if (gap < n // 20 or before < CONVINCING) and (n - gap < n // 20 or after < CONVINCING) else None


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def aligned(first: SourceFile, second: SourceFile) -> Iterator[tuple[str, str]]:
    """Return the lines of both files in pairs, without surrounding whitespace."""
    return ((a.strip(), b.strip()) for a, b in zip(first.lines(), second.lines(), strict=True))


PAIRS = RowKind(
    name="pairs",
    unit="pair",
    chosen_by="their sources",
    sources=_sources,
    rules=_rules,
    check=_identical_sides,
    hold_out=partial(hold_out_some, first="source sentences", unit="pair", most=MOST_HELD_OUT),
    leak_rule=_leak_rule,
    example=Pair._make,
    sides=slice(1, 2),
)
