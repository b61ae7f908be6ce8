"""Decoding of a file into plain text, with counts of its content and of all corrections."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from penwright.data.encoding import MIXED, decoder_of

MARK = "\ufeff"  # the byte-order mark; dropped only at the start of a file
REPLACEMENT = "\ufffd"
OLD_MAC = 10  # with this many bare carriage returns per newline, they are the line ends


@dataclass
class TextCounts:
    """The counts of one pass over a file."""

    characters: int = 0
    utf8_bytes: int = 0
    newlines: int = 0
    replaced: int = 0  # invalid byte sequences
    unpacked: int = 0  # bytes read, without compression
    nul: int = 0
    crlf: int = 0
    cr: int = 0  # carriage returns that are not part of a CRLF
    blank: bool = True
    ends_in_line: bool = False
    text: "hashlib._Hash" = field(default_factory=hashlib.sha256)  # of the text in UTF-8

    @property
    def is_old_mac(self) -> bool:
        """True if bare carriage returns end the lines, as on the classic Mac."""
        return self.cr > 1 and self.cr >= OLD_MAC * self.newlines

    def add(self, text: str) -> None:
        """Count a piece of text."""
        encoded = text.encode("utf-8", "surrogatepass")
        self.text.update(encoded)
        self.utf8_bytes += len(encoded)
        self.characters += len(text)
        self.newlines += text.count("\n")
        self.blank = self.blank and (not text or text.isspace())
        self.ends_in_line = text[-1:] != "\n" if text else self.ends_in_line


def count_text(blocks: Iterable[bytes], encoding: str, old_mac: bool = False) -> TextCounts:
    """Return the counts of a whole file."""
    tally = TextCounts()
    for text in decoded(blocks, encoding, tally, old_mac):
        tally.add(text)
    return tally


def decoded(blocks: Iterable[bytes], encoding: str, tally: TextCounts, old_mac: bool) -> Iterator[str]:
    """Yield the decoded text in blocks, and count corrections in `tally`.

    Drops a byte-order mark at the start and all NUL characters, and turns CRLF into a newline. With `old_mac`, a bare
    carriage return is a newline too.
    """
    decoder = decoder_of(encoding)
    count_damage = _damage_counter(encoding)
    held = ""  # a carriage return at the end of a block may be half of a CRLF
    first = True
    for block in blocks:
        text = decoder.decode(block)
        count_damage(block, text, tally)
        if first and text:
            text, first = text.removeprefix(MARK), False
        text, held = _tidy(held + text, tally, old_mac)
        if text:
            yield text
    text = decoder.decode(b"", final=True)
    count_damage(b"", text, tally)
    text = text.removeprefix(MARK) if first else text
    text, rest = _tidy(held + text, tally, old_mac)
    tally.cr += len(rest)
    if text or rest:
        yield text + ("\n" if rest and old_mac else rest)


def _tidy(text: str, tally: TextCounts, old_mac: bool) -> tuple[str, str]:
    """Return the text with plain line ends and without NULs, and a last carriage return held for the next block."""
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

    A U+FFFD that the file itself contains does not count. In UTF-16, UTF-32 and GB18030, nothing is counted.
    """
    genuine, tail = REPLACEMENT.encode(), b""

    def count(block: bytes, text: str, tally: TextCounts) -> None:
        nonlocal tail
        tally.unpacked += len(block)
        if encoding == "utf-8" or encoding.startswith(MIXED):
            tally.replaced += text.count(REPLACEMENT) - (tail + block).count(genuine)
        elif not encoding.startswith(("utf-16", "utf-32", "gb18030")):
            tally.replaced += text.count(REPLACEMENT)
        tail = block[-2:]

    return count
