"""A text file as it is read: unpacked, decoded, with what had to be put right counted. Lines end at "\\n"."""

import codecs
import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BufferedIOBase
from itertools import chain
from pathlib import Path

from penwright.data.encoding import (
    check_encoding,
    first_guess,
    guess_encoding,
    is_damaged_utf8,
    what_else,
    whole_characters,
)
from penwright.data.paths import existing_file
from penwright.errors import PenwrightError

BLOCK = 1 << 20  # bytes read at a time, and about the longest piece of text handed on
HEAD = 4 * BLOCK  # characters from which lines are taken to see what a file is
GZIP = b"\x1f\x8b"
PARQUET = "parquet"  # in place of an encoding
MARK = "\ufeff"  # the byte-order mark, at the start of a file only
REPLACEMENT = "\ufffd"
OLD_MAC = 10  # so many bare carriage returns for each line end, and they are the line ends
SAMPLE = 1 << 15  # bytes of unusual lines from which an encoding is guessed


class NotText(PenwrightError):
    """A file of something else."""


@dataclass(frozen=True)
class SourceFile:
    """A file that a corpus was made from, and what reading it found."""

    path: str
    n_bytes: int  # as stored
    sha256: str  # as stored
    encoding: str = "utf-8"
    guessed: bool = False  # the encoding, from the look of the letters
    n_lines: int = 0
    n_characters: int = 0
    n_utf8_bytes: int = 0  # of the text as it is handed on
    text_sha256: str = ""  # of the same in UTF-8: equal texts are told by it, however they are stored
    n_replaced: int = 0  # invalid bytes, each now U+FFFD
    first_replaced: int | None = None  # offset in the unpacked bytes
    n_nul: int = 0  # removed
    n_crlf: int = 0  # lines that ended in CRLF
    n_cr: int = 0  # lines that ended in a bare CR
    blank: bool = False

    @property
    def is_parquet(self) -> bool:
        """Whether the file holds a Parquet table rather than text."""
        return self.encoding == PARQUET

    def blocks(self) -> Iterator[str]:
        """The text in pieces of about 1 MiB, cut anywhere."""
        return _decoded(Path(self.path), self.encoding, _Tally(), old_mac=self.n_cr > 0)

    def chunks(self) -> Iterator[str]:
        """The text in pieces of about 1 MiB, cut before a line start where there is one."""
        rest = ""
        for block in self.blocks():
            text = rest + block
            cut = text.rfind("\n") + 1 or len(text)
            if len(text) - cut > BLOCK:  # only the start of a line longer than a block
                cut = len(text)
            yield text[:cut]
            rest = text[cut:]
        if rest:
            yield rest

    def lines(self) -> Iterator[str]:
        """The lines without their ends; the last counts with or without a newline."""
        return chain.from_iterable(self._line_lists())

    def first_lines(self, n: int) -> list[str]:
        """At most so many, as far as they end in the first few MiB; of a single one that is longer, its beginning."""
        text = ""
        for block in self.blocks():
            text += block
            if text.count("\n") >= n or len(text) >= HEAD:
                break
        *lines, rest = text.split("\n")
        if rest and (not lines or len(lines) + 1 == self.n_lines):
            lines.append(rest)
        return lines[:n]

    def _line_lists(self) -> Iterator[list[str]]:
        parts: list[str] = []  # of a line that runs over several blocks
        for block in self.blocks():
            first, *others = block.split("\n")
            parts.append(first)
            if others:
                rest = others.pop()
                yield ["".join(parts), *others]
                parts = [rest]
        if last := "".join(parts):
            yield [last]


@dataclass
class _Tally:
    """What one pass over a file counts."""

    characters: int = 0
    utf8_bytes: int = 0
    newlines: int = 0
    replaced: int = 0
    unpacked: int = 0
    nul: int = 0
    crlf: int = 0
    cr: int = 0  # those of no CRLF
    blank: bool = True
    ends_in_line: bool = False
    text: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    @property
    def is_old_mac(self) -> bool:
        return self.cr > 1 and self.cr >= OLD_MAC * self.newlines

    def add(self, text: str) -> None:
        encoded = text.encode("utf-8", "surrogatepass")
        self.text.update(encoded)
        self.utf8_bytes += len(encoded)
        self.characters += len(text)
        self.newlines += text.count("\n")
        self.blank = self.blank and (not text or text.isspace())
        self.ends_in_line = text[-1:] != "\n" if text else self.ends_in_line


def examine(path: str | Path, encoding: str | None = None) -> SourceFile:
    """Read a file once to find its encoding and count; PenwrightError when it is missing, damaged, or no text."""
    path = existing_file(path)
    chosen = check_encoding(encoding) if encoding else None
    head = next(_raw_blocks(path), b"")[: 1 << 16]
    if head.startswith(b"PAR1"):
        return SourceFile(str(path), path.stat().st_size, _sha256(path), PARQUET)
    guess = (chosen or first_guess(head)).removesuffix("-sig")  # a mark at the start is dropped in any case
    if what := what_else(head, guess):
        raise NotText(f"{path} is not text but looks like {what}")
    tally, guessed, first_replaced = _survey(path, guess), False, None
    if tally.replaced and guess == "utf-8":
        multibyte = tally.utf8_bytes - tally.characters - 2 * tally.replaced  # U+FFFD itself takes three bytes
        if chosen or is_damaged_utf8(tally.replaced, multibyte, tally.unpacked):
            first_replaced = _first_invalid(path)
        else:
            guess, guessed = guess_encoding(_unusual_lines(path)), True
            tally = _survey(path, guess)
    old_mac = tally.is_old_mac
    if old_mac:
        tally = _survey(path, guess, old_mac=True)
    return SourceFile(
        path=str(path),
        n_bytes=path.stat().st_size,
        sha256=_sha256(path),
        encoding=guess,
        guessed=guessed,
        n_lines=tally.newlines + tally.ends_in_line,
        n_characters=tally.characters,
        n_utf8_bytes=tally.utf8_bytes,
        text_sha256=tally.text.hexdigest(),
        n_replaced=tally.replaced,
        first_replaced=first_replaced,
        n_nul=tally.nul,
        n_crlf=tally.crlf,
        n_cr=tally.cr if old_mac else 0,
        blank=tally.blank,
    )


def examine_text(path: str | Path, encoding: str | None = None) -> SourceFile:
    """The same, and the file must not be blank."""
    file = examine(path, encoding)
    if file.blank:
        what = "holds only spaces and line ends" if file.n_bytes else "is empty"
        raise PenwrightError(f"{path} {what}; give a file with text in it")
    return file


def open_raw(path: str | Path) -> BufferedIOBase:
    """The unpacked bytes of a file as a stream; the caller closes it and meets damage in .gz as OSError or EOFError."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == GZIP
        return gzip.open(path, "rb") if packed else open(path, "rb")
    except OSError as error:
        raise PenwrightError(f"{path} cannot be read: {error.strerror or error}") from None


def _survey(path: Path, encoding: str, old_mac: bool = False) -> _Tally:
    tally = _Tally()
    for text in _decoded(path, encoding, tally, old_mac):
        tally.add(text)
    return tally


def _decoded(path: Path, encoding: str, tally: _Tally, old_mac: bool) -> Iterator[str]:
    """Text in blocks, without the mark at the start, NULs and carriage returns of line ends, all counted in tally.

    Bare carriage returns are line ends where the file is that of an `old_mac`.
    """
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    count_damage = _damage_counter(encoding)
    held = ""  # a carriage return at the end of a block: perhaps half of a line end
    first = True
    for block in _raw_blocks(path):
        text = decoder.decode(block)
        count_damage(block, text, tally)
        if first and text:
            text, first = text.removeprefix(MARK), False
        text, held = _tidy(held + text, tally, old_mac)
        if text:
            yield text
    text = decoder.decode(b"", final=True)
    count_damage(b"", text, tally)
    text, rest = _tidy(held + text, tally, old_mac)
    tally.cr += len(rest)
    if text or rest:
        yield text + ("\n" if rest and old_mac else rest)


def _tidy(text: str, tally: _Tally, old_mac: bool) -> tuple[str, str]:
    """The text with plain line ends and without NULs, and a carriage return that may belong to what follows."""
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


def _damage_counter(encoding: str) -> Callable[[bytes, str, _Tally], None]:
    """Counts replacement characters that are not in the file itself: only Unicode encodings can hold them."""
    genuine, tail = REPLACEMENT.encode(), b""

    def count(block: bytes, text: str, tally: _Tally) -> None:
        nonlocal tail
        tally.unpacked += len(block)
        if REPLACEMENT in text and not encoding.startswith(("utf-16", "utf-32", "gb18030")):
            own = (tail + block).count(genuine) if encoding == "utf-8" else 0
            tally.replaced += text.count(REPLACEMENT) - own
        tail = block[-2:]

    return count


def _raw_blocks(path: Path) -> Iterator[bytes]:
    try:
        with open_raw(path) as file:
            while block := file.read(BLOCK):
                yield block
    except EOFError:
        raise PenwrightError(f"{path} breaks off before its end (a cut-off .gz file); fetch or pack it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise PenwrightError(f"{path} is a damaged .gz file ({error}); fetch or pack it again") from None
    except OSError as error:
        raise PenwrightError(f"{path} cannot be read: {error.strerror or error}") from None


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_invalid(path: Path) -> int | None:
    decoder, before = codecs.getincrementaldecoder("utf-8")(), 0
    for block in _raw_blocks(path):
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(block)
        except UnicodeDecodeError as error:
            return before - pending + error.start
        before += len(block)
    return before - len(decoder.getstate()[0])


def _unusual_lines(path: Path) -> bytes:
    """Lines that are not ASCII, where an encoding shows; of one that is longer than a sample, its beginning."""
    found, rest = b"", b""
    for block in _raw_blocks(path):
        *lines, rest = (rest + block).split(b"\n")
        found += b"".join(line + b"\n" for line in lines if not line.isascii())
        if len(found) + len(rest) > SAMPLE and not (found + rest).isascii():
            return whole_characters((found + rest)[:SAMPLE])
        rest = rest[: SAMPLE + 1]
    return found + rest
