"""Comparison of two texts or two models: nothing is lost, and matching pieces share a row."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penwright.cli.questions import draw_compared
from penwright.config import Task
from penwright.errors import UsageError
from penwright.inspection import Inspector
from penwright.inspection.comparison import Comparison, TokenNlls, compare, compare_heads
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer

MakeInspector = Callable[..., Inspector]


def token_nlls(texts: Sequence[str]) -> TokenNlls:
    return TokenNlls(list(texts), np.arange(1.0, len(texts) + 1))


def rows(found: Comparison) -> list[tuple[str, str]]:
    return list(zip(found.first_texts, found.second_texts, strict=True))


text_pieces = st.lists(st.text("ab ", max_size=3), max_size=12)


@given(text_pieces, text_pieces)
def test_comparison_keeps_all_pieces_and_nats_in_order(first: list[str], second: list[str]) -> None:
    found = compare(token_nlls(first), token_nlls(second))
    assert ("".join(found.first_texts), "".join(found.second_texts)) == ("".join(first), "".join(second))
    assert (np.nansum(found.first), np.nansum(found.second)) == found.sums
    assert found.sums == (sum(range(len(first) + 1)), sum(range(len(second) + 1)))
    both = ~np.isnan(found.first) & ~np.isnan(found.second)
    np.testing.assert_array_equal(found.differences[both], (found.second - found.first)[both])
    assert np.isnan(found.differences[~both]).all()


@given(st.text("ab ", max_size=20), st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)))
def test_two_segmentations_of_one_text_split_at_shared_boundaries(text: str, first: set[int], second: set[int]) -> None:
    def cut(places: set[int]) -> list[str]:
        ends = [0, *sorted(place for place in places if 0 < place < len(text)), len(text)]
        return [text[a:b] for a, b in pairwise(ends) if a < b]

    found = compare(token_nlls(cut(first)), token_nlls(cut(second)))
    assert all(one == other for one, other in rows(found))
    inside = {place for place in first & second if 0 < place < len(text)}
    assert len(rows(found)) == (len(inside) + 1 if text else 0)


def test_shared_pieces_of_two_texts_are_aligned() -> None:
    first, second = ["the", " cat", " sat", " here", "."], ["the", " old", " dog", " sat", " here", " now", "."]
    assert rows(compare(token_nlls(first), token_nlls(second))) == [
        ("the", "the"),
        (" cat", " old dog"),
        (" sat", " sat"),
        (" here", " here"),
        ("", " now"),
        (".", "."),
    ]


def test_too_large_differences_are_refused_ignoring_equal_ends() -> None:
    shared = [str(number) for number in range(5000)]
    assert len(rows(compare(token_nlls([*shared, "a", *shared]), token_nlls([*shared, "b", *shared])))) == 10_001
    with pytest.raises(UsageError, match="5,000 and 5,000 tokens"):
        compare(token_nlls(shared), token_nlls(shared[::-1]))


def test_surprisals_equal_the_models(
    make_inspector: MakeInspector, task: Task, text_and_target: tuple[str, str | None]
) -> None:
    inspector = make_inspector(task)
    found = inspector.token_nlls(*text_and_target)
    if task == "classify":
        probabilities = {label: float(np.exp(-nats)) for label, nats in zip(found.texts, found.nats, strict=True)}
        lens = inspector.lens(text_and_target[0], k=3)
        (names,) = lens.top_tokens[-1]
        assert probabilities == pytest.approx(dict(zip(names, lens.top_probabilities[-1, 0].tolist(), strict=True)))
    else:
        scores = inspector.token_scores(*text_and_target)
        np.testing.assert_array_equal(found.nats, -scores.log_probs)
        assert found.texts == [token.text for token in scores.tokens]


def test_models_with_different_tokenizers_are_compared(make_inspector: MakeInspector, characters: Tokenizer) -> None:
    text = "a bad ace"
    pieces = train_tokenizer("bpe", ["a bad ace " * 50], 290)
    one, two = (make_inspector("generate", tokenizer=each).token_nlls(text) for each in (pieces, characters))
    assert len(one.texts) < len(two.texts)
    found = compare(one, two)
    assert found.first_texts == found.second_texts == tuple(one.texts)
    np.testing.assert_array_equal(found.first, one.nats)


def test_tokens_that_cut_characters_differently_are_compared(make_inspector: MakeInspector) -> None:
    text = "a naïve 🦊 face"
    pieces = train_tokenizer("bpe", [text] * 9, 262)  # no token for a whole ï
    spaced = train_tokenizer("bpe", [text] * 9, 290, prefix_space=True)
    one, *others = (
        make_inspector("generate", tokenizer=each).token_nlls(text)
        for each in (pieces, train_tokenizer("characters", [text]), spaced)
    )
    for other in others:
        found = compare(one, other)
        assert found.first_texts == found.second_texts and "".join(found.first_texts) == text
        assert not np.isnan(found.differences).any() and len(found.differences) > 2


def test_labels_are_compared_by_name() -> None:
    one, two = (TokenNlls(names, np.arange(1.0, 3.0), are_labels=True) for names in (["neg", "pos"], ["pos", "negpos"]))
    found = compare(one, two)
    assert rows(found) == [("neg", ""), ("pos", "pos"), ("", "negpos")]
    np.testing.assert_array_equal(found.differences, [np.nan, -1, np.nan])
    assert np.isnan(found.sums).all(), "the surprisals of labels have no meaningful sum"
    (title, _) = draw_compared(found, ("one", "two"))
    assert str(title) == "surprisal in nats"


def test_heads_are_compared_by_name_and_missing_ones_are_nan(make_inspector: MakeInspector) -> None:
    small, large = make_inspector("generate"), make_inspector("generate", {"n_layers": 3, "n_heads": 6})
    text = "abc bad cab"
    one, two = small.head_statistics(text), large.head_statistics(text)
    (part,) = compare_heads(one, two)
    assert part.layers == (0, 1, 2) and part.first["entropy"].shape == (3, 6)
    np.testing.assert_array_equal(part.first["entropy"][:2, :4], one[0].entropy)
    np.testing.assert_array_equal(part.second["entropy"], two[0].entropy)
    assert np.isnan(part.first["entropy"][2]).all() and np.isnan(part.first["entropy"][:, 4:]).all()
    assert "last" not in part.first, "a decoder has no such statistic"
