"""Two texts or two models side by side: nothing is lost, and what is laid beside each other belongs together."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penwright.config import Task
from penwright.errors import UsageError
from penwright.inspection import Inspector
from penwright.inspection.comparison import Comparison, TokenNlls, compare, compare_heads
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer

Make = Callable[..., Inspector]


def surprises(texts: Sequence[str]) -> TokenNlls:
    return TokenNlls(list(texts), np.arange(1.0, len(texts) + 1))


def rows(found: Comparison) -> list[tuple[str, str]]:
    return list(zip(found.first_texts, found.second_texts, strict=True))


pieces_of_text = st.lists(st.text("ab ", max_size=3), max_size=12)


@given(pieces_of_text, pieces_of_text)
def test_every_piece_of_both_is_there_in_its_order_with_its_nats(first: list[str], second: list[str]) -> None:
    found = compare(surprises(first), surprises(second))
    assert ("".join(found.first_texts), "".join(found.second_texts)) == ("".join(first), "".join(second))
    assert (np.nansum(found.first), np.nansum(found.second)) == found.sums
    assert found.sums == (sum(range(len(first) + 1)), sum(range(len(second) + 1)))
    both = ~np.isnan(found.first) & ~np.isnan(found.second)
    np.testing.assert_array_equal(found.differences[both], (found.second - found.first)[both])
    assert np.isnan(found.differences[~both]).all()


@given(st.text("ab ", max_size=20), st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)))
def test_of_one_text_each_row_spells_the_same_and_as_few_as_can_be(
    text: str, first: set[int], second: set[int]
) -> None:
    def cut(places: set[int]) -> list[str]:
        ends = [0, *sorted(place for place in places if 0 < place < len(text)), len(text)]
        return [text[a:b] for a, b in pairwise(ends) if a < b]

    found = compare(surprises(cut(first)), surprises(cut(second)))
    assert all(one == other for one, other in rows(found))
    inside = {place for place in first & second if 0 < place < len(text)}
    assert len(rows(found)) == (len(inside) + 1 if text else 0)


def test_what_two_texts_share_is_beside_itself() -> None:
    first, second = ["the", " cat", " sat", " here", "."], ["the", " old", " dog", " sat", " here", " now", "."]
    assert rows(compare(surprises(first), surprises(second))) == [
        ("the", "the"),
        (" cat", " old dog"),
        (" sat", " sat"),
        (" here", " here"),
        ("", " now"),
        (".", "."),
    ]


def test_texts_that_differ_over_very_much_are_refused_and_equal_ends_count_for_nothing() -> None:
    shared = [str(number) for number in range(5000)]
    assert len(rows(compare(surprises([*shared, "a", *shared]), surprises([*shared, "b", *shared])))) == 10_001
    with pytest.raises(UsageError, match="5,000 and 5,000 tokens"):
        compare(surprises(shared), surprises(shared[::-1]))


def test_surprises_are_those_of_the_model(inspector: Make, task: Task, asked: tuple[str, str | None]) -> None:
    look = inspector(task)
    found = look.surprises(*asked)
    if task == "classify":
        said = {label: float(np.exp(-nats)) for label, nats in zip(found.texts, found.nats, strict=True)}
        lens = look.lens(asked[0], k=3)
        (names,) = lens.top_tokens[-1]
        assert said == pytest.approx(dict(zip(names, lens.top_probabilities[-1, 0].tolist(), strict=True)))
    else:
        scores = look.token_scores(*asked)
        np.testing.assert_array_equal(found.nats, -scores.log_probs)
        assert found.texts == [token.text for token in scores.tokens]


def test_two_models_with_other_tokenizers_are_compared_over_one_text(inspector: Make, characters: Tokenizer) -> None:
    text = "a bad ace"
    pieces = train_tokenizer("bpe", ["a bad ace " * 50], 290)
    one, two = (inspector("generate", tokenizer=each).surprises(text) for each in (pieces, characters))
    assert len(one.texts) < len(two.texts)
    found = compare(one, two)
    assert found.first_texts == found.second_texts == tuple(one.texts)
    np.testing.assert_array_equal(found.first, one.nats)


def test_heads_stand_beside_those_of_the_same_name_and_a_lacking_one_is_nan(inspector: Make) -> None:
    small, large = inspector("generate"), inspector("generate", {"n_layers": 3, "n_heads": 6})
    text = "abc bad cab"
    one, two = small.head_statistics(text), large.head_statistics(text)
    (part,) = compare_heads(one, two)
    assert part.layers == (0, 1, 2) and part.first["entropy"].shape == (3, 6)
    np.testing.assert_array_equal(part.first["entropy"][:2, :4], one[0].entropy)
    np.testing.assert_array_equal(part.second["entropy"], two[0].entropy)
    assert np.isnan(part.first["entropy"][2]).all() and np.isnan(part.first["entropy"][:, 4:]).all()
    assert "last" not in part.first, "a decoder has none"
