"""Token stores: ragged columns in memory-mapped files, cached under a hash of all their inputs."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypedDict

import numpy as np
from jaxtyping import Int32, Int64, UInt
from numpy.typing import DTypeLike

from penwright.errors import PenwrightError
from penwright.storage import CACHE_ADVICE, MOST_IN_SMALL, identity_of, locked, read_json, remember, sha256_of

FORMAT_VERSION = 3  # version 2 had spaces after special tokens where transformers has none
LARGE = 256 << 20  # a file of at least this many bytes is verified again only if it has changed


class ColumnSummary(TypedDict):
    """The entry of a column in store.json."""

    dtype: str
    n_tokens: int
    n_bytes: int


@dataclass(frozen=True)
class Column:
    """The token ids of one text per row, without special tokens. `column[row]` is an array of ids."""

    tokens: UInt[np.ndarray, " tokens"]  # the tokens of all rows, concatenated
    offsets: Int64[np.ndarray, " offsets"]  # row i is tokens[offsets[i] : offsets[i + 1]]
    n_bytes: int  # size of the texts in UTF-8 bytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> UInt[np.ndarray, " length"]:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is out of range: the column has {len(self)} rows")
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    @cached_property
    def lengths(self) -> Int64[np.ndarray, " rows"]:
        """Number of tokens in each row."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class TokenStore:
    """A folder of columns with the same number of rows. `key` is a hash of everything that they were computed from."""

    folder: Path
    key: str
    n_rows: int
    columns: Mapping[str, Column]
    labels: Mapping[str, Int32[np.ndarray, " rows"]]
    hashes: Mapping[str, str]  # SHA-256 of each file

    def __len__(self) -> int:
        return self.n_rows

    def column(self, name: str) -> Column:
        """Return the column with this name."""
        return self.columns[name]

    def n_tokens(self, column: str) -> int:
        """Return the number of tokens in a column."""
        return len(self.columns[column].tokens)

    def n_bytes(self, column: str) -> int:
        """Return the size of the texts of a column, in UTF-8 bytes."""
        return self.columns[column].n_bytes

    def verify(self) -> None:
        """Raise PenwrightError if the checksum of a file is wrong. Opening a store checks only the file sizes."""
        for name, expected in self.hashes.items():
            if _sha256(self.folder / name) != expected:
                raise PenwrightError(f"{self.folder / name} is damaged; delete {self.folder} to rebuild it")

    def trust(self) -> None:
        """Record the checksums of large files that were just written, so that verify() need not read them."""
        for name, written in self.hashes.items():
            _sha256(self.folder / name, written)


def _sha256(path: Path, known: str | None = None) -> str:
    """Return the SHA-256 of a file, or `known` if given. For large files, it is cached until the file changes."""
    if path.stat().st_size < LARGE:
        return known or sha256_of(path)
    return str(remember(["sha256", *identity_of(path)], lambda: {"sha256": known or sha256_of(path)})["sha256"])


def store_key(*parts: str) -> str:
    """Return the name of a store: a hash of its inputs (corpus, tokenizer and settings)."""
    return hashlib.sha256(json.dumps([FORMAT_VERSION, *parts]).encode("utf-8")).hexdigest()


def checksum(manifest: Mapping[str, object]) -> str:
    """Return the SHA-256 of the content of store.json without the checksum entry."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode("utf-8")).hexdigest()


def cached_store(cache_folder: Path, key: str, build: Callable[[Path], object]) -> TokenStore:
    """Open the store with this key. If it is missing or damaged, `build` first writes it to the folder.

    If another process is writing the store, wait for it. If that process is killed, this process completes the store.
    """
    folder = cache_folder / key
    if store := _sound_store(folder, key):
        return store
    try:
        with locked(cache_folder / f"{key}.lock"):
            if not (store := _sound_store(folder, key)):
                shutil.rmtree(folder, ignore_errors=True)
                build(folder)
                store = open_store(folder)
                store.trust()
    except OSError as error:
        raise PenwrightError(f"the token store {folder} cannot be written: {error}. {CACHE_ADVICE}") from error
    return store


def _sound_store(folder: Path, key: str) -> TokenStore | None:
    """Return the store in this folder; None if it is missing or damaged, or if it has another key."""
    try:
        store = open_store(folder)
        store.verify()
    except PenwrightError:
        return None
    return store if store.key == key else None


def open_store(folder: Path) -> TokenStore:
    """Map a store into memory. Raises PenwrightError if files are missing, damaged or of another version."""
    try:
        manifest = read_json(folder / "store.json", MOST_IN_SMALL)
        if manifest["version"] != FORMAT_VERSION:
            raise PenwrightError(
                f"the token store {folder} has format {manifest['version']}, not {FORMAT_VERSION}; "
                "delete it to rebuild it"
            )
        if manifest.pop("checksum") != checksum(manifest):
            raise PenwrightError(f"{folder / 'store.json'} is damaged; delete {folder} to rebuild it")
        for name, file in manifest["files"].items():
            if (folder / name).stat().st_size != file["size"]:
                raise PenwrightError(
                    f"{folder / name} is damaged: its size is not {file['size']:,} bytes; delete {folder} to rebuild it"
                )
        return TokenStore(
            folder=folder,
            key=manifest["key"],
            n_rows=manifest["n_rows"],
            columns={name: _open_column(folder, name, column) for name, column in manifest["columns"].items()},
            labels={name: _map(folder / labels_file(name), np.int32) for name in manifest["labels"]},
            hashes={name: file["sha256"] for name, file in manifest["files"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PenwrightError(f"{folder} is not a complete token store: {error}") from error


def _open_column(folder: Path, name: str, summary: ColumnSummary) -> Column:
    tokens = _map(folder / tokens_file(name), summary["dtype"])
    return Column(tokens, _map(folder / offsets_file(name), np.int64), summary["n_bytes"])


def _map(path: Path, dtype: DTypeLike) -> np.ndarray:
    if path.stat().st_size == 0:  # an empty file cannot be memory-mapped
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")


def tokens_file(column: str) -> str:
    """Return the name of the file with the tokens of a column."""
    return f"{column}.tokens.bin"


def offsets_file(column: str) -> str:
    """Return the name of the file with the offsets of a column."""
    return f"{column}.offsets.bin"


def labels_file(column: str) -> str:
    """Return the name of the file that stores this column of labels."""
    return f"{column}.labels.bin"
