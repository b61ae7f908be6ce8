"""A reader of files in blocks, as bytes or text. Unpacks .gz and .zst, copies pipes to disk, and counts corrections."""

import atexit
import codecs
import gzip
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import NamedTuple

from penwright.data.encoding import MIXED, decoder_of
from penwright.data.paths import STANDARD_INPUT, existing_file
from penwright.data.readers.archives import archive_of, member_blocks
from penwright.errors import PenwrightError

BLOCK = 1 << 20  # bytes read at a time
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
MARK_EVERY = 32 << 20  # minimum number of bytes between two marks, the positions from which reading can start
MOST_COPIED = 16 << 30  # maximum size of a temporary copy, in bytes
_copies: dict[object, Path] = {}
MARK = "\ufeff"  # the byte-order mark; dropped only at the start of a file
REPLACEMENT = "\ufffd"
OLD_MAC = 10  # minimum ratio of bare carriage returns to newlines in a file with classic Mac line endings


def stored_file(path: str | Path) -> Path:
    """Return the file with the bytes of `path`: the file itself, or a copy of a pipe or an archive member.

    A pipe can be read only once, so its copy is kept until the process ends.
    """
    path = Path(path)
    if is_pipe(path):
        return copy_once(("pipe", str(path)), str(path), lambda: _blocks_of_pipe(path))
    archive = archive_of(path)
    if archive:
        return copy_once(("member", str(path), *state_of(archive)), str(path), lambda: member_blocks(archive, path))
    return existing_file(path)


def state_of(path: Path) -> tuple[int, int]:
    """Return the size and the modification time of a file, to detect changes."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def copy_once(key: object, name: str, blocks: Callable[[], Iterable[bytes]]) -> Path:
    """Return a temporary file with these blocks. It is written once for each key. `name` is for error messages."""
    if key in _copies:
        return _copies[key]
    copy, size = _folder() / str(len(_copies)), 0
    try:
        with open(copy, "wb") as file:
            for block in blocks():
                size += len(block)
                if size > MOST_COPIED:
                    raise PenwrightError(
                        f"{name} is larger than {MOST_COPIED >> 30} GiB; save it as a file, and pass that file"
                    )
                file.write(block)
    except OSError as error:
        raise PenwrightError(
            f"{name} cannot be copied to {copy.parent}: {error.strerror or error}. "
            "Set TMPDIR to a folder with enough space, or save the data as a file and pass that file"
        ) from None
    _copies[key] = copy
    return copy


def open_raw(path: str | Path) -> BufferedIOBase:
    """Open a file, decompressing .gz and .zst; the caller must close it. A damaged file raises OSError or EOFError."""
    try:
        with open(path, "rb") as file:
            head = file.read(4)
        if head == ZSTD:
            return _open_zstd(path)
        return gzip.open(path, "rb") if head.startswith(GZIP) else open(path, "rb")
    except OSError as error:
        raise PenwrightError(f"{path} cannot be read: {error.strerror or error}") from None


def _open_zstd(path: str | Path) -> BufferedIOBase:
    try:
        from pyarrow import input_stream  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise PenwrightError(
            f"{path} is compressed with zstd, which needs the library pyarrow. Install it: "
            "pip install 'penwright[hub]'. Or unpack the file"
        ) from None
    return BufferedReader(input_stream(str(path), compression="zstd"))


def raw_blocks(path: Path, name: str, size: int = BLOCK, begin: int = 0) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file in blocks of this size, from offset `begin`. `name` is for error messages."""
    try:
        with open_raw(path) as file:
            if file.seekable():
                file.seek(begin)
            while not file.seekable() and begin > 0 and (skipped := file.read(min(size, begin))):
                begin -= len(skipped)
            while block := file.read(size):
                yield block
    except EOFError:
        raise PenwrightError(f"{name} ends too early (a truncated .gz file); download or compress it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise PenwrightError(f"{name} is a damaged .gz file ({error}); download or compress it again") from None
    except OSError as error:
        raise PenwrightError(f"{name} cannot be read: {error.strerror or error}") from None


def is_pipe(path: Path) -> bool:
    """Return whether the path is standard input, a pipe, a socket or a character device."""
    if str(path) == STANDARD_INPUT:
        return True
    try:
        mode = path.stat().st_mode
    except OSError:  # existing_file() reports the error
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


def _blocks_of_pipe(path: Path) -> Iterator[bytes]:
    """Yield the content of a pipe. `-` is standard input."""
    if str(path) == STANDARD_INPUT and (sys.stdin is None or sys.stdin.isatty()):
        raise PenwrightError(f"{path} means standard input, which has no data; pipe the text in, or pass a file")
    try:
        with open(os.dup(0) if str(path) == STANDARD_INPUT else path, "rb") as pipe:
            while block := pipe.read(BLOCK):
                yield block
    except OSError as error:
        raise PenwrightError(f"{path} cannot be read: {error.strerror}; pass a file, or pipe the text in") from None


@cache
def _folder() -> Path:
    """Return this process's folder for temporary copies. Only the user can read it, and it is deleted at exit."""
    folder, owner = Path(tempfile.mkdtemp(prefix="penwright-")), os.getpid()

    def delete() -> None:
        if os.getpid() == owner:  # a forked process must not delete the folder
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(delete)
    return folder


class Mark(NamedTuple):
    """A position between two blocks of a file at which reading can start."""

    offset: int  # offset in the unpacked bytes
    characters: int  # number of characters before this position
    utf8_bytes: int  # number of UTF-8 bytes before this position


@dataclass
class TextCounts:
    """The counts of characters, line endings and corrections in one pass over a file."""

    characters: int = 0
    utf8_bytes: int = 0
    newlines: int = 0
    replaced: int = 0  # number of invalid byte sequences
    unpacked: int = 0  # number of bytes read, after decompression
    nul: int = 0
    crlf: int = 0
    cr: int = 0  # number of carriage returns that are not part of a CRLF
    blank: bool = True
    ends_in_line: bool = False
    text: "hashlib._Hash" = field(default_factory=hashlib.sha256)  # hash of the text in UTF-8
    is_between: bool = False  # whether the last block ended neither inside a character nor inside a CRLF
    marks: list[Mark] = field(default_factory=list)

    @property
    def is_old_mac(self) -> bool:
        """True if lines end in bare carriage returns, as in classic Mac OS."""
        return self.cr > 1 and self.cr >= OLD_MAC * self.newlines

    def add(self, text: str) -> None:
        """Update the counts for a further piece of text."""
        encoded = text.encode("utf-8", "surrogatepass")
        self.text.update(encoded)
        self.utf8_bytes += len(encoded)
        self.characters += len(text)
        self.newlines += text.count("\n")
        self.blank = self.blank and (not text or text.isspace())
        self.ends_in_line = text[-1:] != "\n" if text else self.ends_in_line
        last = self.marks[-1].offset if self.marks else 0
        if self.is_between and self.unpacked >= last + MARK_EVERY:
            self.marks.append(Mark(self.unpacked, self.characters, self.utf8_bytes))


def count_text(blocks: Iterable[bytes], encoding: str, old_mac: bool = False) -> TextCounts:
    """Return the counts of characters, line endings and corrections in a whole file."""
    tally = TextCounts()
    for text in decoded(blocks, encoding, tally, old_mac):
        tally.add(text)
    return tally


def decoded(
    blocks: Iterable[bytes], encoding: str, tally: TextCounts, old_mac: bool, first: bool = True
) -> Iterator[str]:
    """Yield the decoded text in blocks, and count corrections in `tally`.

    `first` means that the blocks are the beginning of a file. Drops a byte-order mark at the start and all NUL
    characters, and turns CRLF into a newline. With `old_mac`, a bare carriage return is a newline too.
    """
    decoder = decoder_of(encoding)
    count_damage = _damage_counter(encoding)
    held = ""  # a carriage return at the end of a block may be half of a CRLF
    for block in blocks:
        text = decoder.decode(block)
        count_damage(block, text, tally)
        if first and text:
            text, first = text.removeprefix(MARK), False
        text, held = _tidy(held + text, tally, old_mac)
        tally.is_between = encoding == "utf-8" and not held and not decoder.getstate()[0]
        if text:
            yield text
    tally.is_between = False
    text = decoder.decode(b"", final=True)
    count_damage(b"", text, tally)
    text = text.removeprefix(MARK) if first else text
    text, rest = _tidy(held + text, tally, old_mac)
    tally.cr += len(rest)
    if text or rest:
        yield text + ("\n" if rest and old_mac else rest)


def _tidy(text: str, tally: TextCounts, old_mac: bool) -> tuple[str, str]:
    """Normalize line endings and drop NULs. Return the text, and a final carriage return that is held back (or "")."""
    if "\0" in text:
        tally.nul += text.count("\0")
        text = text.replace("\0", "")
    if "\r" not in text:
        return text, ""
    text, held = (text[:-1], "\r") if text.endswith("\r") else (text, "")
    crlf = text.count("\r\n")
    tally.crlf += crlf
    text = text.replace("\r\n", "\n") if crlf else text
    tally.cr += text.count("\r")
    return (text.replace("\r", "\n") if old_mac else text), held


def _damage_counter(encoding: str) -> Callable[[bytes, str, TextCounts], None]:
    """Return a function that counts invalid byte sequences by their replacement characters.

    Replacement characters that the file itself contains are not counted.
    """
    count_genuine = _genuine_counter(encoding)

    def count(block: bytes, text: str, tally: TextCounts) -> None:
        tally.unpacked += len(block)
        tally.replaced += text.count(REPLACEMENT) - count_genuine(block)

    return count


def _genuine_counter(encoding: str) -> Callable[[bytes], int]:
    """Return a function that counts, in each block, the replacement characters that the file itself contains."""
    if encoding == "utf-8" or encoding.startswith(MIXED):
        genuine, tail = REPLACEMENT.encode(), b""

        def count(block: bytes) -> int:
            nonlocal tail
            content = tail + block
            tail = content[-2:]
            return content.count(genuine)

        return count
    try:
        REPLACEMENT.encode(encoding)
    except UnicodeEncodeError:  # the encoding has no replacement character
        return lambda block: 0
    decoder = codecs.getincrementaldecoder(encoding)(errors="ignore")
    return lambda block: decoder.decode(block).count(REPLACEMENT)


def cut_at_lines(blocks: Iterable[str], rest: str = "") -> Iterator[str]:
    """Yield the text of the blocks in pieces about as long as a block, cut at the start of a line where possible."""
    for block in blocks:
        text = rest + block
        cut = text.rfind("\n") + 1 or len(text)
        if len(text) - cut > BLOCK:  # the remaining text is the start of a line longer than a block
            cut = len(text)
        yield text[:cut]
        rest = text[cut:]
    if rest:
        yield rest
