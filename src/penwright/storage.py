"""Safe access to files in untrusted folders: no links are followed, and no devices or huge files are read.

A run folder may come from a download or an archive, or be damaged. Only plain files of bounded size are read, and
only files inside the folder itself are written or deleted.
"""

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic_ns
from typing import Any, Literal

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]  # Windows has no such module

from penwright.errors import PenwrightError

MAX_BYTES = 256 << 20  # maximum size of a file that is read into memory, in bytes
MOST_IN_SMALL = 16 << 20  # maximum size of a small file (recipes, manifests, ...), in bytes
TEMPORARY = re.compile(r".+\.tmp-\d+", re.ASCII)  # name of a file or folder that is still being written
CACHE_ADVICE = "Set PENWRIGHT_CACHE to a folder that you can write to."
_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class UnsafeFile(PenwrightError):
    """An error for a link, a device, a pipe or an oversized file. Penwright never reads, writes or deletes these."""


def require_plain(path: Path) -> None:
    """Raise UnsafeFile if the path is a symbolic link, or neither a file nor a folder. A missing path is accepted."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        raise UnsafeFile(
            f"{path} is a symbolic link to {os.readlink(path)}. Penwright does not follow links in a run folder. "
            "Delete the link, or replace it with its target"
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UnsafeFile(f"{path} is a pipe, a socket or a device, not a file. Delete it")


def is_real_folder(path: Path) -> bool:
    """Return whether the path is a folder, and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def open_plain(path: Path, flags: int) -> int:
    """Open a plain file and return its descriptor; never follow a link, block on a pipe, or truncate."""
    require_plain(path)
    descriptor = os.open(path, flags | _SAFELY, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafeFile(f"{path} is not a plain file. Delete it")
    return descriptor


def read_bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """Return the content of a plain file.

    Raises UnsafeFile if the file is larger than `most` bytes, and OSError if it cannot be read.
    """
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UnsafeFile(f"{path} has {size:,} bytes, but at most {most:,} are allowed. Delete it")
        return file.read(most)


def read_json(path: Path, most: int = MAX_BYTES) -> dict[str, Any]:
    """Read a JSON object from a plain file.

    Raises ValueError for any other content, and the same errors as read_bytes().
    """
    return parse_json(read_bytes(path, most))


def parse_json(content: bytes) -> dict[str, Any]:
    """Parse a JSON object; raise ValueError for anything else."""
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError("the brackets are nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("the content is not a JSON object")
    return value


def to_json(value: dict[str, Any], indent: int | None = None) -> str:
    """Return JSON with non-ASCII characters unescaped, unless a file name in it is not valid UTF-8."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a plain file in hexadecimal."""
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, content: str) -> None:
    """Replace the content of a file atomically. If the process is killed or the disk is full, the old content stays.

    Raises PenwrightError if the content cannot be written.
    """
    try:
        write_bytes_atomically(path, content.encode())
    except UnicodeEncodeError as error:  # raised, for example, if the content includes a file name that is not UTF-8
        what = error.object[error.start : error.end]
        raise PenwrightError(f"{path} could not be written: the text {what!a} cannot be saved as UTF-8") from None
    except OSError as error:
        raise PenwrightError(f"{path} could not be written: {error}") from None


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically; raise OSError on failure. A link is replaced, not followed."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    temporary.unlink(missing_ok=True)  # a leftover of a killed process with the same PID, or a planted link
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


def write_output(path: Path, content: bytes) -> None:
    """Write a file that the user named, or raise PenwrightError. Links, pipes and devices are not replaced."""
    is_special = path.is_symlink() or (path.exists() and not path.is_file())  # such as /dev/stdout
    try:
        (Path.write_bytes if is_special else write_bytes_atomically)(path, content)
    except OSError as error:
        raise PenwrightError(f"{path} could not be written: {error.strerror or error}") from None


@contextmanager
def saving(final: Path, *, is_locked: bool = True) -> Iterator[Path]:
    """Yield a temporary folder that becomes `final` if the block succeeds, and is deleted if it fails.

    If no other process can save here (`is_locked`), folders that killed processes left behind are deleted.

    Raises OSError, or UnsafeFile if `final` is a link.
    """
    require_plain(final)
    for left_over in temporaries_of(final) if is_locked else ():
        remove_folder(left_over)
    folder = final.parent / f"{final.name}.tmp-{os.getpid()}{'' if is_locked else monotonic_ns()}"
    folder.mkdir(parents=True)
    try:
        yield folder
        publish(folder, final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, final: Path) -> None:
    """Wait until all files of a temporary folder are on disk, then rename it to `final`."""
    for path in folder.rglob("*"):
        if not path.is_dir():
            let_others_read(path)
        flush(path)
    flush(folder)
    remove_folder(final)
    folder.replace(final)
    flush(final.parent)


def temporaries_of(final: Path) -> list[Path]:
    """Return the temporary folders that saving() left behind when the process was killed."""
    start = f"{final.name}.tmp-"
    return [path for path in final.parent.glob("*.tmp-*") if path.name.startswith(start) and is_temporary(path)]


def is_temporary(path: Path) -> bool:
    """Return whether the path is a temporary folder of saving(): a real folder named *.tmp-NUMBER."""
    return TEMPORARY.fullmatch(path.name) is not None and is_real_folder(path)


def remove_folder(folder: Path) -> None:
    """Delete a folder atomically: other processes see all of it or none of it.

    A link to a folder is not deleted, and neither are the targets of links inside the folder.
    """
    if not is_real_folder(folder):
        return
    doomed = folder
    if not is_temporary(folder):
        doomed = folder.parent / f"{folder.name}.tmp-{os.getpid()}{monotonic_ns()}"
        folder.replace(doomed)
    shutil.rmtree(doomed)


def let_others_read(path: Path) -> None:
    """Give a file the default permissions. safetensors writes files that only their owner can read."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def flush(path: Path) -> None:
    """Wait until a file or folder is on disk (fsync). Otherwise, a power failure can lose the entries of a folder."""
    if os.name != "posix":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for a lock, and hold it within the block. The system releases the lock if the process is killed.

    The lock file is deleted afterwards. On Windows, and on file systems without locks, nothing is locked.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(open_plain(path, os.O_RDWR | os.O_CREAT), "rb") as file:
            if fcntl is not None:
                with suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_EX)
            try:
                if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    continue
            except FileNotFoundError:  # the previous holder of the lock has deleted the file
                continue
            try:
                yield
            finally:
                with suppress(OSError):  # Windows cannot delete open files
                    path.unlink()
            return


def identity_of(path: Path) -> list[str | int]:
    """Return values that change if a file is replaced or written to: its real path, inode, size and times."""
    status = path.stat()
    return [os.path.realpath(path), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def remember(key: Sequence[object], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON object for this key, from the cache if possible. Otherwise, call `make` to create it."""
    path: Path | None = None
    with suppress(OSError, ValueError, PenwrightError):
        path = cache_folder("facts") / f"{hashlib.sha256(json.dumps(key).encode('utf-8', 'replace')).hexdigest()}.json"
        return read_json(path)
    value = make()
    if path is not None:
        with suppress(OSError, UnicodeEncodeError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes_atomically(path, json.dumps(value).encode())
    return value


def cache_folder(of: Literal["tokens", "compiled", "vectors", "facts"]) -> Path:
    """Return a subfolder of the cache (PENWRIGHT_CACHE or ~/.cache/penwright), which may be deleted at any time.

    Raises PenwrightError if PENWRIGHT_CACHE is not set and there is no home folder.
    """
    chosen = os.environ.get("PENWRIGHT_CACHE")
    try:
        return (Path(chosen) if chosen else Path.home() / ".cache" / "penwright") / of
    except RuntimeError:
        raise PenwrightError(f"There is no home folder for the cache. {CACHE_ADVICE}") from None


def require_writable_cache() -> None:
    """Raise PenwrightError unless the cache is writable. Call this before work that would otherwise be lost."""
    for folder in (cache_folder("tokens"), cache_folder("compiled"), cache_folder("vectors")):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder) as file:
                file.write(bytes(4096))  # raises OSError if the disk is full
        except OSError as error:
            raise PenwrightError(
                f"The cache folder {folder} is not writable: {error.strerror}. {CACHE_ADVICE}"
            ) from None
