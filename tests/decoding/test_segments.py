from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.translation.documents import segments, sentences


def at_most(n: int) -> Callable[[str], bool]:
    return lambda text: len(text.strip()) <= n


@given(st.text("ab .,;。\t\u2028", max_size=60), st.integers(1, 12))
@settings(max_examples=100)
def test_segments_fit_and_join_to_the_text(text: str, n: int) -> None:
    parts = segments(text, at_most(n), "en")
    assert "".join(parts) == text
    assert all(at_most(n)(part) for part in parts)


def test_text_that_fits_stays_whole() -> None:
    assert segments("One. Two.", at_most(9), "en") == ["One. Two."]


def test_long_text_is_split_between_sentences() -> None:
    assert segments("One is here. Two is Mr. X.", at_most(15), "en") == ["One is here. ", "Two is Mr. X."]


def test_long_sentence_is_split_between_clauses_near_its_middle() -> None:
    parts = segments("a, when it was late, he went home early", at_most(25), "en")
    assert parts == ["a, when it was late, ", "he went home early"]


def test_long_clause_is_split_between_words() -> None:
    assert segments("three small words", at_most(11), "en") == ["three ", "small words"]


def test_long_word_is_split_anywhere() -> None:
    assert segments("abcdefgh", at_most(3), "en") == ["ab", "cd", "ef", "gh"]


def test_numbers_are_not_split_at_commas() -> None:
    assert segments("it costs 1,000,000 here", at_most(20), "en") == ["it costs ", "1,000,000 here"]


@pytest.mark.parametrize("language", ["zh", "", "no-such-language"])
def test_unknown_language_codes_are_accepted(language: str) -> None:
    assert "".join(segments("你好，世界。再见。", at_most(4), language)) == "你好，世界。再见。"


@pytest.mark.parametrize(
    ("language", "n"),
    [("de", 2), ("de-CH", 2), ("DE_at", 2), ("deu_Latn", 2), ("en", 4), (None, 4), ("no such one", 4)],
)
def test_sentences_follow_the_language_and_join_to_the_text(language: str | None, n: int) -> None:
    text = "Er kam am 3. Mai 2020 an. Das ist gut, bzw. Dr. Meier sagt es. "
    found = sentences(text, language)
    assert "".join(found) == text and len(found) == n
