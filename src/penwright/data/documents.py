"""Documents: files of running text, and rows of JSON lines or hub data sets, measured and read in pieces."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import chain, compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penwright.data.examples import Document, Part
from penwright.data.files import BLOCK, SourceFile, examine, examine_text
from penwright.data.hub import is_hub, open_hub
from penwright.data.paths import suffix_of, text_files
from penwright.data.splits import Hashes, Mask
from penwright.data.tables import Table, json_table, text_column
from penwright.errors import PenwrightError

ROWS = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Source:
    """Documents of one file, folder or table."""

    files: tuple[SourceFile, ...]
    documents: Callable[[], Iterator[Document | None]]  # None: a broken row
    measures: Callable[[], Iterator[tuple[int, int, int]]]  # characters (0: blank, -1: broken), UTF-8 bytes, hash
    place: Callable[[int], str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Documents:
    """All documents of some paths, measured."""

    sources: tuple[Source, ...]
    n_of_source: tuple[int, ...]
    characters: NDArray[np.int64]  # 0: blank, -1: broken
    n_bytes: NDArray[np.int64]  # in UTF-8
    hashes: Hashes

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return tuple(file for source in self.sources for file in source.files)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(note for source in self.sources for note in source.notes)

    def read(self, chosen: Mask) -> Iterator[Document]:
        """The chosen ones, in order."""
        every = chain.from_iterable(source.documents() for source in self.sources)
        return (document for document in compress(every, chosen.tobytes()) if document is not None)

    def place(self, number: int) -> str:
        """Where the document with this number stands."""
        for source, n in zip(self.sources, self.n_of_source, strict=True):
            if number < n:
                return source.place(number)
            number -= n
        raise IndexError(number)

    def part(self, chosen: Mask) -> Part[Document]:
        """The chosen ones as a part of a corpus."""
        size, n_bytes = int(self.characters[chosen].sum()), int(self.n_bytes[chosen].sum())
        return Part(partial(self.read, chosen), int(chosen.sum()), size, n_bytes)


@dataclass(frozen=True)
class Span:
    """A part of a text in pieces, by characters."""

    pieces: Callable[[], Iterator[str]]
    begin: int = 0
    end: int | None = None

    def __iter__(self) -> Iterator[str]:
        place = 0
        for piece in self.pieces():
            if self.end is not None and place >= self.end:
                return
            last = None if self.end is None else self.end - place
            if inside := piece[max(0, self.begin - place) : last]:
                yield inside
            place += len(piece)


def open_documents(paths: Sequence[str | Path], encoding: str | None) -> Documents:
    """The documents of files, folders and hub data sets, each read once to measure it."""
    if not paths:
        raise PenwrightError("no files were given to learn from")
    sources = tuple(chain.from_iterable(_sources(path, encoding) for path in dict.fromkeys(map(str, paths))))
    measures = [list(source.measures()) for source in sources]
    characters, n_bytes, hashes = zip(*chain.from_iterable(measures), strict=True)
    return Documents(
        sources,
        tuple(map(len, measures)),
        np.array(characters, dtype=np.int64),
        np.array(n_bytes, dtype=np.int64),
        np.array(hashes, dtype=np.uint64),
    )


def _sources(path: str, encoding: str | None) -> Iterator[Source]:
    if is_hub(path):
        yield _rows(open_hub(path))
    elif suffix_of(path) in ROWS:
        yield _rows(json_table(examine_text(path, encoding)))
    else:
        named = not Path(path).is_dir()  # a blank file that is named must be a mistake; one in a folder may not be
        files = [examine_text(file, encoding) if named else examine(file, encoding) for file in text_files([path])]
        yield _whole_files(tuple(files))


def _whole_files(files: tuple[SourceFile, ...]) -> Source:
    def documents() -> Iterator[Document]:
        return (Document(file.path, Span(file.chunks)) for file in files)

    def measures() -> Iterator[tuple[int, int, int]]:
        for file in files:
            yield 0 if file.blank else file.n_characters, file.n_utf8_bytes, int(file.sha256[:16], 16)

    return Source(files, documents, measures, lambda number: files[number].path)


def _rows(table: Table) -> Source:
    column = text_column(table)

    def texts() -> Iterator[str | None]:
        return (None if row is None else row[0] for row in table.rows([column]))

    def documents() -> Iterator[Document | None]:
        for place, text in enumerate(texts()):
            yield None if text is None else Document(table.place(place), Span(partial(_pieces, text)))

    def measures() -> Iterator[tuple[int, int, int]]:
        for text in texts():
            encoded = (text or "").encode()
            size = -1 if text is None else 0 if not text.strip() else len(text)
            yield size, len(encoded), int.from_bytes(sha256(encoded).digest()[:8], "big")

    note = f"{table.name}: the text is in column {table.columns[column]}"
    return Source(table.files, documents, measures, table.place, (note,))


def _pieces(text: str) -> Iterator[str]:
    begin = 0
    while begin < len(text):
        end = begin + BLOCK
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end
        yield text[begin:end]
        begin = end
