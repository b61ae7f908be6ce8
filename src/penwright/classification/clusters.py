"""Clusters and near-duplicates of texts, found in their vectors."""

import re
from collections import Counter
from collections.abc import Sequence
from math import log
from typing import NamedTuple
from zlib import crc32

import numpy as np
from jaxtyping import Float, Int64

from penwright.decoding.batches import diverged
from penwright.errors import UsageError
from penwright.text import WITHOUT_SPACES, words

FEWEST_TEXTS = 10  # minimum number of distinct texts to cluster
MOST_CLUSTERS = 30
MOST_TRIED = 12  # maximum number of clusters, unless the caller chooses a number
ENOUGH_TEXTS = 10  # minimum average number of texts per cluster, unless the caller chooses a number
# Choose the largest number of clusters whose silhouette s is at least best - TOLERANCE * best * (1 - best).
TOLERANCE = 0.1
N_STARTS, N_ITERATIONS = 3, 50  # runs of k-means with different starts, and the maximum number of iterations of each
SAMPLED = 3000  # maximum number of texts from which the centers are computed
N_WORDS = 6  # number of typical words of a cluster
MOST_WORDS = 200  # only this many words at the beginning of each text can become typical words
SIMILAR, SHARED = 0.9, 0.5  # minimum similarity of near-duplicates: of their vectors, and of their words
N_HASHES = 512  # number of hash buckets for words
WORD = re.compile(r"\w(?:[\w'’-]*\w)?")
BLOCK = 1024  # number of texts to compare at once

Vectors = Float[np.ndarray, "texts d_model"]
Centers = Float[np.ndarray, "clusters d_model"]


class Cluster(NamedTuple):
    """Texts with similar vectors."""

    rows: tuple[int, ...]  # indices of the texts, the most central first
    similarities: tuple[float, ...]  # cosine similarity of each of these texts with the center
    words: tuple[str, ...]  # words that occur much more often in this cluster than in the other texts


class NearDuplicate(NamedTuple):
    """A text that is nearly the same as an earlier one."""

    similarity: float  # cosine similarity of the centered vectors; 1 for equal texts
    row: int  # index of the text
    earlier: int  # index of the most similar earlier text


def require_enough(texts: Sequence[str], n: int | None = None) -> None:
    """Raise UsageError if there are fewer than FEWEST_TEXTS different texts, or if `n` clusters are not possible."""
    if n is not None and not 2 <= n <= MOST_CLUSTERS:
        raise UsageError(f"{n} clusters are not possible. Choose a number from 2 to {MOST_CLUSTERS}")
    n_different = len(set(texts))
    if n_different < FEWEST_TEXTS:
        raise UsageError(f"there are only {n_different} different texts. Give at least {FEWEST_TEXTS}")


def centered(vectors: Vectors, texts: Sequence[str]) -> Vectors:
    """Subtract the mean vector, since the vectors of an encoder often share a component; return unit vectors.

    Raises UsageError if there are fewer than FEWEST_TEXTS different texts, PenwrightError for vectors with NaN.
    """
    require_enough(texts)
    if not np.isfinite(vectors).all():
        raise diverged()
    distinct = list({text: row for row, text in enumerate(texts)}.values())
    return _unit(vectors - vectors[distinct].mean(0))


def find_clusters(vectors: Vectors, texts: Sequence[str], n: int | None = None) -> list[Cluster]:
    """Divide texts into `n` clusters, largest first (spherical k-means, Dhillon and Modha 2001).

    By default, `n` is the largest number of clusters whose silhouette (Rousseeuw 1987) is close to the best.
    """
    require_enough(texts, n)
    rng, points = np.random.default_rng(0), centered(vectors, texts)
    sample = points if len(points) <= SAMPLED else points[rng.permutation(len(points))[:SAMPLED]]
    tried = [n] if n else range(2, min(MOST_TRIED, max(2, len(sample) // ENOUGH_TEXTS)) + 1)
    found = [_k_means(sample, min(k, len(sample)), rng) for k in tried]
    scores = [_silhouette(sample, (sample @ centers.T).argmax(1)) for centers in found]
    least = max(scores) - TOLERANCE * max(scores) * (1 - max(scores))
    good = [centers for centers, score in zip(found, scores, strict=True) if score >= least]
    centers = (good or found)[-1]
    similarities = points @ centers.T
    which = similarities.argmax(1)
    vocabularies = [_vocabulary(text) for text in texts]
    everywhere, clusters = Counter(word for each in vocabularies for word in each), []
    for cluster in range(len(centers)):
        rows = np.flatnonzero(which == cluster)
        if len(rows):
            order = rows[np.argsort(-similarities[rows, cluster], kind="stable")]
            here = Counter(word for row in order.tolist() for word in vocabularies[row])
            typical = _typical(here, len(rows), everywhere, len(texts))
            clusters.append(Cluster(tuple(order.tolist()), tuple(similarities[order, cluster].tolist()), typical))
    return sorted(clusters, key=lambda each: -len(each.rows))


def near_duplicates(vectors: Vectors, texts: Sequence[str], similar: float = SIMILAR) -> list[NearDuplicate]:
    """Return each text that is nearly the same as an earlier text, and that earlier text; most similar pairs first.

    The two texts must have similar vectors and share words: the vectors of a classifier reveal little but the label.
    """
    points, lexical, first = centered(vectors, texts), _lexical(texts), dict[str, int]()
    earlier = np.array([first.setdefault(text, row) for row, text in enumerate(texts)])
    repeats = np.flatnonzero(earlier != np.arange(len(texts)))
    found = [NearDuplicate(1.0, row, int(earlier[row])) for row in repeats.tolist()]
    distinct = np.setdiff1d(np.arange(len(texts)), repeats)
    for begin in range(0, len(distinct), BLOCK):
        rows = distinct[begin : begin + BLOCK]
        others = distinct[: begin + len(rows)]
        similarities = points[rows] @ points[others].T
        similarities[(others[None] >= rows[:, None]) | (lexical[rows] @ lexical[others].T < SHARED)] = -np.inf
        best = similarities.argmax(1)
        values = similarities[np.arange(len(rows)), best]
        close = np.flatnonzero(values >= similar).tolist()
        found += [NearDuplicate(min(1.0, float(values[at])), int(rows[at]), int(others[best[at]])) for at in close]
    return sorted(found, key=lambda each: (-each.similarity, each.row))


def _unit(vectors: Float[np.ndarray, "rows width"]) -> Float[np.ndarray, "rows width"]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _k_means(points: Vectors, k: int, rng: np.random.Generator) -> Centers:
    """Return the unit centers of `k` clusters, the best of several runs."""
    runs = [_one_k_means(points, k, rng) for _ in range(N_STARTS)]
    return max(runs, key=lambda centers: float((points @ centers.T).max(1).sum()))


def _one_k_means(points: Vectors, k: int, rng: np.random.Generator) -> Centers:
    centers = _starts(points, k, rng)
    which = None
    for _ in range(N_ITERATIONS):
        similarities = points @ centers.T
        before, which = which, similarities.argmax(1)
        if before is not None and (before == which).all():
            break
        one_hot = np.eye(k, dtype=points.dtype)[which]
        sums = one_hot.T @ points
        empty = np.flatnonzero(one_hot.sum(0) == 0)
        sums[empty] = points[similarities.max(1).argsort()[: len(empty)]]  # move empty clusters to the farthest texts
        centers = _unit(sums)
    return centers


def _starts(points: Vectors, k: int, rng: np.random.Generator) -> Centers:
    """Draw the first centers from the points, each far from the others (k-means++, Arthur and Vassilvitskii 2007)."""
    chosen = [int(rng.integers(len(points)))]
    distances = 1 - points @ points[chosen[0]]
    while len(chosen) < k:
        weights = np.clip(distances, 0, None).astype(np.float64) + 1e-12
        chosen.append(int(rng.choice(len(points), p=weights / weights.sum())))
        distances = np.minimum(distances, 1 - points @ points[chosen[-1]])
    return points[chosen]


def _silhouette(points: Vectors, which: Int64[np.ndarray, " texts"]) -> float:
    """Return the mean silhouette: how much closer texts are to their own cluster than to the nearest other one.

    It is between -1 and 1. The distance to a cluster is one minus the mean cosine similarity with its texts.
    """
    present, which = np.unique(which, return_inverse=True)
    if len(present) == 1:
        return 0.0
    one_hot = np.eye(len(present), dtype=points.dtype)[which]
    sizes, rows = one_hot.sum(0), np.arange(len(points))
    sums = points @ (one_hot.T @ points).T
    own = 1 - (sums[rows, which] - 1) / np.maximum(sizes[which] - 1, 1)
    means = sums / sizes
    means[rows, which] = -np.inf
    other = 1 - means.max(1)
    values = (other - own) / np.maximum(np.maximum(own, other), 1e-12)
    return float(np.where(sizes[which] > 1, values, 0).mean())


def _vocabulary(text: str) -> set[str]:
    """Return the distinct words at the beginning of a text, in lower case and without punctuation."""
    found = (word for part in words(text)[:MOST_WORDS] for word in WORD.findall(part.lower()))
    return {word for word in found if not word.isdecimal() and (len(word) > 1 or WITHOUT_SPACES.match(word))}


def _lexical(texts: Sequence[str]) -> Float[np.ndarray, "texts n_hashes"]:
    """Return a unit vector for each text. Dot products approximate the TF-IDF similarity of two texts."""
    vocabularies = [_vocabulary(text) for text in texts]
    counts = Counter(word for each in vocabularies for word in each)
    vectors = np.zeros((len(texts), N_HASHES), dtype=np.float32)
    for row, vocabulary in enumerate(vocabularies):
        for word in vocabulary:
            number = crc32(word.encode("utf-8", "surrogatepass"))
            vectors[row, number % N_HASHES] += (1 if number >> 31 else -1) * log((1 + len(texts)) / counts[word])
    return _unit(vectors)


def _typical(here: Counter[str], n_here: int, everywhere: Counter[str], n_texts: int) -> tuple[str, ...]:
    """Return the words that occur in many texts of a cluster, and in a much smaller share of all texts."""

    def weight(word: str) -> float:
        share = here[word] / n_here
        return share * max(0.0, log(share * n_texts / everywhere[word])) ** 2

    frequent = [word for word, count in here.items() if count > 1] or list(here)
    best = sorted(frequent, key=lambda word: (-weight(word), word))[:N_WORDS]
    return tuple(word for word in best if weight(word) > 0)
