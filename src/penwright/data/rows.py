"""Corpora whose rows have two sides, such as source and target, or text and label."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from penwright.data.cleaning import (
    KEEP_ALL,
    Cleaning,
    Dropped,
    Report,
    Rule,
    broken_rules,
    duplicates,
    leave_out,
    reasons,
)
from penwright.data.corpus import (
    Broken,
    Corpus,
    CorpusPart,
    Example,
    ReadingOptions,
    Source,
    Sources,
    fingerprint_of,
    number_reason,
    only_held_out,
    with_training_columns,
)
from penwright.data.paths import describe_other_splits
from penwright.data.splits import DEFAULT_FRACTION, Groups, Hashes, Mask, hash_groups, hash_texts, held_out_rows
from penwright.errors import PenwrightError
from penwright.languages import are_reversed, languages_between
from penwright.text import count

TwoSides = tuple[str, str]
RowSource = Source[TwoSides]
Sizes = NDArray[np.uint32]
SHORT = 30  # the ratio of lengths is checked only if a side has more characters than this
TOO_LONG = "longer than"  # prefix of the message about rows that are too long
NO_GROUPS = "the validation files have no group column, so their groups may also occur in the training texts"
BATCH = 8192  # number of rows measured at a time


@dataclass(frozen=True)
class Rows(Sources[TwoSides]):
    """The lengths and hashes of all rows of several sources. Each row takes 33 bytes, however long its text."""

    reasons: Mapping[str, int]  # maps each reason why a row can be broken to its error code
    first_hashes: Hashes
    second_hashes: Hashes
    first_sizes: Sizes  # lengths in characters
    second_sizes: Sizes
    first_bytes: Sizes  # sizes in UTF-8 bytes
    second_bytes: Sizes
    broken: NDArray[np.uint8]  # error code of each row (see `reasons`); 0 for a readable row

    def __len__(self) -> int:
        return len(self.first_hashes)

    @cached_property
    def hashes(self) -> Hashes:
        """The hash of each row, computed from the hashes of its two sides."""
        with np.errstate(over="ignore"):
            return self.first_hashes * np.uint64(0x9E3779B97F4A7C15) + self.second_hashes

    @cached_property
    def group_hashes(self) -> tuple[Hashes, Hashes] | None:
        """The hash of each row's group, or of its first side: first as written, then with 16 for 16.0."""
        if not any(source.groups for source in self.each):
            return None
        firsts = np.split(self.first_hashes, np.cumsum(self.n_items)[:-1])
        parts = [
            (first, first) if source.groups is None else hash_groups(source.groups(), first)
            for source, first in zip(self.each, firsts, strict=True)
        ]
        return np.concatenate([written for written, _ in parts]), np.concatenate([plain for _, plain in parts])

    @property
    def groups(self) -> Groups:
        """The hash of each row's group, or of its first side if it has no group. None if no source has groups."""
        return self.group_hashes and self.group_hashes[1]


def measure(sources: Sequence[RowSource]) -> Rows:
    """Read all rows once and return their lengths and hashes."""
    batches, counts, reasons = [], [], dict[str, int]()
    for source in sources:
        rows, n = source.read(), 0
        while batch := list(islice(rows, BATCH)):
            batches.append(_measure(batch, reasons))
            n += len(batch)
        counts.append(n)
    if not batches:
        paths = ", ".join(file.path for source in sources for file in source.files)
        raise PenwrightError(f"{paths}: there are no rows")
    columns = map(np.concatenate, zip(*batches, strict=True))
    return Rows(tuple(sources), tuple(counts), reasons, *columns)


def _measure(batch: Sequence[TwoSides | Broken | None], reasons: dict[str, int]) -> tuple[NDArray[np.generic], ...]:
    """Measure these rows. Return the arrays of a Rows object: hashes, lengths, sizes in bytes, error codes."""
    first, second = zip(*(row if isinstance(row, tuple) else ("", "") for row in batch), strict=True)
    encoded = [[text.encode() for text in side] for side in (first, second)]
    return (
        *(hash_texts(side) for side in encoded),
        *(_sizes(side) for side in (first, second)),
        *(_sizes(side) for side in encoded),
        np.fromiter((number_reason(row, reasons) for row in batch), dtype=np.uint8, count=len(batch)),
    )


def _sizes(side: Iterable[str] | Iterable[bytes]) -> Sizes:
    return np.fromiter(map(len, side), dtype=np.uint32)


def clean(rows: Rows, rules: Sequence[Rule], keep: Mask | None = None) -> tuple[Mask, list[Dropped]]:
    """Return the rows that pass all rules, and how many rows each rule drops. Raises PenwrightError if none pass."""
    keep = np.ones(len(rows), dtype=np.bool_) if keep is None else keep.copy()
    before = int(keep.sum())
    dropped = leave_out(rules, keep, rows.location)
    if not keep.any():
        advice = ""
        if any(each.reason.startswith(TOO_LONG) for each in dropped):
            longest = int(max(rows.first_sizes.max(), rows.second_sizes.max()))
            advice = f". To keep texts of any length: --set data.max_characters={longest}"
        raise PenwrightError(
            f"{rows.files[0].path}: no rows are left ({before:,} before cleaning): {reasons(dropped)}{advice}"
        )
    return keep, dropped


def common_rules(rows: Rows, cleaning: Cleaning) -> list[Rule]:
    """Return the cleaning rules that apply to pairs, labelled texts and conversations alike."""
    most = cleaning.max_characters
    rules: list[Rule] = [
        *broken_rules(rows.broken, rows.reasons),
        ("one side is blank", lambda _: (rows.first_sizes == 0) | (rows.second_sizes == 0)),
        (f"{TOO_LONG} {most:,} characters", lambda _: np.maximum(rows.first_sizes, rows.second_sizes) > most),
    ]
    return [*rules, ("exact duplicates", lambda keep: duplicates(rows.hashes, keep))] if cleaning.deduplicate else rules


@dataclass(frozen=True)
class RowKind(Generic[Example]):
    """A kind of row, such as a pair or a labelled text, with the functions that differ between kinds."""

    name: str  # included in the corpus fingerprint
    unit: str  # noun for a row in reports, such as "pair"
    chosen_by: str  # the texts whose hashes decide which rows are held out
    sources: Callable[[Sequence[str], ReadingOptions], list[RowSource]]
    rules: Callable[[Rows, Cleaning], list[Rule]]  # returns the cleaning rules
    check: Callable[[Rows, Mask, ReadingOptions], list[str]]  # returns notes on the kept rows, or raises PenwrightError
    hold_out: Callable[[Rows, Mask, ReadingOptions], Mask]  # selects the held-out rows among the kept rows
    leak_rule: Callable[[Rows, Rows, Mask], Rule]  # returns the rule that drops training rows that are also held out
    example: Callable[[TwoSides], Example]  # builds an example from the two sides of a row
    sides: slice  # which of the two sides count towards the size of the corpus

    def part(self, rows: Rows, chosen: Mask) -> CorpusPart[Example]:
        """Return the chosen rows as the training or held-out part of a corpus."""
        sides = (rows.first_sizes, rows.second_sizes), (rows.first_bytes, rows.second_bytes)
        n_characters, n_bytes = (sum(int(side[chosen].sum()) for side in each[self.sides]) for each in sides)
        groups = None if rows.groups is None else rows.groups[chosen]
        read, n = (lambda: map(self.example, rows.read(chosen))), int(chosen.sum())
        places = cache(lambda: np.flatnonzero(chosen))
        return CorpusPart(read, n, n_characters, n_bytes, groups, lambda index: rows.location(int(places()[index])))


def hold_out_some(
    rows: Rows, keep: Mask, reading: ReadingOptions, *, first: str, unit: str, most: int, least: int = 0
) -> Mask:
    """Choose the rows to hold out, by hashes of their first texts (sources or prompts).

    Rows with the same first text stay together. `first` names these texts in messages, for example "prompts".
    """
    kept, fraction = int(keep.sum()), reading.held_out
    if len(np.unique(rows.first_hashes[keep])) < 2:
        raise PenwrightError(
            f"{rows.files[0].path}: all {first} are the same ({count(kept, unit)}), so none can be held out; "
            f"add other {first}, or pass held-out files to --validation"
        )
    n_held_out = kept * fraction if fraction is not None else min(kept * DEFAULT_FRACTION, most)
    return held_out_rows(rows.first_hashes, keep, max(least, round(n_held_out)), reading.seed)


def first_side_leaks(name: str, rows: Rows, where: Rows, chosen: Mask) -> Rule:
    """Return the rule that drops training rows whose first side (a text or prompt) also occurs in the held-out set."""
    return f"{name} is also held out", lambda _: np.isin(rows.first_hashes, where.first_hashes[chosen])


def _group_leaks(rows: Rows, where: Rows, chosen: Mask) -> list[Rule]:
    """Return the rule that drops training rows whose group is also held out, if both files have groups."""
    groups, others = rows.groups, where.groups
    if groups is None or others is None:
        return []
    return [("other texts of the group are held out", lambda _: np.isin(groups, others[chosen]))]


def open_rows(kind: RowKind[Example], paths: Sequence[str | Path], reading: ReadingOptions) -> Corpus[Example]:
    """Open rows for training. Hold out `reading.validation` or, if it is empty, rows chosen by hashes and seed."""
    rows = measure(_sources(kind, paths, reading))
    keep, dropped = clean(rows, kind.rules(rows, reading.cleaning))
    notes = kind.check(rows, keep, reading)
    if reading.validation:
        where, chosen, more = _validation(kind, rows, reading)
        rest, files, how, notes = keep, rows.files + where.files, "the validation files", [*notes, *more]
    else:
        where, chosen = rows, kind.hold_out(rows, keep, reading)
        rest, files = keep & ~chosen, rows.files
        how = f"chosen by the hashes of {kind.chosen_by} and seed {reading.seed}"
        if rows.groups is not None:
            how = f"{chosen.sum() / keep.sum():.0%} of the rows, whole groups chosen by hash with seed {reading.seed}"
    learned, leaked = clean(rows, [kind.leak_rule(rows, where, chosen), *_group_leaks(rows, where, chosen)], rest)
    training, held_out = kind.part(rows, learned), kind.part(where, chosen)
    report = Report(
        unit=kind.unit,
        files=files,
        n_read=len(rows),
        n_kept=len(training) + (0 if reading.validation else len(held_out)),
        dropped=(*dropped, *leaked),
        split=f"held out: {count(len(held_out), kind.unit)}, {how}; training: {count(len(training), kind.unit)}",
        notes=(*rows.notes, *notes),
    )
    fingerprint = fingerprint_of(
        files,
        task=kind.name,
        n_own=len(reading.validation),
        columns=rows.choices,
        cleaning=reading.cleaning,
        held_out=reading.held_out,
        seed=reading.seed,
        **({} if set(where.choices) == set(rows.choices) else {"own_columns": where.choices}),
    )
    return Corpus(
        training,
        held_out,
        files,
        fingerprint,
        report,
        names=rows.names,
        roles=rows.roles,
        label_kind=rows.label_kind,
        text_pairs=rows.text_pairs,
    )


def open_evaluation_rows(
    kind: RowKind[Example], paths: Sequence[str | Path], reading: ReadingOptions
) -> Corpus[Example]:
    """Open rows for evaluation. Only unreadable rows and rows with a blank side are dropped."""
    rows = measure(_sources(kind, paths, reading))
    chosen, dropped = clean(rows, kind.rules(rows, KEEP_ALL))
    corpus = only_held_out(kind.part(rows, chosen), rows.files, kind.unit, rows.choices, rows.notes, dropped)
    return replace(corpus, names=rows.names, roles=rows.roles, label_kind=rows.label_kind, text_pairs=rows.text_pairs)


def _sources(kind: RowKind[Example], paths: Sequence[str | Path], reading: ReadingOptions) -> list[RowSource]:
    """Return the sources of all files at these paths."""
    unique = list(dict.fromkeys(map(str, paths)))
    first, *rest = kind.sources(unique, reading)
    return [replace(first, remark="\n".join(filter(None, [*map(describe_other_splits, unique), first.remark]))), *rest]


def _validation(kind: RowKind[Example], rows: Rows, reading: ReadingOptions) -> tuple[Rows, Mask, list[str]]:
    """Read the validation files, in the direction of the training rows. Return usable rows as a mask, and notes."""
    languages = next(filter(None, (languages_between(source.names) for source in rows.each)), None)
    sources, notes = list[RowSource](), list[str]()
    for source in _sources(kind, reading.validation, with_training_columns(reading, rows.roles, rows.label_kind)):
        own = languages_between(source.names)
        if languages and own and are_reversed(own, languages):
            path, (one, other) = source.files[0].path, languages
            notes.append(f"{path}: used in the direction {one} to {other}, like the training data")
            sources.append(_swapped(source))
        else:
            sources.append(source)
    where = measure(sources)
    if rows.groups is not None and where.groups is None:
        notes.append(NO_GROUPS)
    return where, clean(where, kind.rules(where, KEEP_ALL))[0], notes


def _swapped(source: RowSource) -> RowSource:
    """Return the source with the two sides of each row swapped."""
    return replace(
        source,
        read=lambda: (row[::-1] if isinstance(row, tuple) else row for row in source.read()),
        choice=f"{source.choice} (swapped)",
        names=source.names[::-1],
    )
