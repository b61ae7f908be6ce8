"""The book in a file of Project Gutenberg, between the header and the licence."""

import re
from dataclasses import dataclass

from penwright.data.files import SourceFile

LONGEST_HEADER = 10_000  # maximum number of characters up to the end of the header
LONGEST_LICENCE = 30_000  # maximum number of characters from the end of the book to the end of the file
NEAR = 1000  # number of characters at each end of a file that must contain the name of Project Gutenberg
NAME = r"OF (?:THE|THIS) PROJECT GUTENBERG"
# A long title spans several lines.
START = re.compile(rf"^\*\*\* ?START {NAME}(?:[^*]{{0,500}}\*\*\*)?[^\n]*\n?", re.MULTILINE)
END = re.compile(rf"^(?:End of (?:the |this )?Project Gutenberg[^\n]*\n{{1,3}})?\*\*\* ?END {NAME}", re.MULTILINE)
NOTICE = re.compile(r"Project\s+Gutenberg|gutenberg\.(?:org|net)", re.IGNORECASE)


@dataclass(frozen=True)
class Book:
    """The position of a book in its file."""

    begin: int  # offset in characters
    end: int
    n_bytes: int  # size in UTF-8 bytes


def find_book(file: SourceFile) -> Book | None:
    """Return the position of the book in a text file or web page of Project Gutenberg; None for other files.

    Only the beginning and the end of a large file are read.
    """
    if file.format not in ("", "html"):
        return None
    _, pieces = file.chunks_from(max(0, file.n_characters - LONGEST_LICENCE))
    tail = ""
    for piece in pieces:
        tail = (tail + piece)[-LONGEST_LICENCE:]
    ends = list(END.finditer(tail))
    if not ends or not _is_notice(tail[ends[-1].end() :].partition("\n")[2][-NEAR:]):
        return None
    licence = tail[ends[-1].start() :]
    end, head = file.n_characters - len(licence), next(file.chunks(), "")[:LONGEST_HEADER]
    start = START.search(head)
    begin = start.end() if start and start.end() <= end and _is_notice(head[: start.start()][:NEAR]) else 0
    left_out = head[:begin] + licence
    return Book(begin, end, file.n_utf8_bytes - len(left_out.encode("utf-8", "surrogatepass")))


def _is_notice(text: str) -> bool:
    """Return whether a text outside the book names Project Gutenberg. Any other text is kept."""
    return not text.strip() or bool(NOTICE.search(text))
