"""Held-out splits: named by files, or chosen by hashes of the content, whatever its order."""

import re
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penwright.errors import PenwrightError

Hashes = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Groups = Hashes | None  # the group of each item; None: items have no groups

DEFAULT_FRACTION = 0.1
TOO_MANY = 2  # if a selection exceeds the requested size by more than this factor, select groups one by one
ENOUGH_FOR_ONE = 0.3  # a class gets a held-out row if its size times the held-out share is at least this
WHOLE = re.compile(rb"^([-+]?\d+)\.0+\Z")  # a whole number as some programs write it, such as 16.0
TRAINING, TESTS = {"train", "training"}, {"test", "testing"}  # words in the names of files and folders
VALIDATION = {"dev", "valid", "val", "validation", "eval"}


def hash_texts(side: Sequence[bytes]) -> Hashes:
    """Return a hash of each text, given in UTF-8."""
    return np.frombuffer(b"".join([blake2b(text, digest_size=8).digest() for text in side]), dtype="<u8")


def hash_groups(names: Iterable[str], blank: Hashes) -> tuple[Hashes, Hashes]:
    """Return a hash of each group as written, and one with 16 for 16.0. `blank` has the hashes of blank groups."""
    encoded = [name.encode("utf-8", "surrogatepass") for name in names]
    is_blank = [name == b"" for name in encoded]
    written, plain = hash_texts(encoded), hash_texts([WHOLE.sub(rb"\1", name) for name in encoded])
    return np.where(is_blank, blank, written), np.where(is_blank, blank, plain)


def groups_to_split(written: Hashes, plain: Hashes) -> Hashes:
    """Return the hashes that choose the held-out groups: those of 16.0 as written, unless some rows have 16."""
    return np.where(np.isin(plain, written), plain, written)


def files_of_split(folder: str | Path, files: Sequence[Path], split: Collection[str]) -> list[Path]:
    """Return the files in a folder or archive with a word of this split in their names, such as TESTS for test.csv.

    Return [] unless the names tell training files from others. `folder` may also be a pattern, whose files are alike.
    """
    if not all(file.is_relative_to(folder) for file in files):
        return []
    words = [re.split(r"[\W\d_]+", str(file.relative_to(folder)).lower()) for file in files]
    known = TRAINING | TESTS | VALIDATION
    splits = [next((word for word in reversed(each) if word in known), "") for each in words]
    is_divided = 2 * splits.count("") <= len(splits) and TRAINING & {*splits} and {*splits} - TRAINING - {""}
    return [file for file, each in zip(files, splits, strict=True) if is_divided and each in split]


def training_files(folder: str | Path, files: Sequence[Path]) -> list[Path]:
    """Return the training files in a folder or archive, if the names tell them from others; otherwise all files."""
    return files_of_split(folder, files, TRAINING) or list(files)


def shuffled(hashes: Hashes, seed: int) -> Hashes:
    """Rehash the hashes with a seed (the finalizer of splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = hashes + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def held_out_rows(keys: Hashes, keep: Mask, n_held_out: int, seed: int) -> Mask:
    """Select about `n_held_out` of the rows in `keep`, at least one.

    Rows with the same key stay together. If a large group would make the selection too large, other groups are selected
    instead.
    """
    order = shuffled(keys, seed)
    among = order[keep]
    n_held_out = min(max(1, n_held_out), len(among))
    last: np.uint64 = np.partition(among, n_held_out - 1)[n_held_out - 1]
    chosen = np.logical_and(keep, order <= last)
    if chosen.sum() > TOO_MANY * n_held_out:
        chosen[keep] = held_out_documents(keys[keep], np.ones(len(among), dtype=np.int64), n_held_out, seed)
    return chosen


def held_out_groups(groups: Hashes, classes: Hashes, keep: Mask, n_held_out: int, seed: int) -> Mask:
    """Select whole groups to hold out, about `n_held_out` rows in total. Each class keeps a row for training.

    Raises PenwrightError if no group can be held out.
    """
    pairs = np.unique(np.stack([classes[keep], groups[keep]]), axis=1)
    present, n_groups = np.unique(pairs[0], return_counts=True)
    only = pairs[1][np.isin(pairs[0], present[n_groups == 1])]  # groups that contain all rows of a class
    free = keep & ~np.isin(groups, only)
    for among, n in ((keep, n_held_out), (free, n_held_out), (free, 1)):
        if among.any():
            chosen = held_out_rows(groups, among, n, seed)
            lost = np.setdiff1d(classes[chosen], classes[keep & ~chosen])
            chosen &= ~np.isin(groups, groups[chosen & np.isin(classes, lost)])
            if chosen.any():
                return chosen
    raise PenwrightError(
        "no group can be held out, because training would lose a label. Add groups, or pass held-out files "
        "to --validation"
    )


def held_out_of_classes(keys: Hashes, classes: Hashes, keep: Mask, n_held_out: int, seed: int) -> Mask:
    """Select the rows to hold out: the same share of each class.

    Classes too rare for a held-out row of their own are pooled, and the same share of the pool is held out. No class
    loses its last row: a class with only one text stays in training.
    """
    _, first = np.unique(np.stack([classes[keep], keys[keep]]), axis=1, return_index=True)
    among = np.flatnonzero(keep)[first]  # the distinct texts of each class
    present, n_texts = np.unique(classes[among], return_counts=True)
    rare = np.isin(keys, keys[among][np.isin(classes[among], present[n_texts < 2])])
    frequent = keep & ~rare
    if not frequent.any():
        return frequent
    rows = np.flatnonzero(frequent)
    rows = rows[np.lexsort((shuffled(keys, seed)[rows], classes[rows]))]
    _, first, which, sizes = np.unique(classes[rows], return_index=True, return_inverse=True, return_counts=True)
    shares = sizes * min(1.0, n_held_out / len(rows))
    of_each = np.where(shares >= ENOUGH_FOR_ONE, np.maximum(1, np.round(shares)), 0)
    chosen = frequent & np.isin(keys, keys[rows[np.arange(len(rows)) - first[which] < of_each[which]]])
    pool, left = np.zeros_like(keep), round(shares[of_each == 0].sum())
    pool[rows[of_each[which] == 0]] = True
    if left:
        chosen |= frequent & np.isin(keys, keys[held_out_rows(keys, pool, left, seed)])
    lost = np.setdiff1d(classes[chosen], classes[keep & ~chosen])
    returned = np.isin(keys, keys[chosen & np.isin(classes, lost)])
    return chosen & ~returned if (chosen & ~returned).any() else held_out_rows(keys, frequent, 1, seed)


def held_out_documents(hashes: Hashes, sizes: NDArray[np.int64], n_held_out: int, seed: int) -> Mask:
    """Select whole documents by their hashes, up to `n_held_out` characters in total: at least one, but never all.

    Identical documents stay together.
    """
    unique, which = np.unique(hashes, return_inverse=True)
    sizes = np.bincount(which, weights=sizes).astype(np.int64)  # merge identical documents, adding up their sizes
    chosen, total = np.zeros(len(unique), dtype=bool), 0
    for document in np.argsort(shuffled(unique, seed), kind="stable")[:-1].tolist():
        if total + sizes[document] <= n_held_out:
            chosen[document], total = True, total + int(sizes[document])
        elif total:
            break  # if long documents were skipped, only short ones would be held out
    if not total:
        chosen[np.argmin(sizes)] = True
    return chosen[which]


class Cut(NamedTuple):
    """A position in a text, in characters and in bytes."""

    characters: int
    n_bytes: int  # position in the UTF-8 encoding


BEGINNING = Cut(0, 0)


def tail_position(n_characters: int, fraction: float) -> int:
    """Return the position, in characters, at which the last `fraction` of a document begins."""
    return min(max(1, int(n_characters * (1 - fraction))), n_characters)


def tail_start(chunks: Iterable[str], n_characters: int, fraction: float, start: Cut = BEGINNING) -> Cut:
    """Return where the last `fraction` of a document begins, moved forward to the start of a line.

    If no line starts in the first half of that range, the result is in the middle of a line. `chunks` hold
    the text from `start` onward; `start` must be before `tail_position()`.
    """
    position = tail_position(n_characters, fraction)
    latest = position + (n_characters - position) // 2
    (before, n_bytes), inside = start, None
    for chunk in chunks:
        end = before + len(chunk)
        if end >= position:
            inside = inside or Cut(position, n_bytes + len(chunk[: position - before].encode()))
            newline = chunk.find("\n", max(0, position - 1 - before))
            if newline >= 0 and before + newline + 1 <= latest:
                return Cut(before + newline + 1, n_bytes + len(chunk[: newline + 1].encode()))
            if newline >= 0 or end > latest:
                return inside
        before, n_bytes = end, n_bytes + len(chunk.encode())
    return inside or Cut(before, n_bytes)
