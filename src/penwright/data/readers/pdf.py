"""Text of PDF documents, extracted by a process with limits on its time, memory and output."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import IO

from penwright.errors import PenwrightError, import_extra
from penwright.sandbox import run_limited
from penwright.text import join_lines

WORKER = str(Path(__file__).with_name("pdf_worker.py"))  # the program that reads a document
MOST_SECONDS = 600
LIMITS = {"RLIMIT_AS": 4 << 30, "RLIMIT_CPU": MOST_SECONDS, "RLIMIT_FSIZE": 1 << 30, "RLIMIT_CORE": 0}
SHORT = 0.7  # a line shorter than this share of the usual length ends a paragraph, or is a heading or a verse
HYPHEN = re.compile(r"(?<=\w)[-\u00ad]$")
NUMBER = re.compile(r"\W*(\d+|[ivxlc]+)\W*", re.IGNORECASE)


def pdf_lines(file: BufferedIOBase, name: str) -> Iterator[str]:
    """Yield the paragraphs of a PDF document, without page numbers and running heads."""
    import_extra("pypdf", "documents", "PDF documents")
    with TemporaryFile() as document, TemporaryFile() as output:
        copyfileobj(file, document)
        document.seek(0)
        _extract(document, output, name)
        output.seek(0)
        pages = [json.loads(line).split("\n") for line in output]
    if not any(line.strip() for page in pages for line in page):
        raise PenwrightError(f"{name} contains images of pages but no text. Run text recognition (OCR) on it first")
    yield from paragraphs(_without_heads(pages))


def _extract(document: IO[bytes], output: IO[bytes], name: str) -> None:
    """Run `pdf_worker` in a sandbox.

    Raises PenwrightError if the document is protected, damaged, or exceeds a limit.
    """
    try:
        done = run_limited(WORKER, LIMITS, MOST_SECONDS, stdin=document, stdout=output, stderr=subprocess.PIPE)
    except subprocess.TimeoutExpired:
        raise PenwrightError(
            f"{name} took longer than {MOST_SECONDS} s to read. Save its text as a .txt file"
        ) from None
    match done.returncode:
        case 0:
            return
        case 3:
            raise PenwrightError(f"{name} is protected by a password. Save it without one")
        case 4:
            reason = done.stderr.decode("utf-8", "replace").strip()
            raise PenwrightError(f"{name} is damaged or not a readable PDF ({reason}). Save its text as a .txt file")
        case _:
            raise PenwrightError(
                f"{name} exceeds a limit: {MOST_SECONDS} s, {LIMITS['RLIMIT_AS'] >> 30} GiB of memory, or "
                f"{LIMITS['RLIMIT_FSIZE'] >> 30} GiB of text. Save its text as a .txt file"
            )


def _without_heads(pages: Sequence[list[str]]) -> Iterator[str]:
    """Yield the lines of all pages without page numbers and running heads.

    A running head is a first or last line that is the same on more than a third of the pages, digits aside.
    """
    filled = [[line.strip() for line in page if line.strip()] for page in pages]
    borders = Counter(_key(line) for page in filled for line in {*page[:1], *page[-1:]})
    most = max(2, len(filled) // 3)
    for page in filled:
        last = len(page) - 1
        for number, line in enumerate(page):
            if number in (0, last) and (NUMBER.fullmatch(line) or borders[_key(line)] > most):
                continue
            yield line


def _key(line: str) -> str:
    """Return a line without its digits. In a running head, the digits differ from page to page."""
    return re.sub(r"\d+", "", line).strip()


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Join lines into paragraphs, and rejoin hyphenated words. A short line ends a paragraph."""
    every = list(lines)
    usual = sorted(map(len, every))[int(0.8 * len(every))] if every else 0
    paragraph = ""
    for line in every:
        joined = HYPHEN.search(paragraph) and line[:1].islower()
        paragraph = HYPHEN.sub("", paragraph) + line if joined else join_lines([paragraph, line])
        if len(line) < SHORT * usual:
            yield paragraph
            paragraph = ""
    if paragraph:
        yield paragraph
