"""Semantic search in the lines of a text file, whose vectors are cached."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penwright.classification.classifier import Classifier, is_blank
from penwright.classification.clusters import SIMILAR, find_clusters, near_duplicates, require_enough
from penwright.errors import PenwrightError, Say, say_nothing
from penwright.generation.generator import Generator
from penwright.storage import cache_folder, require_plain, require_writable_cache, saving
from penwright.workflows.load import load_embedder, open_run

CHUNK = 512  # number of lines to embed at once
MOST_LINES = 2_000_000
MOST_COMPARED = 50_000  # maximum number of lines to compare with each other
VECTORS = "vectors.npy"  # name of the file with the vectors, in a folder of the cache


class Hit(NamedTuple):
    """A line that matches a query."""

    similarity: float  # cosine similarity with the query
    line: int  # number of the line in the file, from 1
    text: str


class SearchIndex:
    """The lines of a file, and their vectors."""

    def __init__(self, folder: Path, lines: Sequence[str], device: str = "cpu", say: Say = say_nothing):
        """Load the model. Blank lines are left out."""
        self.opened, self.say = open_run(folder), say
        self.embedder = load_embedder(self.opened, device, "search")
        self.line_indices = [index for index, line in enumerate(lines) if not is_blank(line)]
        self.lines = [lines[index] for index in self.line_indices]
        if not 0 < len(self.lines) <= MOST_LINES:
            n = f"{len(self.lines):,} lines, but the limit is {MOST_LINES:,}" if self.lines else "no lines to search"
            raise PenwrightError(f"the text has {n}. Give a file with one passage on each line")

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """The vectors of the lines, loaded from the cache, or computed and cached."""
        made_by = [self.opened.best.weights_sha256, self.opened.tokenizer.fingerprint]
        key = sha256("\n".join([*made_by, *self.lines]).encode("utf-8", "surrogatepass")).hexdigest()
        kept = cache_folder("vectors") / key[:32]
        shape = (len(self.lines), self.embedder.model.settings.d_model)
        vectors = _kept(kept / VECTORS, shape)
        if vectors is None:
            require_writable_cache()
            self.say(f"embedding {len(self.lines):,} lines, and caching their vectors in {kept.parent}")
            _keep(kept, shape, _embedded(self.embedder, self.lines))
            vectors = _kept(kept / VECTORS, shape)
        if vectors is None:
            raise PenwrightError(f"{kept} cannot be read. Delete this folder")
        return vectors

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


def _embedded(embedder: Classifier | Generator, lines: Sequence[str]) -> Iterator[NDArray[np.float32]]:
    for begin in range(0, len(lines), CHUNK):
        yield embedder.embed(lines[begin : begin + CHUNK]).numpy()


def _keep(folder: Path, shape: tuple[int, int], parts: Iterator[NDArray[np.float32]]) -> None:
    with saving(folder) as temporary:
        vectors = np.lib.format.open_memmap(temporary / VECTORS, mode="w+", dtype=np.float32, shape=shape)
        begin = 0
        for part in parts:
            vectors[begin : begin + len(part)] = part
            begin += len(part)
        vectors.flush()


def _kept(path: Path, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """Map the vectors into memory. Return None if they are missing, damaged or of a different shape."""
    try:
        require_plain(path)
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, PenwrightError):
        return None
    return vectors if vectors.shape == shape and vectors.dtype == np.float32 else None
