"""The folder of uploaded texts: names are checked, sizes are limited, and nothing outside the folder is touched."""

import os
import shutil
import time
import unicodedata
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from tempfile import TemporaryFile
from threading import Lock
from typing import BinaryIO

from pydantic import BaseModel

from penwright.data.blocks import GZIP, ZSTD, raw_blocks
from penwright.data.files import format_of
from penwright.data.readers.archives import open_zip
from penwright.errors import PenwrightError, UsageError
from penwright.run.checkpoint_folder import CHECKPOINTS
from penwright.run.folder import LOCK, STOP, STOPPED, TENSORBOARD, Run
from penwright.serving.settings import ServingSettings
from penwright.storage import open_plain, require_plain

FORBIDDEN = set('<>:"|?*[]/\\')  # characters with a special meaning in HTML, glob patterns, paths or on Windows
MAX_NAME = 120  # maximum length of a name, in bytes of UTF-8
PART = ".part"  # suffix of an unfinished upload
ABANDONED = 3600.0  # seconds without a new part after which an unfinished upload may be deleted
CHUNK_BYTES = 1 << 20
NOT_SENT = {LOCK, STOP, STOPPED, TENSORBOARD}  # files of a run that are useless on other machines


class TextFile(BaseModel):
    """An uploaded text."""

    name: str
    bytes: int


def check_name(name: str) -> str:
    """Return the name of a file or a run unchanged. Raises UsageError if it could be a path, an option or HTML."""
    shown = f"the name {name[:40]!a}"
    if not name.strip() or name != name.strip() or name.startswith((".", "-", "~")) or name.endswith("."):
        raise UsageError(f"{shown} is empty, or begins or ends with a character that is not allowed. Rename it")
    bad = next((each for each in name if each in FORBIDDEN or unicodedata.category(each)[0] == "C"), None)
    if bad is not None:
        raise UsageError(f"{shown} contains {bad!a}, which is not allowed. Use letters, digits, spaces, - and _")
    if len(name.encode()) > MAX_NAME:
        raise UsageError(f"{shown} is longer than {MAX_NAME} bytes. Shorten it")
    return name


class TextFolder:
    """The uploaded texts in a folder."""

    def __init__(self, folder: Path, limits: ServingSettings):
        self.folder, self._limits = folder, limits
        self._finishing = Lock()  # held while a finished upload gets its name, so that it replaces no other text
        for path in folder.glob(f".*{PART}"):  # uploads that were interrupted when the page or the server was closed
            path.unlink()

    def listed(self) -> list[TextFile]:
        """List the finished uploads, sorted by name."""
        plain = [(path.name, stat.st_size) for path, stat in self._files() if S_ISREG(stat.st_mode)]
        return [TextFile(name=name, bytes=size) for name, size in sorted(plain) if not name.startswith(".")]

    def used(self) -> int:
        """Return the size of all uploads in bytes, unfinished ones included."""
        return sum(stat.st_size for _, stat in self._files())

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the files in the folder with their status. Files that are just being deleted are left out."""
        for path in self.folder.glob("*"):
            with suppress(FileNotFoundError):
                yield path, path.lstat()

    def path(self, name: str) -> Path:
        """Return the path of an upload. Raises UsageError if there is none."""
        path = self.folder / check_name(name)
        require_plain(path)
        if not path.is_file():
            raise UsageError(f"there is no text '{name}'. Upload it again")
        return path

    def add(self, name: str, offset: int, total: int, data: bytes, ticket: str | None = None) -> int:
        """Add a part of an upload, and return the number of bytes that have arrived.

        Uploads with different tickets are kept apart, even if they have the same name: the first that is complete
        gets it.

        Raises UsageError for a bad name or a part with the wrong offset, and PenwrightError if a limit is exceeded, or
        the finished file is a zip bomb or not text.
        """
        final = self.folder / check_name(name)
        part = self.folder / (f".{name}{PART}" if ticket is None else f".{name}|{ticket}{PART}")
        _require_new(final)
        if offset == 0:
            self._delete_abandoned()
        n_before = part.lstat().st_size if os.path.lexists(part) else 0
        self._require_space(name, total, n_before)
        self.folder.mkdir(parents=True, exist_ok=True)
        if offset == 0:
            part.unlink(missing_ok=True)
        with open(open_plain(part, os.O_WRONLY | os.O_CREAT), "wb" if offset == 0 else "ab") as file:
            here = file.tell() if offset else 0
            if offset != here or offset + len(data) > total:
                raise UsageError(
                    f"{name}: {here:,} bytes have arrived, but this part begins at {offset:,}. Upload the file again"
                )
            file.write(data)
        if offset + len(data) == total:
            try:
                self._require_harmless(part, name)
                format_of(part, name)  # raises NotText for pictures, programs, ...
                with self._finishing:
                    _require_new(final)
                    part.replace(final)
            except BaseException:
                part.unlink()
                raise
        return offset + len(data)

    def delete(self, name: str) -> None:
        """Delete an upload."""
        self.path(name).unlink()

    def _delete_abandoned(self) -> None:
        """Delete unfinished uploads that have got no new part for a long time, to make space for others."""
        for path, stat in self._files():
            if path.name.startswith(".") and path.suffix == PART and time.time() - stat.st_mtime > ABANDONED:
                path.unlink(missing_ok=True)

    def _require_space(self, name: str, total: int, n_before: int) -> None:
        most, folder = self._limits.max_upload_bytes, self._limits.max_text_bytes
        if total > most:
            raise PenwrightError(f"{name} has a size of {total:,} bytes, but the limit is {most:,} (max_upload_bytes)")
        if self.used() - n_before + total > folder:
            raise PenwrightError(
                f"the texts would exceed {folder:,} bytes in total (max_text_bytes). Delete some first"
            )
        require_free_disk(self.folder.parent, total + self._limits.min_free_bytes)

    def _require_harmless(self, path: Path, name: str) -> None:
        """Raise PenwrightError if a compressed file is damaged or unpacks to too many bytes."""
        with path.open("rb") as file:
            is_packed = file.read(4).startswith((GZIP, ZSTD))
            sizes: Iterable[int] = ()
            if zipfile.is_zipfile(file):
                with open_zip(file, name) as archive:
                    sizes = [member.file_size for member in archive.infolist()]
            elif is_packed:
                sizes = map(len, raw_blocks(path, name))
            n_bytes, most = 0, self._limits.max_text_bytes
            for size in sizes:
                n_bytes += size
                if n_bytes > most:
                    raise PenwrightError(f"{name} unpacks to more than {most:,} bytes (max_text_bytes)")


def _require_new(path: Path) -> None:
    if os.path.lexists(path):
        raise UsageError(f"there is already a text '{path.name}'. Delete it first, or rename the new one")


def require_free_disk(folder: Path, n_bytes: int) -> None:
    """Raise PenwrightError if the disk of a folder has fewer than `n_bytes` free bytes."""
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise PenwrightError(
            f"the disk has {free:,} free bytes, but {n_bytes:,} are needed (min_free_bytes). Delete some files"
        )


def zipped(run: Run, folder: Path, min_free_bytes: int) -> BinaryIO:
    """Return a zip archive of a run with its best checkpoint. Other machines can use and resume the run.

    The archive is a temporary file in `folder`. Raises PenwrightError if it would leave too little free disk space.
    """
    best, _ = run.checkpoints.best()
    paths = _parts(run.folder, best.folder)
    require_free_disk(folder, sum(path.lstat().st_size for path in paths) + min_free_bytes)
    archive: BinaryIO = TemporaryFile(dir=folder)  # noqa: SIM115 - the caller closes it
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED, allowZip64=True) as packed:
        for path in paths:
            name = (Path(run.folder.name) / path.relative_to(run.folder)).as_posix()
            with (
                suppress(PenwrightError),  # symbolic links are left out
                open(open_plain(path, os.O_RDONLY), "rb") as file,
                packed.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member,
            ):
                shutil.copyfileobj(file, member, CHUNK_BYTES)
    archive.seek(0)
    return archive


def _parts(folder: Path, checkpoint: Path) -> Sequence[Path]:
    own = [path for path in folder.glob("*") if path.is_file() and path.name not in NOT_SENT]
    return sorted([*own, *(folder / CHECKPOINTS / checkpoint.name).glob("*")])
