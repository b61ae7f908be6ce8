"""Text files: unpacked and decoded, with counts of all corrections. Lines end at newlines only."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from zipfile import is_zipfile

from penwright.data.blocks import (
    Mark,
    TextCounts,
    copy_once,
    count_text,
    cut_at_lines,
    decoded,
    open_raw,
    raw_blocks,
    state_of,
    stored_file,
)
from penwright.data.encoding import (
    MIXED,
    check_encoding,
    decoder_of,
    describe_non_text,
    first_guess,
    first_invalid,
    is_damaged_utf8,
    is_mixed,
    sample_lines,
)
from penwright.data.letters import guess_encoding
from penwright.data.readers.archives import docx_lines, epub_lines, odt_lines
from penwright.data.readers.formats import HEAD as START
from penwright.data.readers.formats import PLAIN, Format, detect_format
from penwright.data.readers.markup import declared_encoding, html_lines, rtf_lines, segments
from penwright.data.readers.pdf import pdf_lines
from penwright.data.readers.spreadsheets import sheet_lines, sheets_read
from penwright.data.splits import BEGINNING, Cut
from penwright.errors import PenwrightError
from penwright.storage import identity_of, remember, sha256_of

BLOCK_BYTES = 1 << 20  # bytes read at a time; also the approximate maximum length of a piece of text
HEAD = 4 * BLOCK_BYTES  # approximate number of characters that first_lines() reads
LARGE = 1 << 20  # minimum size, in bytes, of a file for which the results of the examination are cached
PARQUET = "parquet"  # marks a Parquet table in SourceFile.encoding
MOST_MARKUP = 256 << 20  # maximum length in characters of a web page or RTF document, which is read into memory whole
FROM_BYTES: dict[str, Callable[[BufferedIOBase, str], Iterator[str]]] = {
    "docx": docx_lines,
    "odt": odt_lines,
    "epub": epub_lines,
    "pdf": pdf_lines,
}
FROM_TEXT: dict[str, Callable[[str], list[str]]] = {"html": html_lines, "rtf": rtf_lines}


class NotText(PenwrightError):
    """An error for a file that is not running text."""


@dataclass(frozen=True)
class SourceFile:
    """A file of a corpus, with its encoding, sizes, hashes and corrections."""

    path: str
    n_bytes: int  # size of the file as stored
    sha256: str  # hash of the file as stored
    encoding: str = "utf-8"
    guessed: bool = False  # whether the encoding was guessed from the letters in the text
    n_lines: int = 0
    n_characters: int = 0
    n_utf8_bytes: int = 0  # size of the decoded text
    text_sha256: str = ""  # hash of the decoded text in UTF-8; independent of encoding and compression
    n_replaced: int = 0  # number of invalid byte sequences, each replaced by U+FFFD
    first_replaced: int | None = None  # offset of the first invalid sequence in the unpacked bytes
    n_nul: int = 0  # number of NUL characters, which are removed
    n_crlf: int = 0  # number of lines that ended in CRLF
    n_cr: int = 0  # number of lines that ended in a bare CR
    blank: bool = False
    format: str = ""  # name of a format other than plain text, such as "docx"
    remark: str = ""  # description of the part of the file that was read
    marks: tuple[Mark, ...] = ()  # positions in a large file from which reading can start
    copy: str = ""  # temporary file with the text; "" if the file itself is read

    @property
    def stored(self) -> Path:
        """The file to read: a temporary copy if `path` is a pipe, an archive member or a document."""
        return Path(self.copy or self.path)

    @property
    def is_parquet(self) -> bool:
        """True if the file is a Parquet table rather than text."""
        return self.encoding == PARQUET

    def blocks(self, begin: int = 0) -> Iterator[str]:
        """Yield the text in pieces of about 1 MiB, cut at any point. `begin` is 0 or the offset of one of `marks`."""
        raw = raw_blocks(self.stored, self.path, BLOCK_BYTES, begin)
        return decoded(raw, self.encoding, TextCounts(), self.n_cr > 0, first=not begin)

    def chunks(self) -> Iterator[str]:
        """Yield the text in pieces of about 1 MiB, cut at the start of a line where possible."""
        return cut_at_lines(self.blocks())

    def chunks_from(self, position: int) -> tuple[Cut, Iterator[str]]:
        """Return the text from `position` to the end, in pieces, preceded by the position where it really starts.

        Reading starts at one of `marks`, so the text may start well before `position`.
        """
        for mark in reversed(self.marks):
            if mark.characters + BLOCK_BYTES <= position:
                blocks = self.blocks(mark.offset)
                first = next(blocks, "")
                # Begin after the last line break of the block, so that the text is cut where chunks() cuts it.
                if cut := first.rfind("\n") + 1:
                    size = len(first[:cut].encode("utf-8", "surrogatepass"))
                    return Cut(mark.characters + cut, mark.utf8_bytes + size), cut_at_lines(blocks, first[cut:])
                break
        return BEGINNING, self.chunks()

    def lines(self) -> Iterator[str]:
        """Yield the lines without newlines. The last line counts even without a newline."""
        return chain.from_iterable(self._line_lists())

    def first_lines(self, n: int) -> list[str]:
        """Return at most `n` lines from the first HEAD characters or so. A longer first line is cut off."""
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
        """Yield the lines of each block of text as a list."""
        parts: list[str] = []  # the pieces of a line that spans several blocks
        for block in self.blocks():
            first, *others = block.split("\n")
            parts.append(first)
            if others:
                rest = others.pop()
                yield ["".join(parts), *others]
                parts = [rest]
        if last := "".join(parts):
            yield [last]


def examine(path: str | Path, encoding: str | None = None) -> SourceFile:
    """Read a file once to find its format, encoding and size. The text of documents is extracted.

    For large text files, the result is cached until the file changes. Raises PenwrightError if the file is missing,
    damaged or not text.
    """
    name, stored = str(path), stored_file(path)
    kind = format_of(stored, name, check_encoding(encoding) if encoding else None) or PLAIN
    # The text of a document is in a temporary copy, which is deleted when the process ends.
    if not kind.is_decoded or stored.stat().st_size < LARGE or str(stored) != name:
        return _examine(kind, stored, name, encoding)
    key = [*identity_of(stored), encoding or ""]
    return replace(remember_file(key, lambda: _examine(kind, stored, name, encoding)), path=name)


def remember_file(key: Sequence[object], make: Callable[[], SourceFile]) -> SourceFile:
    """Return the cached result of examining a file; if there is none under this key, call `make` to examine it."""
    parts = [field.name for field in fields(SourceFile)]
    known = remember([*parts, *key], lambda: asdict(make()))
    return SourceFile(**{**known, "marks": tuple(Mark(*mark) for mark in known["marks"])})


def _examine(kind: Format, stored: Path, name: str, encoding: str | None) -> SourceFile:
    """Examine the file `stored`, which is called `name` in messages."""
    if kind.kind == "archive":
        what = "rename it so that its name ends in .zip" if is_zipfile(stored) else "it is damaged: download it again"
        raise NotText(f"{name} is a .zip archive; {what}, or unpack it")
    if kind.is_decoded:
        return replace(_examine_text(stored, name, encoding, declares=bool(kind.name)), format=kind.name)
    key = kind.name, encoding, str(stored), *state_of(stored)
    copy = copy_once(key, name, partial(_extracted, kind, stored, name, encoding))
    file = replace(_examine_text(copy, name, "utf-8"), n_bytes=stored.stat().st_size, format=kind.name)
    if kind.kind == "sheet":
        file = replace(file, n_lines=file.n_lines - 1, remark=sheets_read(deque(file.lines(), maxlen=1)[0]))
    return file


def read_markup(path: str | Path, encoding: str | None = None) -> str:
    """Return the whole text of a file, markup included, whatever the format."""
    return "".join(_examine_text(stored_file(path), str(path), encoding, declares=True).blocks())


def format_of(stored: Path, name: str, encoding: str | None = None) -> Format | None:
    """Return the format of a file, or None for plain text or Parquet. Raises NotText for unsupported files."""
    head = next(raw_blocks(stored, name, START), b"")
    guess = encoding or first_guess(head)
    kind = detect_format(name, head, decoder_of(guess).decode(head), lambda: open_raw(stored))
    if kind is not None and kind.kind == "other":
        raise NotText(f"{name} is {kind.description}; {kind.remedy}")
    if kind is None and not head.startswith(b"PAR1") and (what := describe_non_text(head, guess)):
        raise NotText(f"{name} is not text but looks like {what}")
    return kind


def _extracted(kind: Format, stored: Path, name: str, encoding: str | None) -> Iterator[bytes]:
    """Yield the text of a document in UTF-8."""
    is_text = kind.kind in ("markup", "segments")
    blocks = _examine_text(stored, name, encoding, declares=True).blocks() if is_text else iter(())
    for line in document_lines(kind, name, lambda: open_raw(stored), blocks):
        yield f"{line}\n".encode("utf-8", "replace")


def _examine_text(stored: Path, name: str, encoding: str | None, *, declares: bool = False) -> SourceFile:
    """Examine a file as plain text or Parquet; guess the encoding unless given. Raises NotText for other files.

    `declares` means that the file may declare its encoding, as web pages do. Valid UTF-8 takes precedence.
    """
    blocks = partial(raw_blocks, stored, name, BLOCK_BYTES)
    chosen = check_encoding(encoding) if encoding else None
    head = next(blocks(), b"")[:START]
    if head.startswith(b"PAR1"):
        copy = "" if str(stored) == name else str(stored)
        return SourceFile(name, stored.stat().st_size, sha256_of(stored.resolve()), PARQUET, copy=copy)
    # utf-8-sig is not needed: a byte-order mark is always dropped.
    guess = (chosen or first_guess(head)).removesuffix("-sig")
    declared = declared_encoding(head) if declares and not chosen else None
    guess = declared if declared and declared.startswith("iso2022") else guess  # 7-bit text is always valid UTF-8
    if what := describe_non_text(head, guess):
        raise NotText(f"{name} is not text but looks like {what}")
    tally, guessed, first_replaced = count_text(blocks(), guess), False, None
    if tally.replaced and guess == "utf-8":
        multibyte = tally.utf8_bytes - tally.characters - 2 * tally.replaced  # U+FFFD takes three bytes in UTF-8
        kinds, foreign = (Counter[str](), b"") if chosen or declared else sample_lines(blocks())
        if is_mixed(kinds):
            guess, guessed = MIXED + guess_encoding(foreign), True
        elif chosen or is_damaged_utf8(tally.replaced, multibyte, tally.unpacked):
            first_replaced = first_invalid(blocks())
        else:
            guess, guessed = declared or guess_encoding(foreign), not declared
        tally = count_text(blocks(), guess) if guess != "utf-8" else tally
    old_mac = tally.is_old_mac
    if old_mac:
        tally = count_text(blocks(), guess, old_mac=True)
    return SourceFile(
        path=name,
        n_bytes=stored.stat().st_size,
        sha256=sha256_of(stored.resolve()),
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
        marks=tuple(tally.marks),
        copy="" if str(stored) == name else str(stored),
    )


def examine_text(path: str | Path, encoding: str | None = None) -> SourceFile:
    """Examine a file as text. Raises PenwrightError if it is blank."""
    file = examine(path, encoding)
    if file.blank:
        what = "contains only whitespace" if file.n_bytes else "is empty"
        raise PenwrightError(f"{path} {what}; pass a file that contains text")
    return file


def document_lines(
    kind: Format, name: str, open_file: Callable[[], BufferedIOBase], blocks: Iterable[str]
) -> Iterator[str]:
    """Yield the lines of a document. `open_file` opens the file as bytes; `blocks` yields its decoded text."""
    if kind.name in FROM_BYTES:
        with open_file() as file:
            yield from FROM_BYTES[kind.name](file, name)
        return
    if kind.kind == "sheet":
        with open_file() as file:
            yield from sheet_lines(file, name, kind.name)
        return
    text = "".join(_bounded(blocks, name))
    yield from FROM_TEXT[kind.name](text) if kind.name in FROM_TEXT else (line for _, line in segments(kind.name, text))


def _bounded(blocks: Iterable[str], name: str) -> Iterator[str]:
    size = 0
    for block in blocks:
        size += len(block)
        if size > MOST_MARKUP:
            raise PenwrightError(f"{name} has more than {MOST_MARKUP >> 20} million characters of markup. Split it")
        yield block
