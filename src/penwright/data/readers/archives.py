"""Members of .zip archives as files: `books.zip/one/a.txt` is a path like any other. None is unpacked by its name."""

import zipfile
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path, PurePosixPath

from penwright.errors import PenwrightError

BLOCK = 1 << 20
MOST_MEMBERS = 200_000
MOST_UNPACKED = 8 << 30  # bytes of all members together
MOST_RATIO = 250  # unpacked to packed, of what is large; DEFLATE reaches 1,032 on nothing but repetitions
LARGE = 64 << 20
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError, UnicodeError)
APART = ("readme", "license", "licence", "copying", "changelog", "manifest")  # what archives hold beside their data


def archive_of(path: str | Path) -> Path | None:
    """Return the .zip archive that this path leads into; None for other paths."""
    path = Path(path)
    for parent in path.parents:
        if parent.suffix.lower() == ".zip":
            try:
                return parent if zipfile.is_zipfile(parent) else None
            except OSError:
                return None
    return None


def is_archive(path: str | Path) -> bool:
    """Whether a .zip archive of files stands there, and not a document that is packed like one."""
    path = Path(path)
    return path.suffix.lower() == ".zip" and path.is_file() and zipfile.is_zipfile(path)


def members(archive: str | Path) -> list[Path]:
    """Return the visible files of an archive as paths, in the order of their names."""
    with open_zip(archive) as opened:
        names = [PurePosixPath(each.filename) for each in opened.infolist() if not each.is_dir()]
    visible = [name for name in names if not any(part.startswith((".", "__MACOSX")) for part in name.parts)]  # nor ".."
    return [Path(archive) / name.relative_to(name.anchor) for name in sorted(set(visible))]


def data_members(archive: str | Path) -> list[Path]:
    """Return the members of an archive without those that tell of it (README, LICENSE)."""
    return [path for path in members(archive) if not path.name.lower().startswith(APART)]


def member_blocks(archive: Path, path: Path) -> Iterator[bytes]:
    """Yield the bytes of one member, named by its path through the archive."""
    name = path.relative_to(archive).as_posix()
    with open_zip(archive) as opened:
        found = next((each for each in opened.infolist() if each.filename.lstrip("/") == name), None)
        if found is None:
            raise PenwrightError(f"{archive} holds no file {name}")
        if found.flag_bits & 1:
            raise PenwrightError(f"{path} is protected by a password; unpack {archive} and give the folder")
        try:
            with opened.open(found) as file:
                while block := file.read(BLOCK):
                    yield block
        except (*DAMAGE, RuntimeError) as error:
            raise PenwrightError(f"{path} is damaged ({error}); fetch or pack {archive} again") from None


def open_zip(archive: str | Path | BufferedIOBase, name: str = "") -> zipfile.ZipFile:
    """Open an archive, or a document packed as one, after its sizes were checked; errors call it `name`."""
    name = name or str(archive)
    try:
        opened = zipfile.ZipFile(archive)
    except DAMAGE as error:
        raise PenwrightError(f"{name} is damaged or cut off ({error}); fetch or save it again") from None
    entries = opened.infolist()
    unpacked, packed = sum(each.file_size for each in entries), max(1, sum(each.compress_size for each in entries))
    if len(entries) > MOST_MEMBERS or unpacked > MOST_UNPACKED or unpacked > max(LARGE, MOST_RATIO * packed):
        opened.close()
        raise PenwrightError(
            f"{name} is refused: it claims {len(entries):,} files of {unpacked:,} bytes in {packed:,} packed ones, "
            "as a zip bomb does. If you trust it, unpack it and give the folder"
        )
    return opened
