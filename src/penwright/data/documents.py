"""Documents: files of running text, and rows of tables or hub data sets, measured and read in pieces."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penwright.data.examples import Document, Part
from penwright.data.files import BLOCK, NotText, SourceFile, examine, examine_text
from penwright.data.paths import is_folder, is_pattern, left_aside, text_files
from penwright.data.readers.hub import is_hub, open_hub
from penwright.data.readers.tables import Table, is_table, names_text, table_in, text_column
from penwright.data.sources import Source, Sources
from penwright.data.splits import Hashes, Mask
from penwright.errors import PenwrightError

Measures = Iterator[tuple[int, int, int]]  # characters (0: blank, -1: broken), UTF-8 bytes, hash
MEASURE = np.dtype([("characters", np.int64), ("n_bytes", np.int64), ("hash", np.uint64)])


@dataclass(frozen=True)
class Documents(Sources[Document]):
    """All documents of some paths, measured."""

    characters: NDArray[np.int64]  # 0: blank, -1: broken
    n_bytes: NDArray[np.int64]  # in UTF-8
    hashes: Hashes

    def part(self, chosen: Mask) -> Part[Document]:
        """The chosen ones as a part of a corpus."""
        size, n_bytes = int(self.characters[chosen].sum()), int(self.n_bytes[chosen].sum())
        return Part(partial(self.read, chosen), int(chosen.sum()), size, n_bytes)


@dataclass(frozen=True)
class TextSlice:
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
    found = list(chain.from_iterable(_sources(path, encoding) for path in dict.fromkeys(map(str, paths))))
    measures = [np.fromiter(measured, dtype=MEASURE) for _, measured in found]
    every = np.concatenate(measures)
    if not len(every):
        paths = ", ".join(file.path for source, _ in found for file in source.files)
        raise PenwrightError(f"{paths}: there are no rows")
    return Documents(
        tuple(source for source, _ in found),
        tuple(map(len, measures)),
        every["characters"],
        every["n_bytes"],
        every["hash"],
    )


def _sources(path: str, encoding: str | None) -> Iterator[tuple[Source[Document], Measures]]:
    if is_hub(path):
        yield _rows(open_hub(path))
    elif is_folder(path) or is_pattern(path):
        files, broken = _text_among(text_files([path]), encoding)
        others = left_aside(Path(path)) if is_folder(path) else ""
        remarks = [*broken, *([f"{path}: not read: {others}"] if others else [])]
        yield _whole_files(files, "; ".join(remarks))
    else:
        file = examine_text(path, encoding)
        table = table_in(file)
        yield _rows(table) if table and (is_table(path) or names_text(table)) else _whole_files((file,))


def _text_among(paths: Sequence[Path], encoding: str | None) -> tuple[tuple[SourceFile, ...], list[str]]:
    """The files that hold text, of which some may be blank, and why others do not; PenwrightError where none does."""
    files, remarks = [], []
    for path in paths:
        try:
            files.append(examine(path, encoding))
        except NotText as error:
            remarks.append(f"not read: {error}")
            if len(remarks) == len(paths):
                raise
    return tuple(files), remarks


def _whole_files(files: tuple[SourceFile, ...], remark: str = "") -> tuple[Source[Document], Measures]:
    def documents() -> Iterator[Document]:
        return (Document(file.path, TextSlice(file.chunks)) for file in files)

    def measures() -> Measures:
        for file in files:
            yield 0 if file.blank else file.n_characters, file.n_utf8_bytes, int(file.text_sha256[:16], 16)

    return Source(files, documents, lambda number: files[number].path, remark=remark), measures()


def _rows(table: Table) -> tuple[Source[Document], Measures]:
    column = text_column(table)

    def texts() -> Iterator[str | None]:
        return (None if row is None else row[0] for row in table.rows([column]))

    def documents() -> Iterator[Document | None]:
        for place, text in enumerate(texts()):
            yield None if text is None else Document(table.place(place), TextSlice(partial(_pieces, text)))

    def measures() -> Measures:
        for text in texts():
            encoded = (text or "").encode()
            size = -1 if text is None else 0 if not text.strip() else len(text)
            yield size, len(encoded), int.from_bytes(sha256(encoded).digest()[:8], "big")

    choice = f"the text is in column {table.columns[column]}"
    return Source(table.files, documents, table.place, choice), measures()


def _pieces(text: str) -> Iterator[str]:
    begin = 0
    while begin < len(text):
        end = begin + BLOCK
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end
        yield text[begin:end]
        begin = end
