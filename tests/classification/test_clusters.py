"""Clusters and near-duplicates of texts."""

import numpy as np
import pytest
from jaxtyping import Float

from penwright.classification.clusters import MOST_CLUSTERS, find_clusters, near_duplicates
from penwright.errors import PenwrightError, UsageError

SUBJECTS = (("ship harbour", 30), ("oven bread", 20), ("goal striker", 10))
TEXTS = [f"the {words} number {number}" for words, n in SUBJECTS for number in range(n)]


def vectors_of(spread: float) -> Float[np.ndarray, "texts d_model"]:
    """Return vectors around one direction per subject, plus a long common vector, as many encoders have."""
    rng = np.random.default_rng(0)
    centers = np.repeat(np.eye(3, 16), [n for _, n in SUBJECTS], axis=0)
    raw = centers + spread * rng.standard_normal((len(TEXTS), 16)) + 10 * np.eye(16)[15]
    vectors: Float[np.ndarray, "texts d_model"] = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)
    return vectors


def test_number_of_clusters_follows_from_the_vectors_and_words_are_typical() -> None:
    found = find_clusters(vectors_of(0.02), TEXTS)
    assert [len(each.rows) for each in found] == [n for _, n in SUBJECTS]
    assert sorted(found[0].rows) == list(range(30))
    for each, (words, _) in zip(found, SUBJECTS, strict=True):
        assert set(each.words[:2]) == set(words.split()) and "the" not in each.words
        assert list(each.similarities) == sorted(each.similarities, reverse=True)


@pytest.mark.parametrize("n", [2, 7, MOST_CLUSTERS])
def test_requested_number_of_clusters_holds_every_text_once(n: int) -> None:
    found = find_clusters(vectors_of(0.3), TEXTS, n)
    assert 2 <= len(found) <= n
    assert sorted(row for each in found for row in each.rows) == list(range(len(TEXTS)))
    assert found == find_clusters(vectors_of(0.3), TEXTS, n)


def test_near_duplicates_need_similar_vectors_and_common_words() -> None:
    vectors = vectors_of(0.02).copy()
    texts = [" ".join([text, *(f"{letter}{row}" for letter in "abcdef")]) for row, text in enumerate(TEXTS)]
    texts[7], texts[9] = texts[3], "Quite ANOTHER thing: entirely"
    texts[45] = "quite another thing, entirely"  # the same words, but another direction
    texts[50], texts[55] = "a penalty shot in the rain", "a penalty shot in rain"
    vectors[55] = vectors[50]
    found = {(each.row, each.earlier): each.similarity for each in near_duplicates(vectors, texts)}
    assert set(found) == {(7, 3), (55, 50)} and found[7, 3] == 1.0
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_bounds_are_named() -> None:
    with pytest.raises(UsageError, match=r"only 3 different texts\. Give at least 10"):
        near_duplicates(vectors_of(0.1)[:30], ["a", "b", "c"] * 10)
    with pytest.raises(UsageError, match=r"31 clusters are not possible\. Choose a number from 2 to 30"):
        find_clusters(vectors_of(0.1), TEXTS, 31)
    alike = np.ones((20, 4), dtype=np.float32) / 2
    assert [len(each.rows) for each in find_clusters(alike, [str(n) for n in range(20)])] == [20]


def test_vectors_of_a_diverged_model_are_refused() -> None:
    vectors = vectors_of(0.02)
    vectors[7] = np.nan
    for compare in (find_clusters, near_duplicates):
        with pytest.raises(PenwrightError, match="training diverged"):
            compare(vectors, TEXTS)
