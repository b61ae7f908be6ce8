"""N-gram features equal a plain Python implementation."""

import re
from collections import Counter
from math import log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penwright.classification import ngrams
from penwright.classification.ngrams import WORD_BIT, NgramVectorizer, TfIdf, count_ngrams
from penwright.classification.solver import SparseRows
from penwright.text import BETWEEN_TEXTS

TEXTS = ["A fine film, a fine cast.", "a dull film", "", "   ", "x", "Żółć 😀 żółć", "one\ntwo\tthree one two"]


def naive_ngrams(text: str) -> tuple[Counter[str], Counter[tuple[str, ...]]]:
    """Return the counts of n-grams of 2 to 5 characters, and of 1 to 3 words or punctuation marks."""
    whole = " " + " ".join(text.lower().split()) + " "
    characters = Counter(whole[i : i + n] for n in range(2, 6) for i in range(len(whole) - n + 1))
    words = re.findall(r"\w+|[^\w\s]", whole)
    return characters, Counter(tuple(words[i : i + n]) for n in range(1, 4) for i in range(len(words) - n + 1))


def dense(rows: TfIdf, width: int) -> torch.Tensor:
    return SparseRows.of_numpy(*rows).dot(torch.eye(width))


@given(st.lists(st.text(st.sampled_from("ab .,é\n"), max_size=12), min_size=1, max_size=5))
def test_counts_equal_a_plain_loop(texts: list[str]) -> None:
    found = count_ngrams(texts)
    for row, text in enumerate(texts):
        characters, words = naive_ngrams(text)
        here = found.rows == row
        is_word = found.keys >= WORD_BIT
        assert sorted(found.counts[here & ~is_word]) == sorted(characters.values())
        assert sorted(found.counts[here & is_word]) == sorted(words.values())


def test_different_ngrams_have_different_hashes() -> None:
    together = [naive_ngrams(text) for text in TEXTS]
    distinct = set[object]().union(*(part for both in together for part in both))
    assert len(np.unique(count_ngrams(TEXTS).keys)) == len(distinct)


def test_values_are_tf_idf_normalized_for_words_and_characters() -> None:
    texts = ["a b a", "b c"]
    vectorizer = NgramVectorizer.fit(texts, 1000, 1000)
    rows = dense(vectorizer.rows(texts), len(vectorizer.keys))
    is_word = torch.from_numpy(vectorizer.keys >= WORD_BIT)
    for row, text in zip(rows, texts, strict=True):
        for mask, counts in zip((~is_word, is_word), naive_ngrams(text), strict=True):
            n_texts = {gram: sum(gram in part for each in texts for part in naive_ngrams(each)) for gram in counts}
            values = [(1 + log(n)) * (1 + log(3 / (1 + n_texts[gram]))) for gram, n in counts.items()]
            norm = sqrt(sum(value * value for value in values))
            found = row[mask & (row > 0)].sort().values
            assert found.tolist() == pytest.approx(sorted(value / norm for value in values), rel=1e-5)


def test_rows_do_not_depend_on_chunking(monkeypatch: pytest.MonkeyPatch) -> None:
    vectorizer = NgramVectorizer.fit(TEXTS, 1000, 1000)
    together = dense(vectorizer.rows(TEXTS), len(vectorizer.keys))
    monkeypatch.setattr(ngrams, "CHUNK_CHARACTERS", 10)
    assert torch.equal(dense(vectorizer.rows(TEXTS), len(vectorizer.keys)), together)
    other = NgramVectorizer.fit(TEXTS, 1000, 1000)
    assert np.array_equal(other.keys, vectorizer.keys) and np.array_equal(other.idf, vectorizer.idf)


def test_rare_ngrams_are_dropped_and_the_number_is_limited() -> None:
    texts = ["good film", "good cast", "odd"]
    assert len(NgramVectorizer.fit(texts, 1000, 0).keys) == len(
        {gram for part in (0, 1) for gram in naive_ngrams(texts[0])[part].keys() & naive_ngrams(texts[1])[part].keys()}
        | {
            gram
            for a in texts
            for b in texts
            if a != b
            for gram in naive_ngrams(a)[0].keys() & naive_ngrams(b)[0].keys()
        }
    )
    assert len(NgramVectorizer.fit(texts, 5, 1000).keys) <= 5


def test_unknown_ngrams_and_blank_texts_give_empty_rows() -> None:
    rows = NgramVectorizer.fit(["abc"], 100, 100).rows(["", "  ", "xyz", "abc"])
    assert np.diff(rows.offsets)[:3].tolist() == [0, 0, 0] and rows.offsets[-1] > 0


def test_very_long_text_is_truncated() -> None:
    long = ("ab " * ngrams.MOST_CHARACTERS)[: ngrams.MOST_CHARACTERS]
    assert count_ngrams([long + "zzz " * 10_000]).keys.tolist() == count_ngrams([long]).keys.tolist()


def test_each_text_of_a_pair_is_truncated_on_its_own() -> None:
    long = ("ab " * ngrams.MOST_CHARACTERS)[: ngrams.MOST_CHARACTERS]
    found, others = (count_ngrams([f"{long}{end}"]).keys for end in (f"{BETWEEN_TEXTS}cd", "cd"))
    assert len(found) > len(others)


def test_lone_surrogates_can_be_counted() -> None:
    assert len(count_ngrams(["a\ud800b"]).keys)


def test_transpose_and_row_selection_equal_dense_matrices() -> None:
    vectorizer = NgramVectorizer.fit(TEXTS, 1000, 1000)
    width = len(vectorizer.keys)
    rows = SparseRows.of_numpy(*vectorizer.rows(TEXTS))
    matrix = rows.dot(torch.eye(width))
    right = torch.randn(len(TEXTS), 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(rows.transpose(width).dot(right), matrix.T @ right, atol=1e-6)
    chosen = np.array([5, 0, 2])
    assert torch.equal(rows.take(chosen).dot(torch.eye(width)), matrix[chosen])
