"""Members of .zip archives as files, with paths such as `books.zip/one/a.txt`. None is extracted by its own name."""

import zipfile
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path, PurePosixPath

from penwright.errors import PenwrightError

BLOCK = 1 << 20
MOST_MEMBERS = 200_000
MOST_UNPACKED = 8 << 30  # bytes, all members together
MOST_RATIO = 250  # unpacked to packed size; DEFLATE reaches 1,032, but only on pure repetition
LARGE = 64 << 20  # bytes, unpacked; the ratio of smaller archives is not checked
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError, UnicodeError)
NON_DATA_PREFIXES = (
    "readme",
    "license",
    "licence",
    "copying",
    "changelog",
    "manifest",
)  # name prefixes of files without data


def archive_of(path: str | Path) -> Path | None:
    """Return the .zip archive that the path leads into, or None."""
    path = Path(path)
    for parent in path.parents:
        if parent.suffix.lower() == ".zip":
            try:
                return parent if zipfile.is_zipfile(parent) else None
            except OSError:
                return None
    return None


def is_archive(path: str | Path) -> bool:
    """Return whether the path is a .zip archive of files, and not a document in zip format such as .docx."""
    path = Path(path)
    return path.suffix.lower() == ".zip" and path.is_file() and zipfile.is_zipfile(path)


def members(archive: str | Path) -> list[Path]:
    """Return the paths of the visible files in an archive, sorted by name."""
    with open_zip(archive) as opened:
        names = [PurePosixPath(entry.filename) for entry in opened.infolist() if not entry.is_dir()]
    visible = [name for name in names if not any(part.startswith((".", "__MACOSX")) for part in name.parts)]  # nor ".."
    return [Path(archive) / name.relative_to(name.anchor) for name in sorted(set(visible))]


def data_members(archive: str | Path) -> list[Path]:
    """Return the paths of the data files in an archive, without files such as README and LICENSE."""
    return [path for path in members(archive) if not path.name.lower().startswith(NON_DATA_PREFIXES)]


def member_blocks(archive: Path, path: Path) -> Iterator[bytes]:
    """Yield the bytes of one member in blocks. `path` is its path through the archive.

    Raises PenwrightError if the member is missing, damaged or protected by a password.
    """
    name = path.relative_to(archive).as_posix()
    with open_zip(archive) as opened:
        member = next((entry for entry in opened.infolist() if entry.filename.lstrip("/") == name), None)
        if member is None:
            raise PenwrightError(f"{archive} does not contain the file {name}")
        if member.flag_bits & 1:
            raise PenwrightError(f"{path} is protected by a password. Unpack {archive} and pass the folder")
        try:
            with opened.open(member) as file:
                while block := file.read(BLOCK):
                    yield block
        except (*DAMAGE, RuntimeError) as error:
            raise PenwrightError(f"{path} is damaged ({error}). Download or create {archive} again") from None


def open_zip(archive: str | Path | BufferedIOBase, name: str = "") -> zipfile.ZipFile:
    """Open a zip archive, or a document in zip format, and check its sizes. Errors call it `name`.

    Raises PenwrightError if it is damaged, or as large as a zip bomb.
    """
    name = name or str(archive)
    try:
        opened = zipfile.ZipFile(archive)
    except DAMAGE as error:
        raise PenwrightError(f"{name} is damaged or truncated ({error}). Download or save it again") from None
    entries = opened.infolist()
    unpacked, packed = sum(entry.file_size for entry in entries), max(1, sum(entry.compress_size for entry in entries))
    if len(entries) > MOST_MEMBERS or unpacked > MOST_UNPACKED or unpacked > max(LARGE, MOST_RATIO * packed):
        opened.close()
        raise PenwrightError(
            f"{name} looks like a zip bomb: it claims {len(entries):,} files with {unpacked:,} bytes, packed into "
            f"{packed:,} bytes. If you trust it, unpack it and pass the folder"
        )
    return opened
