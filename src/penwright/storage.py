"""Reading and writing files of folders that may come from strangers: no link is followed, no device or huge file read.

A run folder is data: it may be downloaded, unpacked or damaged. What is read from it is a plain file of a bounded size,
and what is written or deleted lies in the folder itself.
"""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic_ns
from typing import Any

from penwright.errors import PenwrightError

MOST = 256 << 20  # bytes of a file that is read whole
MOST_IN_SMALL = 16 << 20  # bytes of a file that is never large, such as a recipe
_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class UnsafeFile(PenwrightError):
    """A part of a folder that is not read, written or deleted: a link, a device, a pipe, or a file much too large."""


def require_plain(path: Path) -> None:
    """Raise UnsafeFile if the path is a symbolic link, or neither a file nor a folder. It may be missing."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        raise UnsafeFile(
            f"{path} is a symbolic link to {os.readlink(path)}. Penwright follows no links inside a run folder. "
            "Delete the link, or put what it points to in its place"
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UnsafeFile(f"{path} is a pipe, a socket or a device, where a file belongs. Delete it")


def is_real_folder(path: Path) -> bool:
    """Whether the path is a folder, and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def open_plain(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a plain file without following a link, waiting for a pipe or truncating; return its descriptor."""
    require_plain(path)
    descriptor = os.open(path, flags | _SAFELY, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafeFile(f"{path} is not a file, where one belongs. Delete it")
    return descriptor


def read_bytes(path: Path, most: int = MOST) -> bytes:
    """The content of a plain file; raises UnsafeFile if it has more than `most` bytes, OSError if it cannot be read."""
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UnsafeFile(f"{path} has {size:,} bytes, far more than such a file can have ({most:,}). Delete it")
        return file.read(most)


def read_json(path: Path, most: int = MOST) -> dict[str, Any]:
    """A JSON object; raises ValueError if the file holds something else, OSError or UnsafeFile as read_bytes()."""
    return parse_json(read_bytes(path, most))


def parse_json(content: bytes) -> dict[str, Any]:
    """A JSON object from its text; raises ValueError for anything else."""
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it holds no JSON object")
    return found


def sha256_of(path: Path) -> str:
    """The SHA-256 of a plain file, as hexadecimal digits."""
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, content: str) -> None:
    """Replace a file's content as a whole: after a kill or on a full disk the old content is still there."""
    try:
        write_bytes_atomically(path, content.encode())
    except UnicodeEncodeError as error:  # such as the name of a file that was chosen by name
        what = error.object[error.start : error.end]
        raise PenwrightError(f"{path} could not be written: {what!a} in it cannot be saved as UTF-8") from None
    except OSError as error:
        raise PenwrightError(f"{path} could not be written: {error}") from None


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Replace a file's content as a whole; raises OSError if that fails. A link there is replaced, not followed."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    temporary.unlink(missing_ok=True)  # what a killed process of the same number left, or a link that lies in wait
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, 0o666)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def saving(final: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `final` when the block ends well; otherwise leave nothing behind.

    Raises OSError, or UnsafeFile if a link stands where the folder belongs.
    """
    require_plain(final)
    for left_over in temporaries_of(final):
        remove_folder(left_over)
    folder = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        yield folder
        for path in folder.iterdir():
            let_others_read(path)
            flush(path)
        flush(folder)
        remove_folder(final)
        folder.replace(final)
        flush(final.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def temporaries_of(final: Path) -> list[Path]:
    """The unfinished folders that saving() left when it was killed."""
    start = f"{final.name}.tmp-"
    return [path for path in final.parent.glob("*.tmp-*") if path.name.startswith(start) and is_temporary(path)]


def is_temporary(path: Path) -> bool:
    """Whether this is an unfinished folder of saving(), by its name and by what it is."""
    number = path.name.rpartition(".tmp-")[2]
    return number.isascii() and number.isdigit() and is_real_folder(path)


def remove_folder(folder: Path) -> None:
    """Delete a folder: others see the whole of it or nothing. A link is left as it is, and so is what it points to."""
    if not is_real_folder(folder):
        return
    dying = folder
    if not is_temporary(folder):
        dying = folder.with_name(f"{folder.name}.tmp-{os.getpid()}{monotonic_ns()}")
        folder.replace(dying)
    shutil.rmtree(dying)


def let_others_read(path: Path) -> None:
    """Give a file the mode that this user's other files have: what safetensors writes is for nobody else."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def flush(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
