"""Documents (text files, and rows of tables or Hub data sets), measured once and read in pieces."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penwright.data.columns import names_in, text_columns
from penwright.data.corpus import (
    ALL_COLUMNS,
    FORMAT_VERSION,
    Broken,
    Columns,
    CorpusPart,
    Document,
    Source,
    Sources,
    number_reason,
)
from penwright.data.files import BLOCK_BYTES, NotText, SourceFile, examine, examine_text
from penwright.data.gutenberg import Book, find_book
from penwright.data.paths import (
    describe_other_splits,
    describe_skipped,
    expand_archives,
    is_collection,
    is_pattern,
    suffix_of,
    tables_in,
    text_files,
)
from penwright.data.readers.archives import is_archive
from penwright.data.readers.bilingual import holds_pairs
from penwright.data.readers.formats import FORMATS
from penwright.data.readers.hub import is_hub, open_hub
from penwright.data.readers.records import json_table
from penwright.data.readers.tables import Table, find_table, has_text_column, is_table_file, text_of
from penwright.data.splits import BEGINNING, Cut, Hashes, Mask
from penwright.errors import PenwrightError
from penwright.storage import cache_folder, write_bytes_atomically
from penwright.text import count

Measures = NDArray[Any]  # for each document: the values of Documents
MANY_ROWS = 10_000  # for a table with at least this many rows, lengths and hashes are cached
MEASURE = np.dtype([("characters", np.int64), ("n_bytes", np.int64), ("hash", np.uint64), ("stripped", np.uint64)])


@dataclass(frozen=True)
class Documents(Sources[Document]):
    """All documents read from the given paths, with their sizes and hashes."""

    characters: NDArray[np.int64]  # length in characters; 0: blank; -n: broken, with error code n
    n_bytes: NDArray[np.int64]  # sizes in UTF-8 bytes
    hashes: Hashes
    stripped: Hashes  # hashes without the white space at both ends; those of whole files include it
    reasons: Mapping[str, int]  # maps each reason why a document can be broken to its error code

    def part(self, chosen: Mask) -> CorpusPart[Document]:
        """Return the chosen documents as the training or held-out part of a corpus."""
        size, n_bytes = int(self.characters[chosen].sum()), int(self.n_bytes[chosen].sum())
        return CorpusPart(partial(self.read, chosen), int(chosen.sum()), size, n_bytes)


@dataclass(frozen=True)
class TextSlice:
    """A range of characters in a text that is read piece by piece."""

    pieces: Callable[[], Iterator[str]]
    begin: int = 0
    end: int | None = None
    file: SourceFile | None = None  # the file that contains the text, if it can be read from the middle

    def pieces_from(self, position: int) -> tuple[Cut, Iterator[str]]:
        """Return a position (the given one or earlier), and the text from there to the end, in pieces."""
        return self.file.chunks_from(position) if self.file else (BEGINNING, self.pieces())

    def __iter__(self) -> Iterator[str]:
        (position, _), pieces = self.pieces_from(self.begin)
        for piece in pieces:
            if self.end is not None and position >= self.end:
                return
            last = None if self.end is None else self.end - position
            if inside := piece[max(0, self.begin - position) : last]:
                yield inside
            position += len(piece)


def open_documents(paths: Sequence[str | Path], encoding: str | None, columns: Columns = ALL_COLUMNS) -> Documents:
    """Open the documents of files, folders and Hub data sets. Each document is read once to measure it."""
    if not paths:
        raise PenwrightError("no files given; pass at least one file, folder or Hub data set")
    reasons: dict[str, int] = {}
    unique = dict.fromkeys(map(str, paths))
    opened = list(chain.from_iterable(_sources(path, encoding, columns, reasons) for path in unique))
    measures = [measured for _, measured in opened]
    every = np.concatenate(measures)
    if not len(every):
        paths = ", ".join(file.path for source, _ in opened for file in source.files)
        raise PenwrightError(f"{paths}: there are no rows")
    return Documents(
        tuple(source for source, _ in opened),
        tuple(map(len, measures)),
        every["characters"],
        every["n_bytes"],
        every["hash"],
        every["stripped"],
        reasons,
    )


def _sources(
    path: str, encoding: str | None, columns: Columns, reasons: dict[str, int]
) -> Iterator[tuple[Source[Document], Measures]]:
    """Yield the sources of one path, each with the sizes and hashes of its documents."""
    if is_hub(path):
        yield _rows(open_hub(path), columns, reasons)
    elif parts := _parts_of(path, encoding):
        (source, measured), *rest = chain.from_iterable(_sources(each, encoding, columns, reasons) for each in parts)
        remark = "\n".join(filter(None, [describe_other_splits(path), source.remark]))
        yield from ((replace(source, remark=remark), measured), *rest)
    elif is_collection(path):
        yield _whole_files(*_text_among(path, encoding))
    else:
        file = examine_text(path, encoding)
        _refuse_pairs(file)
        table = find_table(file, names_in(columns))
        is_read_by_rows = table is not None and (is_table_file(file) or has_text_column(table) or bool(columns.text))
        yield _rows(table, columns, reasons) if table and is_read_by_rows else _whole_files((file,))


def row_tables(path: str, encoding: str | None) -> list[Path]:
    """Return the tables in a folder, archive or pattern; [] if there are none, or if the first is JSON without rows."""
    tables = tables_in(path)
    if tables and suffix_of(tables[0]) == ".json":
        try:
            json_table(examine(tables[0], encoding))
        except PenwrightError:
            return []
    return tables


def _parts_of(path: str, encoding: str | None) -> list[str]:
    """Return the only file of an archive, or the tables of a folder or pattern; [] for other paths."""
    parts = expand_archives([path]) if is_archive(path) else []
    return parts if len(parts) == 1 and parts != [path] else list(map(str, row_tables(path, encoding)))


def _refuse_pairs(file: SourceFile) -> None:
    """Raise NotText if the file holds sentence pairs."""
    if holds_pairs(file):
        raise NotText(
            f"{file.path} is {FORMATS[file.format].description}, not running text; train a translator on it "
            "(--task translate), or save one side as a .txt file"
        )


def _text_among(path: str, encoding: str | None) -> tuple[tuple[SourceFile, ...], str]:
    """Return the readable text files of a folder, archive or pattern, and a remark on which files were read or skipped.

    Some files may be blank. Raises PenwrightError if none can be read.
    """
    files, remarks = [], []
    paths = text_files([path])
    for each in paths:
        try:
            file = _examined(each, encoding)
            _refuse_pairs(file)
            files.append(file)
        except PenwrightError as error:
            remarks.append(f"not read: {error}")
            if len(remarks) == len(paths):
                raise
    others = "" if is_pattern(path) else describe_skipped(Path(path))
    remarks += [f"not read: {others}"] if others else []
    kinds = _count_suffixes([Path(file.path) for file in files])
    return tuple(files), "; ".join([f"{path}: files read: {kinds}", *remarks]) if remarks or "," in kinds else ""


def _count_suffixes(files: Sequence[Path]) -> str:
    """Describe the number of files with each suffix: `2 .docx, 10 .txt`."""
    counts = Counter(suffix_of(file) or "without an extension" for file in files)
    return ", ".join(f"{n:,} {suffix}" for suffix, n in sorted(counts.items()))


def _examined(path: Path, encoding: str | None) -> SourceFile:
    """Examine a file, and raise NotText if it is a Parquet table."""
    file = examine(path, encoding)
    if file.is_parquet:
        raise NotText(f"{path} is a Parquet table; pass each table by name, not its folder or a pattern")
    return file


def _whole_files(files: tuple[SourceFile, ...], remark: str = "") -> tuple[Source[Document], Measures]:
    """Return a source with one document per file, and the lengths, sizes and hashes of the documents."""
    books = [find_book(file) for file in files]
    texts = [
        TextSlice(partial(iter, TextSlice(file.chunks, book.begin, book.end, file)))
        if book
        else TextSlice(file.chunks, file=file)
        for file, book in zip(files, books, strict=True)
    ]

    def documents() -> Iterator[Document]:
        return (Document(file.path, text) for file, text in zip(files, texts, strict=True))

    def measures() -> Iterator[tuple[int, int, int, int]]:
        for file, book in zip(files, books, strict=True):
            size, n_bytes = (book.end - book.begin, book.n_bytes) if book else (file.n_characters, file.n_utf8_bytes)
            own = int(file.text_sha256[:16], 16)
            yield 0 if file.blank else size, n_bytes, own, own

    choice = _describe_left_out(files, books)
    source = Source(files, documents, lambda number: files[number].path, choice, remark=remark)
    return source, np.fromiter(measures(), dtype=MEASURE)


def _describe_left_out(files: Sequence[SourceFile], books: Sequence[Book | None]) -> str:
    """Describe the text around the books of Project Gutenberg, which is left out; "" if there are none."""
    sizes = [file.n_characters - book.end + book.begin for file, book in zip(files, books, strict=True) if book]
    where = f" in {len(sizes):,} of {len(files):,} files" if len(files) > 1 else ""
    return f"without the licence of Project Gutenberg ({count(sum(sizes), 'character')}{where})" if sizes else ""


def _rows(table: Table, columns: Columns, reasons: dict[str, int]) -> tuple[Source[Document], Measures]:
    """Return a source with one document per row of a table, and the lengths, sizes and hashes of the rows."""
    chosen = text_columns(table, columns)
    indices = chosen.indices["text"]

    def texts() -> Iterator[str | Broken]:
        for row in table.rows(indices):
            yield row if isinstance(row, Broken) else " ".join(filter(text_of, row))

    def documents() -> Iterator[Document | Broken]:
        for row, text in enumerate(texts()):
            yield text if isinstance(text, Broken) else Document(table.location(row), TextSlice(partial(_pieces, text)))

    def measures() -> Iterator[tuple[int, int, int, int]]:
        for row in texts():
            text = "" if isinstance(row, Broken) else row
            size = len(text) if (stripped := text.strip()) else -number_reason(row, reasons)
            own = _hash(text)
            yield size, len(text.encode()), own, own if stripped == text else _hash(stripped)

    choice = f"the text is in column {' + '.join(table.columns[index] for index in indices)}"
    source = Source(table.files, documents, table.location, choice, remark=chosen.remark, roles=chosen.roles(table))
    return source, _remembered(table, choice, measures)


def _hash(text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


def _remembered(table: Table, choice: str, measures: Callable[[], Iterator[tuple[int, int, int, int]]]) -> Measures:
    """Return the sizes and hashes of the rows of a table, from the cache if possible. Broken rows are not cached."""
    key = json.dumps([FORMAT_VERSION, [(file.sha256, file.encoding) for file in table.files], choice, table.columns])
    path: Path | None = None
    with suppress(OSError, ValueError, EOFError, PenwrightError):
        path = cache_folder("facts") / f"{sha256(key.encode('utf-8', 'replace')).hexdigest()}.npy"
        if (known := np.load(path, allow_pickle=False)).dtype == MEASURE:
            return known
    measured = np.fromiter(measures(), dtype=MEASURE)
    if path is not None and len(measured) >= MANY_ROWS and measured["characters"].min() >= 0:
        content = BytesIO()
        np.save(content, measured, allow_pickle=False)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes_atomically(path, content.getvalue())
    return measured


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces of at most about a million characters, cut after a newline where possible."""
    begin = 0
    while begin < len(text):
        end = begin + BLOCK_BYTES
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end
        yield text[begin:end]
        begin = end
