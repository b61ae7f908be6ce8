"""Detection of the encoding of a file, and of files that are not text."""

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from encodings.aliases import aliases
from typing import TYPE_CHECKING, Literal

from penwright.data.letters import guess_encoding
from penwright.errors import PenwrightError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # UTF-32 comes first, because its byte-order mark begins with that of UTF-16
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
SIGNATURES = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"II*\0": "a TIFF image",
    b"MM\0*": "a TIFF image",
    b"RIFF": "audio or an image",
    b"ID3": "music",
    b"OggS": "audio or video",
    b"\0\0\0\x18ftyp": "a video",
    b"\0\0\0\x20ftyp": "a video",
    b"PK\x05\x06": "an empty zip archive",
    b"\x7fELF": "a program",
    b"BZh": "a bzip2 archive; unpack it first",
    b"\xfd7zXZ": "an xz archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "a zstd archive; unpack it first",
    b"7z\xbc\xaf": "a 7z archive; unpack it and pass the folder",
    b"Rar!": "a RAR archive; unpack it and pass the folder",
    b"SQLite format 3": "a database",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
}
CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))
MIXED = "utf-8|"  # prefix that marks a mixed encoding; the rest names the encoding of the lines that are not UTF-8
FEWEST_MIXED = 0.05  # a file is mixed if each of two encodings has at least this share of its non-ASCII lines
LONGEST_LINE = 1 << 24  # maximum number of bytes decoded at once; longer lines are split
MAX_CONTROLS = 0.05  # maximum share of control characters (NUL included) in the bytes of a text
BORDER = re.compile(rb"[\x00-\x2f][^\x00-\x2f]*\Z")  # in no encoding does a byte below 0x30 continue a character
HEAD, SAMPLE = 1 << 16, 1 << 15  # numbers of bytes examined to recognize text, and to guess an encoding
MAX_INVALID = 0.001  # maximum share of invalid bytes in a damaged UTF-8 file
STRAY_BYTES = 3  # a file with more invalid sequences than this may have another encoding


ISO_2022_JP = re.compile(rb"\x1b\$[@B][\x21-\x7e]")  # the change to two-byte characters in old Japanese e-mails


def check_encoding(name: str) -> str:
    """Return Python's name for an encoding. Raises PenwrightError, suggesting the closest name, if it is unknown."""
    try:
        codec = codecs.lookup(name)
        "".encode(name)  # raises LookupError for codecs that are not text encodings, such as "hex"
        return codec.name
    except LookupError:
        nearest = get_close_matches(name.lower(), sorted({*aliases, *aliases.values()}), n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else "examples are utf-8, cp1250 and latin-1"
        raise PenwrightError(f"there is no encoding '{name}'; {hint}") from None


def decode(content: bytes) -> tuple[str, str]:
    """Decode a text as training files are decoded. Return the text without a byte-order mark, then the encoding.

    Raises PenwrightError if the content is not text.
    """
    head = content[:HEAD]
    encoding = first_guess(head)
    if what := describe_non_text(head, encoding):
        raise PenwrightError(f"this is not text but looks like {what}")
    text = content.decode(encoding, errors="replace")
    n_invalid = text.count("\ufffd") - content.count("\ufffd".encode()) if encoding == "utf-8" else 0
    if n_invalid:
        n_multibyte = len(text.encode()) - len(text) - 2 * n_invalid  # U+FFFD takes three bytes in UTF-8
        kinds, sample = sample_lines([content])
        if is_mixed(kinds):
            encoding = MIXED + guess_encoding(sample)
        elif not is_damaged_utf8(n_invalid, n_multibyte, len(content)):
            encoding = guess_encoding(sample)
        text = decoder_of(encoding).decode(content, final=True)
    return text.removeprefix("\ufeff"), encoding


def first_guess(head: bytes) -> str:
    """Guess the encoding from a byte-order mark, the positions of NUL bytes, or escapes. The default is UTF-8."""
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    even, odd = head[0:4096:2].count(0), head[1:4096:2].count(0)
    if max(even, odd) > 0.3 * min(len(head), 4096) / 2 and min(even, odd) == 0:
        return "utf-16-le" if odd else "utf-16-be"
    if ISO_2022_JP.search(head):  # valid UTF-8, too, since it has no byte above 127
        return "iso2022_jp"
    return "utf-8"


def describe_non_text(head: bytes, encoding: str) -> str | None:
    """Describe what these bytes look like if they are not text in this encoding. Return None for text."""
    for signature, what in SIGNATURES.items():
        if head.startswith(signature):
            return what
    if encoding.startswith(("utf-16", "utf-32")):
        return None
    controls = len(head) - len(head.translate(None, CONTROLS))
    return "binary data" if controls > max(1, MAX_CONTROLS * len(head)) else None


def is_damaged_utf8(n_invalid: int, n_multibyte: int, n_bytes: int) -> bool:
    """Return whether a file is damaged UTF-8: it has few invalid sequences, and more valid ones."""
    few = n_multibyte > 0 and (n_invalid <= STRAY_BYTES or n_multibyte > n_invalid)
    return few and n_invalid <= max(1, MAX_INVALID * n_bytes) and n_invalid * 20 <= n_bytes


def first_invalid(blocks: Iterator[bytes]) -> int | None:
    """Return the offset of the first byte that is not valid UTF-8."""
    decoder, before = codecs.getincrementaldecoder("utf-8")(), 0
    for block in blocks:
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(block)
        except UnicodeDecodeError as error:
            return before - pending + error.start
        before += len(block)
    return before - len(decoder.getstate()[0])


def decoder_of(encoding: str) -> codecs.IncrementalDecoder:
    """Return a decoder that replaces invalid bytes with U+FFFD."""
    if encoding.startswith(MIXED):
        return _LineDecoder(encoding.removeprefix(MIXED))
    return codecs.getincrementaldecoder(encoding)(errors="replace")


class _LineDecoder(codecs.IncrementalDecoder):
    """A decoder for files that mix two encodings: UTF-8, and another one for the lines that are not UTF-8."""

    def __init__(self, other: str) -> None:
        super().__init__()
        self.other = other
        self.rest = b""

    def decode(self, data: "ReadableBuffer", final: bool = False) -> str:
        """Decode the lines that are complete; if `final`, decode the rest too."""
        content = self.rest + bytes(data)
        cut = len(content) if final or len(content) > LONGEST_LINE else content.rfind(b"\n") + 1
        content, self.rest = content[:cut], content[cut:]
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "".join(map(self._line, content.splitlines(keepends=True)))

    def _line(self, line: bytes) -> str:
        return line.decode(self.other if kind_of_line(line) == "foreign" else "utf-8", "replace")


def kind_of_line(line: bytes) -> Literal["ascii", "utf-8", "damaged", "foreign"]:
    """Return whether a line is ASCII, other valid UTF-8, damaged UTF-8, or "foreign" (in another encoding).

    An invalid line is damaged if most of its non-ASCII characters are valid UTF-8. Otherwise, it is foreign.
    """
    if line.isascii():
        return "ascii"
    with suppress(UnicodeDecodeError):
        line.decode()
        return "utf-8"
    valid = sum(not character.isascii() for character in line.decode("utf-8", "ignore"))
    return "foreign" if line.decode("utf-8", "replace").count("\ufffd") > valid else "damaged"


def sample_lines(blocks: Iterable[bytes]) -> tuple[Counter[str], bytes]:
    """Count the lines of each kind, as in kind_of_line(). Return the counts, and a sample of the non-ASCII lines.

    If the file mixes UTF-8 with another encoding, the sample contains only the lines in the other encoding.
    """
    kinds, samples, rest = Counter[str](), {"every": b"", "foreign": b""}, b""

    def count_line(line: bytes) -> None:
        kind = kind_of_line(line)
        kinds[kind] += 1
        for name in ("every", kind):
            if kind != "ascii" and name in samples and len(samples[name]) <= SAMPLE:
                samples[name] += line

    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            count_line(line + b"\n")
        rest = rest[: SAMPLE + 1]  # only the beginning of a very long line counts
    count_line(rest)
    sample = samples["foreign" if is_mixed(kinds) else "every"]
    return kinds, sample if len(sample) <= SAMPLE else whole_characters(sample[:SAMPLE])


def is_mixed(kinds: Mapping[str, int]) -> bool:
    """Return whether the line counts suggest a file in two encodings rather than damaged UTF-8."""
    foreign, valid = kinds.get("foreign", 0), kinds.get("utf-8", 0)
    return foreign > STRAY_BYTES and valid > 1 and min(foreign, valid) >= FEWEST_MIXED * (foreign + valid)


def whole_characters(sample: bytes) -> bytes:
    """Return the sample without its end, where a cut may have split a multi-byte character."""
    border = BORDER.search(sample)
    return sample[: border.start() + 1] if border and border.start() else sample[: len(sample) & ~1]


def known_encoding(name: str) -> str | None:
    """Return Python's name for an encoding, or None if the encoding is unknown."""
    try:
        return check_encoding(name)
    except PenwrightError:
        return None
