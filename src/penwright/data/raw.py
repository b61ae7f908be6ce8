"""The bytes of files, with .gz unpacked, and temporary copies of pipes, archive members and extracted text."""

import atexit
import gzip
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from io import BufferedIOBase
from pathlib import Path

from penwright.data.paths import STANDARD_INPUT, existing_file
from penwright.data.readers.archives import archive_of, member_blocks
from penwright.errors import PenwrightError

BLOCK = 1 << 20  # bytes read at a time
GZIP = b"\x1f\x8b"
MOST_COPIED = 16 << 30  # bytes of one temporary copy
_copies: dict[object, Path] = {}


def stored_file(path: str | Path) -> Path:
    """Return the file with the bytes of `path`: the file itself, or a copy of a pipe or an archive member.

    A pipe can be read only once, so its copy is kept until the process ends.
    """
    path = Path(path)
    if _is_pipe(path):
        return copy_once(("pipe", str(path)), str(path), lambda: _blocks_of_pipe(path))
    archive = archive_of(path)
    if archive:
        return copy_once(("member", str(path), *state_of(archive)), str(path), lambda: member_blocks(archive, path))
    return existing_file(path)


def state_of(path: Path) -> tuple[int, int]:
    """Return the size and the modification time of a file, which change when the file does."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def copy_once(key: object, name: str, blocks: Callable[[], Iterable[bytes]]) -> Path:
    """Return a temporary file with these blocks. The same key returns the same file. Errors call it `name`."""
    if key in _copies:
        return _copies[key]
    copy, size = _folder() / str(len(_copies)), 0
    try:
        with open(copy, "wb") as file:
            for block in blocks():
                size += len(block)
                if size > MOST_COPIED:
                    raise PenwrightError(
                        f"{name} has more than {MOST_COPIED >> 30} GiB; save it as a file and name that file"
                    )
                file.write(block)
    except OSError as error:
        raise PenwrightError(
            f"{name} cannot be copied to {copy.parent}: {error.strerror or error}. "
            "Set TMPDIR to a folder with enough space, or save it as a file and name that file"
        ) from None
    _copies[key] = copy
    return copy


def open_raw(path: str | Path) -> BufferedIOBase:
    """Open the unpacked bytes of a file, which the caller closes. Reading a damaged .gz raises OSError or EOFError."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == GZIP
        return gzip.open(path, "rb") if packed else open(path, "rb")
    except OSError as error:
        raise PenwrightError(f"{path} cannot be read: {error.strerror or error}") from None


def raw_blocks(path: Path, name: str, size: int = BLOCK) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file in blocks of this size. Errors call it `name`."""
    try:
        with open_raw(path) as file:
            while block := file.read(size):
                yield block
    except EOFError:
        raise PenwrightError(f"{name} ends too early (a truncated .gz file); download or compress it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise PenwrightError(f"{name} is a damaged .gz file ({error}); download or compress it again") from None
    except OSError as error:
        raise PenwrightError(f"{name} cannot be read: {error.strerror or error}") from None


def _is_pipe(path: Path) -> bool:
    """Return whether the path is standard input, a pipe, a socket or a character device."""
    if str(path) == STANDARD_INPUT:
        return True
    try:
        mode = path.stat().st_mode
    except OSError:  # existing_file() reports what is wrong
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


def _blocks_of_pipe(path: Path) -> Iterator[bytes]:
    """Yield the content of a pipe. `-` is standard input."""
    if str(path) == STANDARD_INPUT and (sys.stdin is None or sys.stdin.isatty()):
        raise PenwrightError(f"{path} stands for standard input, which has no data; pipe the text in, or give a file")
    try:
        with open(os.dup(0) if str(path) == STANDARD_INPUT else path, "rb") as pipe:
            while block := pipe.read(BLOCK):
                yield block
    except OSError as error:
        raise PenwrightError(f"{path} cannot be read: {error.strerror}; give a file, or pipe the text in") from None


@cache
def _folder() -> Path:
    """Return this process's folder for copies, private to its user and deleted when the process ends."""
    folder, owner = Path(tempfile.mkdtemp(prefix="penwright-")), os.getpid()

    def delete() -> None:
        if os.getpid() == owner:  # not in a forked copy of the process
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(delete)
    return folder
