"""Corpora of running text. Some documents, or the end of each document, are held out."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np

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
    DEFAULT_READING,
    Corpus,
    CorpusPart,
    Document,
    ReadingOptions,
    fingerprint_of,
    only_held_out,
    with_training_columns,
)
from penwright.data.documents import Documents, TextSlice, open_documents
from penwright.data.splits import DEFAULT_FRACTION, Cut, Hashes, Mask, held_out_documents, tail_position, tail_start
from penwright.errors import PenwrightError
from penwright.text import count

MANY = 20  # the end of each document is held out if there are fewer different documents than this
ENOUGH = 0.5  # whole documents are held out only if they make up at least this share of the requested characters
MOST_HELD_OUT = 500_000  # maximum number of held-out characters, unless the settings give a share
Parts = tuple[CorpusPart[Document], CorpusPart[Document]]


def open_text(paths: Sequence[str | Path], reading: ReadingOptions = DEFAULT_READING) -> Corpus[Document]:
    """Open documents for training. Hold out `reading.validation` or, if it is empty, a part of the text."""
    training = open_documents(paths, reading.encoding, reading.columns)
    alike = with_training_columns(reading, training.roles).columns
    validation = open_documents(reading.validation, reading.encoding, alike) if reading.validation else None
    keep, dropped = _kept_documents(training, validation, reading.cleaning)
    whole = _whole_documents(training, keep, reading) if validation is None else None
    if validation is not None:
        valid, _ = _kept_documents(validation, None, KEEP_ALL)
        learned, held_out = _without_copies(training, keep, validation.stripped[valid]), validation.part(valid)
        parts, split = (training.part(learned), held_out), _describe_validation(held_out)
    else:
        parts, split = whole or _tails(training, keep, reading.held_out)
    n_copies = int(keep.sum()) - len(parts[0]) - (len(parts[1]) if whole else 0)
    files = training.files + (validation.files if validation else ())
    choices = training.choices + (validation.choices if validation else ())
    report = Report(
        unit="document",
        files=files,
        n_read=len(keep),
        n_kept=int(keep.sum()),
        dropped=tuple(dropped),
        split=split,
        notes=(*training.notes, *_note_on_copies(n_copies)),
    )
    fingerprint = fingerprint_of(
        files,
        task="text",
        version=2,
        n_own=len(validation.files) if validation else 0,
        held_out=reading.held_out,
        seed=reading.seed,
        deduplicate=reading.cleaning.deduplicate,
        **({"ends_of_many": True} if validation is None and whole is None and _are_many(training, keep) else {}),
        **({"columns": choices} if any(choices) else {}),
        **({"n_copies": n_copies} if n_copies else {}),
    )
    return Corpus(*parts, files, fingerprint, report, roles=training.roles)


def open_evaluation_text(paths: Sequence[str | Path], reading: ReadingOptions = DEFAULT_READING) -> Corpus[Document]:
    """Open documents for evaluation. Only blank and unreadable documents are dropped."""
    documents = open_documents(paths, reading.encoding, reading.columns)
    keep, dropped = _kept_documents(documents, None, KEEP_ALL)
    part, choices = documents.part(keep), documents.choices
    corpus = only_held_out(part, documents.files, "document", choices, documents.notes, dropped)
    return replace(corpus, roles=documents.roles)


def _kept_documents(documents: Documents, held_out: Documents | None, cleaning: Cleaning) -> tuple[Mask, list[Dropped]]:
    """Return a mask of the documents to keep, and how many each rule drops. Documents in `held_out` are dropped."""
    keep = np.ones(len(documents.hashes), dtype=np.bool_)
    rules: list[Rule] = [
        *broken_rules(-documents.characters, documents.reasons),
        ("blank", lambda _: documents.characters == 0),
        ("exact duplicates", lambda kept: duplicates(documents.hashes, kept) if cleaning.deduplicate else ~kept),
        ("also in the validation files", lambda _: _also_in(documents, held_out)),
    ]
    dropped = leave_out(rules, keep, documents.location)
    if not keep.any():
        raise PenwrightError(f"no documents are left ({len(keep):,} read): {reasons(dropped)}")
    return keep, dropped


def _also_in(documents: Documents, held_out: Documents | None) -> Mask:
    """Return a mask of the documents that are also in the held-out set."""
    return np.isin(documents.hashes, np.zeros(0, dtype=np.uint64) if held_out is None else held_out.hashes)


def _are_many(documents: Documents, keep: Mask) -> bool:
    return len(np.unique(documents.hashes[keep])) >= MANY


def _whole_documents(documents: Documents, keep: Mask, reading: ReadingOptions) -> tuple[Parts, str] | None:
    """Hold out whole documents. Return None if there are too few documents, or if the chosen ones are too short."""
    if not _are_many(documents, keep):
        return None
    kept = np.flatnonzero(keep)
    sizes = documents.characters[kept]
    n_held_out = _wanted(int(sizes.sum()), reading.held_out)
    chosen = np.zeros_like(keep)
    chosen[kept[held_out_documents(documents.hashes[kept], sizes, n_held_out, reading.seed)]] = True
    if documents.characters[chosen].sum() < ENOUGH * n_held_out:
        return None
    others, held_out = keep & ~chosen, documents.part(chosen)
    split = (
        f"held out: {count(len(held_out), 'whole document')} out of {len(kept):,}, "
        f"{_describe_size(documents.part(others), held_out)}, chosen with seed {reading.seed}"
    )
    return (documents.part(_without_copies(documents, others, documents.stripped[chosen])), held_out), split


def _without_copies(documents: Documents, keep: Mask, held_out: Hashes) -> Mask:
    """Return `keep` without documents that differ from a held-out one only in the white space at their ends.

    The choice of the held-out documents does not depend on this, so that the split of older runs stays the same.
    """
    learned = keep & ~np.isin(documents.stripped, held_out)
    if not learned.any():
        raise PenwrightError(f"{documents.files[0].path}: the training documents are the same as the held-out ones")
    return learned


def _note_on_copies(n: int) -> list[str]:
    same = "equal to a held-out document except for white space at the ends"
    return [f"not used for training: {count(n, 'document')}, {same}"] if n else []


def _tails(documents: Documents, keep: Mask, fraction: float | None) -> tuple[Parts, str]:
    """Hold out the end of each document."""
    total = int(documents.characters[keep].sum())
    share = _wanted(total, fraction) / total if fraction is None else fraction
    sizes = documents.characters[keep].tolist()
    cuts = [_tail_start(document, size, share) for document, size in zip(documents.read(keep), sizes, strict=True)]
    tails = [cut.characters < size for cut, size in zip(cuts, sizes, strict=True)]
    if not any(tails):
        remarks = "".join(f". {remark}" for remark in documents.notes)
        size = count(total, "character")
        raise PenwrightError(
            f"{documents.files[0].path}: {size} in total, too few to hold any out; "
            f"pass at least a few thousand characters{remarks}"
        )

    def heads() -> Iterator[Document]:
        for document, cut in zip(documents.read(keep), cuts, strict=True):
            yield _slice(document, 0, cut.characters)

    def ends() -> Iterator[Document]:
        for document, cut in compress(zip(documents.read(keep), cuts, strict=True), tails):
            yield _slice(document, cut.characters)

    in_heads, bytes_in_heads = (sum(column) for column in zip(*cuts, strict=True))
    training = CorpusPart(heads, len(cuts), in_heads, bytes_in_heads)
    held_out = CorpusPart(ends, sum(tails), total - in_heads, int(documents.n_bytes[keep].sum()) - bytes_in_heads)
    which = "the document" if len(sizes) == 1 else f"each of {len(sizes)} documents"
    return (
        training,
        held_out,
    ), f"held out: the end of {which}, {_describe_size(training, held_out)}, cut at the start of a line where possible"


def _tail_start(document: Document, size: int, share: float) -> Cut:
    """Return where the held-out end of a document begins, without reading all of a large file."""
    assert isinstance(document.chunks, TextSlice)
    start, pieces = document.chunks.pieces_from(tail_position(size, share) - 1)
    return tail_start(pieces, size, share, start)


def _slice(document: Document, begin: int, end: int | None = None) -> Document:
    assert isinstance(document.chunks, TextSlice)
    return Document(document.name, replace(document.chunks, begin=begin, end=end))


def _wanted(total: int, fraction: float | None) -> int:
    """Return the number of characters to hold out: the given share or, by default, a tenth up to MOST_HELD_OUT."""
    return int(total * fraction) if fraction is not None else min(int(total * DEFAULT_FRACTION), MOST_HELD_OUT)


def _describe_validation(part: CorpusPart[Document]) -> str:
    """Describe held-out documents from validation files."""
    return f"held out: the validation files, {count(len(part), 'document')} with {part.n_characters:,} characters"


def _describe_size(training: CorpusPart[Document], held_out: CorpusPart[Document]) -> str:
    """Describe the size of the held-out set, with its share of all characters."""
    share = held_out.n_characters / (training.n_characters + held_out.n_characters)
    return f"{held_out.n_characters:,} characters ({100 * share:.3g} %)"
