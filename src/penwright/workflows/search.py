"""Semantic search in the lines of a text file, whose vectors are cached."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penwright.classification.classifier import is_blank
from penwright.classification.clusters import SIMILAR, find_clusters, near_duplicates, require_enough
from penwright.data.paths import STANDARD_INPUT, is_pipe_name
from penwright.devices import usable_device
from penwright.errors import PenwrightError, Say, say_nothing
from penwright.storage import (
    CACHE_ADVICE,
    cache_folder,
    is_temporary,
    locked,
    read_bytes,
    remove_folder,
    require_plain,
    require_writable_cache,
    saving,
)
from penwright.workflows.load import best_precision, load_embedder, open_run

CHUNK = 512  # number of lines to embed at once
MOST_LINES = 2_000_000
MOST_COMPARED = 50_000  # maximum number of lines to compare with each other
FORMAT = 2  # increment this number whenever vectors are computed or stored differently
# The files of an index, in a folder of the cache: the vectors, and the hash of each line of text, one per line.
VECTORS, HASHES = "vectors.npy", "hashes.txt"


class Hit(NamedTuple):
    """A line that matches a query."""

    similarity: float  # cosine similarity with the query
    line: int  # number of the line in the file, from 1
    text: str


class SearchIndex:
    """The lines of a file, and their vectors.

    The cache holds the newest index of each run and file. If some lines of the file change, only their vectors are
    computed again.
    """

    def __init__(self, folder: Path, path: str, lines: Sequence[str], device: str = "cpu", say: Say = say_nothing):
        """Load the model. `path` is the file that the lines come from. Blank lines are left out."""
        self.opened, self.say = open_run(folder), say
        if self.opened.checkpoint is None:
            checkpoint, damaged = self.opened.run.checkpoints.best()  # stays the same if the run is still being trained
            for warning in damaged:
                say(warning)
            self.opened = self.opened._replace(checkpoint=checkpoint)
        self.embedder = load_embedder(self.opened, device, "search")
        self.precision = best_precision(self.opened.run, usable_device(device)) or "float32"
        places = os.path.realpath(folder), STANDARD_INPUT if is_pipe_name(path) else os.path.realpath(path)
        # start of the names of the folders for this run, file and precision
        self.name = _hash("\n".join((*places, self.precision)))[:16]
        self.line_indices = [index for index, line in enumerate(lines) if not is_blank(line)]
        self.lines = [lines[index] for index in self.line_indices]
        if not 0 < len(self.lines) <= MOST_LINES:
            n = f"{len(self.lines):,} lines, but the limit is {MOST_LINES:,}" if self.lines else "no lines to search"
            raise PenwrightError(f"the text has {n}. Give a file with one passage on each line")

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """The vectors of the lines, loaded from the cache, or computed and cached."""
        made_by = f"{FORMAT} {self.opened.best.weights_sha256} {self.opened.tokenizer.fingerprint} {self.precision}"
        hashes = [_hash(f"{made_by}\n{line}") for line in self.lines]
        kept = cache_folder("vectors") / f"{self.name}-{_hash(' '.join(hashes))}"
        shape = (len(self.lines), self.embedder.model.settings.d_model)
        vectors = _kept(kept / VECTORS, shape)
        if vectors is None:
            require_writable_cache()
            with locked(kept.parent / f"{self.name}.lock"):  # another process may be making the same index
                vectors = _kept(kept / VECTORS, shape)
                if vectors is None:
                    try:
                        self._make(kept, hashes)
                    except OSError as error:
                        reason = error.strerror or error
                        raise PenwrightError(f"{kept} could not be written: {reason}. {CACHE_ADVICE}") from None
                    vectors = _kept(kept / VECTORS, shape)
        if vectors is None:
            raise PenwrightError(f"{kept} cannot be read. Delete this folder")
        return vectors

    def _make(self, folder: Path, hashes: Sequence[str]) -> None:
        """Write the index of these lines, and delete the earlier one, whose vectors are reused."""
        width = self.embedder.model.settings.d_model
        earlier = [each for each in folder.parent.glob(f"{self.name}-*") if each != folder]
        known = {name: vector for each in earlier if not is_temporary(each) for name, vector in _rows(each, width)}
        new = [row for row, name in enumerate(hashes) if name not in known]
        if new:
            some = f"{len(new):,} of {len(hashes):,}" if len(new) < len(hashes) else f"{len(new):,}"
            self.say(f"embedding {some} lines, and caching their vectors in {folder.parent}")
        with saving(folder) as temporary, (temporary / VECTORS).open("wb") as file:
            # not through a memory map: if the disk is full, writing to it kills the process
            empty = np.lib.format.header_data_from_array_1_0(np.empty((0, width), np.float32))
            np.lib.format.write_array_header_1_0(file, {**empty, "shape": (len(hashes), width)})
            for begin in range(0, len(hashes), CHUNK):
                names = hashes[begin : begin + CHUNK]
                texts = [self.lines[row] for row, name in enumerate(names, begin) if name not in known]
                made = iter(self.embedder.embed(texts).numpy() if texts else ())
                rows = [known[name] if name in known else next(made) for name in names]
                file.write(np.asarray(rows, np.float32).tobytes())
            (temporary / HASHES).write_text("\n".join(hashes), encoding="ascii")
        for each in earlier:
            with suppress(OSError):  # Windows cannot delete open files
                remove_folder(each)

    def search(self, query: str, top: int = 10) -> list[Hit]:
        """Return the lines that are most similar to the query, in descending order of similarity."""
        similarities = self.vectors @ self.embedder.embed([query])[0].numpy()
        order = np.argsort(-similarities, kind="stable")[:top].tolist()
        return [Hit(float(similarities[row]), self.line_indices[row] + 1, self.lines[row]) for row in order]

    def near_duplicates(self, similar: float = SIMILAR) -> list[tuple[Hit, Hit]]:
        """Return each line that nearly repeats an earlier line, together with that line, most similar pairs first."""
        self._require_comparable()
        found = near_duplicates(self.vectors, self.lines, similar)
        return [(self._hit(each.row, each.similarity), self._hit(each.earlier, each.similarity)) for each in found]

    def clusters(self, n: int | None = None) -> list[tuple[tuple[str, ...], list[Hit]]]:
        """Return clusters of similar lines, largest first: their typical words, and their lines, most central first.

        The similarity of a line is its similarity to the center of its cluster.
        """
        self._require_comparable(n)
        found = find_clusters(self.vectors, self.lines, n)
        return [(each.words, list(map(self._hit, each.rows, each.similarities))) for each in found]

    def _hit(self, row: int, similarity: float) -> Hit:
        return Hit(similarity, self.line_indices[row] + 1, self.lines[row])

    def _require_comparable(self, n: int | None = None) -> None:
        """Raise PenwrightError, before the lines are embedded, if they cannot be compared or make no `n` clusters."""
        require_enough(self.lines, n)
        if len(self.lines) > MOST_COMPARED:
            raise PenwrightError(
                f"the text has {len(self.lines):,} lines, but at most {MOST_COMPARED:,} can be compared with each "
                "other. Pass a part of it"
            )


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _rows(folder: Path, width: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the hash of each line of an index, and its vector; yield nothing if the index is damaged."""
    with suppress(OSError, ValueError, PenwrightError):
        hashes = read_bytes(folder / HASHES).decode("ascii").split("\n")
        vectors = _kept(folder / VECTORS, (len(hashes), width))
        if vectors is not None:
            yield from zip(hashes, np.asarray(vectors), strict=True)  # indexing a memmap row by row is slow


def _kept(path: Path, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """Map the vectors into memory. Return None if they are missing, damaged or of a different shape."""
    try:
        require_plain(path)
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, PenwrightError):
        return None
    return vectors if vectors.shape == shape and vectors.dtype == np.float32 else None
