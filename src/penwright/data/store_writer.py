"""A writer of token stores. It streams rows in constant memory, tokenizes in several processes, and can be resumed.

A store appears complete or not at all: until it is complete, its folder has a temporary name.
"""

import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path

import numpy as np
import torch

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
from penwright.storage import CACHE_ADVICE, MOST_IN_SMALL, flush, read_json, write_bytes_atomically
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.chat_template import encode_chunks
from penwright.tokenizers.encoders import Ragged
from penwright.tokenizers.markup import Answer, Markup
from penwright.tokenizers.processes import EncodingProcesses

Cell = str | Iterable[str] | int  # a text, the chunks of a long text (their tokens are concatenated), or a label id

_BATCH_CHARACTERS = 1 << 20
MOST_PROCESSES = 16  # more processes would only wait for the one that reads the rows
FEW = 8  # number of batches of a column that this process tokenizes before it starts other processes
SAVE_EVERY = 128 << 20  # number of characters between two saves of the progress
PROGRESS, UNFINISHED = "progress.json", ".part"  # name of the progress file, and suffix of an unfinished folder
WEEK = 7 * 86_400.0


def write_store(
    folder: Path,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    tokenizer: Tokenizer,
    key: str,
    labels: Sequence[str] = (),
) -> TokenStore:
    """Write a token store. A row has a text for each of `columns`, then an integer for each of `labels`.

    The folder appears only when everything is on disk. If writing a large store is interrupted, the next call with
    the same key resumes it. Raises PenwrightError if it cannot be written.
    """
    with _complete_or_resumable(folder, key) as (unfinished, progress), ExitStack() as files:
        sides = {"target": tokenizer.target}
        share = _n_processes() // max(1, len(columns)) or 1
        text_columns = {
            name: _TextColumn(unfinished, name, sides.get(name, tokenizer), files, progress, share) for name in columns
        }
        label_columns = {name: _LabelColumn(unfinished, name, files, progress) for name in labels}
        writers: list[_TextColumn | _LabelColumn] = [*text_columns.values(), *label_columns.values()]
        progress.synchronize = lambda: [writer.synchronize() for writer in writers]
        for row in islice(rows, progress.n_rows, None):
            only, *others = row
            cells = row if others or isinstance(only, str | int) else [progress.chunks(only)]
            for writer, cell in zip(writers, cells, strict=True):
                writer.add(cell)
            progress.end_row(row)
        written = [file for writer in writers for file in writer.finish()]
        manifest = {
            "version": FORMAT_VERSION,
            "key": key,
            "n_rows": progress.n_rows,
            "columns": {name: column.summary() for name, column in text_columns.items()},
            "labels": list(labels),
            "files": {file.path.name: {"size": file.size, "sha256": file.hash.hexdigest()} for file in written},
        }
        description = _File(unfinished / "store.json", files)
        description.write(json.dumps({**manifest, "checksum": checksum(manifest)}, indent=2).encode("utf-8"))
        description.close()
    return open_store(folder)


def _n_processes() -> int:
    """Return the number of tokenizing processes: one per training thread on this machine, up to MOST_PROCESSES."""
    return min(MOST_PROCESSES, torch.get_num_threads() * int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class _Saved:
    """The progress of a store, saved every SAVE_EVERY characters, so that writing can be resumed."""

    def __init__(self, folder: Path, key: str) -> None:
        self.path, self.key = folder / PROGRESS, key
        self.n_rows = self.n_chunks = 0  # numbers of complete rows, and of chunks of the row in progress
        self.sizes: dict[str, int] = {}  # size of each file, in bytes
        self.counts: dict[str, tuple[int, int]] = {}  # numbers of tokens and UTF-8 bytes in each column
        self.synchronize: Callable[[], object] = lambda: None  # writes buffered data; updates `sizes` and `counts`
        self._n_unsaved = 0
        with suppress(OSError, ValueError, KeyError, TypeError):
            saved = read_json(self.path, MOST_IN_SMALL)
            if saved["key"] == key and all((folder / name).stat().st_size >= n for name, n in saved["sizes"].items()):
                self.n_rows, self.n_chunks = int(saved["n_rows"]), int(saved["n_chunks"])
                self.sizes, self.counts = saved["sizes"], saved["counts"]

    def chunks(self, chunks: Iterable[str]) -> Iterator[str]:
        """Yield the chunks that are not yet written. A chunk counts as written when the next one is requested."""
        for chunk in islice(chunks, self.n_chunks, None):
            yield chunk
            self.n_chunks += 1
            self._count(len(chunk))

    def end_row(self, row: Sequence[Cell]) -> None:
        """Record that a row has been written."""
        self.n_rows, self.n_chunks = self.n_rows + 1, 0
        self._count(1 + sum(len(cell) for cell in row if isinstance(cell, str)))

    def _count(self, n_characters: int) -> None:
        self._n_unsaved += n_characters
        if self._n_unsaved >= SAVE_EVERY:
            self._n_unsaved = 0
            self.synchronize()
            parts = ("key", "n_rows", "n_chunks", "sizes", "counts")
            write_bytes_atomically(self.path, json.dumps({part: getattr(self, part) for part in parts}).encode())


class _File:
    """A file that is hashed while it is written. If `progress` records a size for it, writing resumes there."""

    def __init__(self, path: Path, files: ExitStack, progress: _Saved | None = None) -> None:
        self.path, self.hash = path, hashlib.sha256()
        self.size = progress.sizes.get(path.name, 0) if progress else 0
        self._file = files.enter_context(path.open("r+b" if self.size else "wb"))
        self._file.truncate(self.size)
        while self._file.tell() < self.size:
            self.hash.update(self._file.read(min(1 << 20, self.size - self._file.tell())))

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self.hash.update(content)
        self.size += len(content)

    def synchronize(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self.synchronize()
        self._file.close()


class _TextColumn:
    """A writer of a text column. It tokenizes many texts at once, and long columns in several processes."""

    def __init__(
        self, folder: Path, name: str, tokenizer: Tokenizer, files: ExitStack, progress: _Saved, n_processes: int
    ) -> None:
        self._tokenizer, self._name, self._on_exit, self._progress = tokenizer, name, files, progress
        self._tokens = _File(folder / tokens_file(name), files, progress)
        self._offsets = _File(folder / offsets_file(name), files, progress)
        if not self._offsets.size:
            self._offsets.write(np.zeros(1, np.int64).tobytes())
        self._n_tokens, self._n_bytes = progress.counts.get(name, (0, 0))
        self._chunks: list[str | tuple[str, ...]] = []  # all pieces of a conversation form a single chunk
        self._row_ends: list[int] = []  # for each row, the number of chunks up to its end
        self._n_waiting = self._n_batches = 0
        self._n_processes = n_processes
        self._processes: EncodingProcesses | None = None
        # For each batch in progress: its `_row_ends`, its size in UTF-8 bytes, and a future for its tokens.
        self._encoding: deque[tuple[list[int], int, Future[Ragged]]] = deque()

    def add(self, cell: Cell) -> None:
        assert not isinstance(cell, int), "expected a text, not a label"
        chunks: Iterable[str | tuple[str, ...]] = cell
        if isinstance(cell, str) or (isinstance(cell, tuple) and isinstance(cell[-1], Answer | Markup)):
            chunks = [cell]
        for chunk in chunks:
            self._chunks.append(chunk)
            self._n_waiting += len(chunk) if isinstance(chunk, str) else sum(map(len, chunk))
            if self._n_waiting >= _BATCH_CHARACTERS:
                self._flush()
        self._row_ends.append(len(self._chunks))
        self._n_waiting += 1  # count empty texts too; otherwise, they could pile up in memory

    def synchronize(self) -> None:
        self._flush()
        while self._encoding:
            self._write_oldest()
        for file in (self._tokens, self._offsets):
            file.synchronize()
            self._progress.sizes[file.path.name] = file.size
        self._progress.counts[self._name] = self._n_tokens, self._n_bytes

    def finish(self) -> tuple[_File, ...]:
        self.synchronize()
        self._tokens.close()
        self._offsets.close()
        return self._tokens, self._offsets

    def summary(self) -> ColumnSummary:
        name = np.dtype(self._tokenizer.dtype).name
        return ColumnSummary(dtype=name, n_tokens=self._n_tokens, n_bytes=self._n_bytes)

    def _flush(self) -> None:
        """Start tokenizing the waiting chunks."""
        encoded = [(c if isinstance(c, str) else "".join(c)).encode("utf-8", "surrogatepass") for c in self._chunks]
        self._encoding.append((self._row_ends, sum(map(len, encoded)), self._encode(encoded)))
        self._chunks, self._row_ends, self._n_waiting = [], [], 0
        if len(self._encoding) > 2 * self._n_processes:
            self._write_oldest()

    def _encode(self, encoded: Sequence[bytes]) -> "Future[Ragged]":
        """Return a future for the tokens of these chunks. Long columns are tokenized in other processes."""
        self._n_batches += 1
        if self._n_processes > 1 and self._n_batches > FEW and all(isinstance(c, str) for c in self._chunks):
            if self._processes is None:
                self._processes = EncodingProcesses(self._tokenizer, self._n_processes)
                self._on_exit.callback(self._processes.close)
            return self._processes.submit(encoded)
        done: Future[Ragged] = Future()
        done.set_result(encode_chunks(self._tokenizer, self._chunks))
        return done

    def _write_oldest(self) -> None:
        row_ends, n_bytes, encoding = self._encoding.popleft()
        tokens, lengths = encoding.result()
        ends = self._n_tokens + np.concatenate([[0], np.cumsum(lengths)])
        self._tokens.write(tokens.tobytes())
        self._offsets.write(ends[row_ends].tobytes())
        self._n_tokens = int(ends[-1])
        self._n_bytes += n_bytes


class _LabelColumn:
    """A writer of a column of label ids."""

    def __init__(self, folder: Path, name: str, files: ExitStack, progress: _Saved) -> None:
        self._file, self._progress = _File(folder / labels_file(name), files, progress), progress

    def add(self, cell: Cell) -> None:
        assert isinstance(cell, int), "expected a label, not a text"
        self._file.write(np.int32(cell).tobytes())

    def synchronize(self) -> None:
        self._file.synchronize()
        self._progress.sizes[self._file.path.name] = self._file.size

    def finish(self) -> tuple[_File, ...]:
        self._file.close()
        return (self._file,)


@contextmanager
def _complete_or_resumable(folder: Path, key: str) -> Iterator[tuple[Path, _Saved]]:
    """Yield an unfinished folder and its progress. On success, the folder is renamed to `folder`.

    On failure, the folder is kept if its progress was saved and the disk is not full; otherwise, it is deleted.
    """
    unfinished = folder.with_name(folder.name + UNFINISHED)
    keeps = False
    try:
        _remove_abandoned(folder.parent)
        unfinished.mkdir(parents=True, exist_ok=True)
        yield unfinished, _Saved(unfinished, key)
        (unfinished / PROGRESS).unlink(missing_ok=True)
        flush(unfinished)
        _rename(unfinished, folder, key)
        flush(folder.parent)
    except OSError as error:
        raise PenwrightError(f"the token store {folder} cannot be written: {error}. {CACHE_ADVICE}") from error
    except BaseException:
        keeps = (unfinished / PROGRESS).exists()
        raise
    finally:
        if not keeps:
            shutil.rmtree(unfinished, ignore_errors=True)


def _rename(unfinished: Path, folder: Path, key: str) -> None:
    """Rename the finished folder, unless another process has already written the same store."""
    try:
        unfinished.replace(folder)
    except OSError:
        if not folder.is_dir() or open_store(folder).key != key:
            raise


def _remove_abandoned(folder: Path) -> None:
    """Delete unfinished stores that have not changed for a week."""
    for abandoned in [*folder.glob(f"*{UNFINISHED}"), *folder.glob("*.tmp-*")]:
        with suppress(OSError):  # another process may be renaming its folder
            if time.time() - max(path.stat().st_mtime for path in (abandoned, *abandoned.iterdir())) > WEEK:
                shutil.rmtree(abandoned, ignore_errors=True)
