"""Text extraction from documents: one reader for each format, one line for each paragraph."""

from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase

from penwright.data.readers.formats import Format
from penwright.data.readers.html import html_lines
from penwright.data.readers.markup import rtf_lines, segments
from penwright.data.readers.packages import docx_lines, epub_lines, odt_lines
from penwright.data.readers.pdf import pdf_lines
from penwright.data.readers.spreadsheets import sheet_lines
from penwright.errors import PenwrightError

MOST_MARKUP = 256 << 20  # characters; web pages and RTF documents are read at once
FROM_BYTES: dict[str, Callable[[BufferedIOBase, str], Iterator[str]]] = {
    "docx": docx_lines,
    "odt": odt_lines,
    "epub": epub_lines,
    "pdf": pdf_lines,
}
FROM_TEXT: dict[str, Callable[[str], list[str]]] = {"html": html_lines, "rtf": rtf_lines}


def document_lines(
    kind: Format, name: str, open_file: Callable[[], BufferedIOBase], blocks: Iterable[str]
) -> Iterator[str]:
    """Yield the lines of a document. `open_file` opens its bytes; `blocks` is its decoded text."""
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
