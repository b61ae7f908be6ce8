"""Tokens on disk: ragged columns in memory-mapped files, found again by a key of all they were made of."""

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
from penwright.storage import MOST_IN_SMALL, read_json

FORMAT_VERSION = 2  # 1 had no checksum of store.json


class ColumnSummary(TypedDict):
    """What store.json says of a column."""

    dtype: str
    n_tokens: int
    n_bytes: int


@dataclass(frozen=True)
class Column:
    """The token ids of one text per row, without special tokens: column[row] is an array of ids."""

    tokens: UInt[np.ndarray, " tokens"]  # those of all rows, one after another
    offsets: Int64[np.ndarray, " offsets"]  # row i is tokens[offsets[i] : offsets[i + 1]]
    n_bytes: int  # of the texts in UTF-8

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> UInt[np.ndarray, " length"]:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    @cached_property
    def lengths(self) -> Int64[np.ndarray, " rows"]:
        return np.diff(self.offsets)


@dataclass(frozen=True)
class TokenStore:
    """A folder of columns with the same number of rows; `key` says what they were made of."""

    folder: Path
    key: str
    n_rows: int
    columns: Mapping[str, Column]
    labels: Mapping[str, Int32[np.ndarray, " rows"]]
    hashes: Mapping[str, str]  # SHA-256 of each file

    def __len__(self) -> int:
        return self.n_rows

    def column(self, name: str) -> Column:
        return self.columns[name]

    def n_tokens(self, column: str) -> int:
        return len(self.columns[column].tokens)

    def n_bytes(self, column: str) -> int:
        return self.columns[column].n_bytes

    def verify(self) -> None:
        """Read every file and raise PenwrightError for one that has changed; opening checks only the sizes."""
        for name, expected in self.hashes.items():
            with (self.folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    raise PenwrightError(f"{self.folder / name} is damaged; delete {self.folder}, and it is made anew")


def store_key(*parts: str) -> str:
    """A name for a store from all it depends on: the hashes of the corpus and of the tokenizer, settings and so on."""
    return hashlib.sha256(json.dumps([FORMAT_VERSION, *parts]).encode("utf-8")).hexdigest()


def checksum(manifest: Mapping[str, object]) -> str:
    """The SHA-256 of what store.json says, its own checksum left out."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode("utf-8")).hexdigest()


def cached_store(cache_folder: Path, key: str, build: Callable[[Path], object]) -> TokenStore:
    """Open the store of this key; if it is missing or damaged, `build` writes it to the folder it is given."""
    folder = cache_folder / key
    if folder.exists():  # else another process may be making it just now
        try:
            store = open_store(folder)
            if store.key == key:  # else a folder with a wrong name
                store.verify()
                return store
            shutil.rmtree(folder, ignore_errors=True)
        except PenwrightError:
            shutil.rmtree(folder, ignore_errors=True)
    build(folder)
    return open_store(folder)


def open_store(folder: Path) -> TokenStore:
    """Map the files into memory; raises PenwrightError when some are missing, damaged or of another version."""
    try:
        manifest = read_json(folder / "store.json", MOST_IN_SMALL)
        if manifest["version"] != FORMAT_VERSION:
            raise PenwrightError(
                f"the token store {folder} has format {manifest['version']}, not {FORMAT_VERSION}; "
                "delete it, and it is made anew"
            )
        if manifest.pop("checksum") != checksum(manifest):
            raise PenwrightError(f"{folder / 'store.json'} is damaged; delete {folder}, and it is made anew")
        for name, file in manifest["files"].items():
            if (folder / name).stat().st_size != file["size"]:
                raise PenwrightError(
                    f"{folder / name} is damaged: it does not have {file['size']:,} bytes; "
                    f"delete {folder}, and it is made anew"
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
        raise PenwrightError(f"{folder} holds no complete token store: {error}") from error


def _open_column(folder: Path, name: str, summary: ColumnSummary) -> Column:
    tokens = _map(folder / tokens_file(name), summary["dtype"])
    return Column(tokens, _map(folder / offsets_file(name), np.int64), summary["n_bytes"])


def _map(path: Path, dtype: DTypeLike) -> np.ndarray:
    if path.stat().st_size == 0:  # nothing that could be mapped
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")


def tokens_file(column: str) -> str:
    return f"{column}.tokens.bin"


def offsets_file(column: str) -> str:
    return f"{column}.offsets.bin"


def labels_file(column: str) -> str:
    return f"{column}.labels.bin"
