"""Writer of token stores: streams rows in constant memory. A store appears complete or not at all."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from penwright.data.store import (
    FORMAT_VERSION,
    ColumnSummary,
    TokenStore,
    checksum,
    labels_file,
    offsets_file,
    open_store,
    tokens_file,
)
from penwright.errors import PenwrightError
from penwright.storage import CACHE_ADVICE, flush
from penwright.tokenizers import Tokenizer

Cell = str | Iterable[str] | int
"""A text, the chunks of a long text (their tokens are concatenated), or a label id."""

_BATCH_CHARACTERS = 1 << 20
_DAY = 86_400.0


def write_store(
    folder: Path,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    tokenizer: Tokenizer,
    key: str,
    labels: Sequence[str] = (),
) -> TokenStore:
    """Write a token store. A row has a text for each of `columns`, then an integer for each of `labels`.

    The folder appears only when everything is on disk. Raises PenwrightError if it cannot be written.
    """
    with _complete_or_absent(folder, key) as unfinished, ExitStack() as files:
        sides = {"target": tokenizer.target}
        text_columns = {name: _TextColumn(unfinished, name, sides.get(name, tokenizer), files) for name in columns}
        label_columns = {name: _LabelColumn(unfinished, name, files) for name in labels}
        writers: list[_TextColumn | _LabelColumn] = [*text_columns.values(), *label_columns.values()]
        n_rows = 0
        for row in rows:
            for writer, cell in zip(writers, row, strict=True):
                writer.add(cell)
            n_rows += 1
        written = [file for writer in writers for file in writer.finish()]
        manifest = {
            "version": FORMAT_VERSION,
            "key": key,
            "n_rows": n_rows,
            "columns": {name: column.summary() for name, column in text_columns.items()},
            "labels": list(labels),
            "files": {file.path.name: {"size": file.size, "sha256": file.hash.hexdigest()} for file in written},
        }
        description = _File(unfinished / "store.json", files)
        whole = {**manifest, "checksum": checksum(manifest)}
        description.write(json.dumps(whole, indent=2).encode("utf-8"))
        description.close()
    return open_store(folder)


class _File:
    """A file that is hashed while it is written."""

    def __init__(self, path: Path, files: ExitStack) -> None:
        self.path = path
        self.size = 0
        self.hash = hashlib.sha256()
        self._file = files.enter_context(path.open("wb"))

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self.hash.update(content)
        self.size += len(content)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class _TextColumn:
    """A writer of a text column. It tokenizes many texts at once."""

    def __init__(self, folder: Path, name: str, tokenizer: Tokenizer, files: ExitStack) -> None:
        self._tokenizer = tokenizer
        self._tokens = _File(folder / tokens_file(name), files)
        self._offsets = _File(folder / offsets_file(name), files)
        self._offsets.write(np.zeros(1, np.int64).tobytes())
        self._n_tokens = self._n_bytes = 0
        self._chunks: list[str] = []
        self._row_ends: list[int] = []  # number of chunks up to the end of each row
        self._n_waiting = 0

    def add(self, cell: Cell) -> None:
        assert not isinstance(cell, int), "expected a text, not a label"
        for chunk in [cell] if isinstance(cell, str) else cell:
            self._chunks.append(chunk)
            self._n_waiting += len(chunk)
            if self._n_waiting >= _BATCH_CHARACTERS:
                self._flush()
        self._row_ends.append(len(self._chunks))
        self._n_waiting += 1  # an empty text counts too, or else very many would accumulate

    def finish(self) -> tuple[_File, ...]:
        self._flush()
        self._tokens.close()
        self._offsets.close()
        return self._tokens, self._offsets

    def summary(self) -> ColumnSummary:
        dtype = np.dtype(self._tokenizer.dtype).name
        return ColumnSummary(dtype=dtype, n_tokens=self._n_tokens, n_bytes=self._n_bytes)

    def _flush(self) -> None:
        tokens, lengths = self._tokenizer.encode_pieces(self._chunks)
        ends = self._n_tokens + np.concatenate([[0], np.cumsum(lengths)])
        self._tokens.write(tokens.tobytes())
        self._offsets.write(ends[self._row_ends].tobytes())
        self._n_tokens = int(ends[-1])
        self._n_bytes += len("".join(self._chunks).encode("utf-8", errors="surrogatepass"))
        self._chunks, self._row_ends, self._n_waiting = [], [], 0


class _LabelColumn:
    """A writer of a column of label ids."""

    def __init__(self, folder: Path, name: str, files: ExitStack) -> None:
        self._file = _File(folder / labels_file(name), files)

    def add(self, cell: Cell) -> None:
        assert isinstance(cell, int), "expected a label, not a text"
        self._file.write(np.int32(cell).tobytes())

    def finish(self) -> tuple[_File, ...]:
        self._file.close()
        return (self._file,)


@contextmanager
def _complete_or_absent(folder: Path, key: str) -> Iterator[Path]:
    """Yield a temporary folder. It is renamed to `folder` on success and deleted on failure, except after SIGKILL."""
    unfinished = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    try:
        _remove_abandoned(folder)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        flush(unfinished)
        _rename(unfinished, folder, key)
        flush(folder.parent)
    except OSError as error:
        raise PenwrightError(f"the token store {folder} cannot be written: {error}. {CACHE_ADVICE}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _rename(unfinished: Path, folder: Path, key: str) -> None:
    """Rename the finished folder, unless another process has already written the same store."""
    try:
        unfinished.replace(folder)
    except OSError:
        if not folder.is_dir() or open_store(folder).key != key:
            raise


def _remove_abandoned(folder: Path) -> None:
    """Delete temporary folders that are more than a day old."""
    for abandoned in folder.parent.glob(f"{folder.name}.tmp-*"):
        with suppress(FileNotFoundError):  # another process may be renaming its folder
            if time.time() - abandoned.stat().st_mtime > _DAY:
                shutil.rmtree(abandoned, ignore_errors=True)
