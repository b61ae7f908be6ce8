"""Segmentation into words in any script."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penwright.text import complete_last_word, joined, word_spans
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.translation.alignment import pieces_of_words


def cut(text: str) -> list[str]:
    return [text[start:end] for start, end in word_spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A dog  runs.", ["A", "dog", "runs."]),
        ("don't, naïve e\u0301te\u0301", ["don't,", "naïve", "e\u0301te\u0301"]),
        ("猫在家。", ["猫", "在", "家", "。"]),
        ("我爱Python 3。", ["我", "爱", "Python", "3", "。"]),
        ("コーヒーを飲む", ["コー", "ヒー", "を", "飲", "む"]),
        ("か\u3099く", ["か\u3099", "く"]),  # a combining mark
        ("葛\U000e0100城", ["葛\U000e0100", "城"]),  # a variation selector
        ("「はい」\u3000と", ["「", "は", "い", "」", "と"]),
        ("น้ำเย็น", ["น้ำ", "เย็", "น"]),  # marks and leading vowels stay with their consonant
        ("ມື້ນີ້", ["ມື້", "ນີ້"]),
        ("ខ្មែរ", ["ខ្មែ", "រ"]),  # a subscript consonant
        ("မြန်မာ", ["မြ", "န်", "မာ"]),
        ("한국어 문장.", ["한국어", "문장."]),  # a script with spaces
        ("привет, мир", ["привет,", "мир"]),
        ("", []),
        (" \n\u3000", []),
    ],
)
def test_words_are_split_by_the_rules_of_their_script(text: str, expected: list[str]) -> None:
    assert cut(text) == expected


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text("a 。猫ーน้ำเ\u200d\u3099\u17d2ក"))
def test_words_are_in_order_and_drop_only_white_space(text: str) -> None:
    spans = word_spans(text)
    assert all(start < end for start, end in spans)
    assert all(one.end <= other.start for one, other in pairwise(spans))
    assert "".join(cut(text)) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "expected"), [("", ""), ("dog", "dog "), ("dog ", "dog "), ("猫", "猫"), ("น้ำ", "น้ำ")]
)
def test_complete_last_word_adds_a_space_in_scripts_with_spaces(text: str, expected: str) -> None:
    assert complete_last_word(text) == expected


def test_characters_of_one_token_stay_together() -> None:
    text = "我们在 家里"
    assert [text[a:b] for a, b in joined(text, word_spans(text), [6, 3, 1, 3, 3])] == ["我们", "在", "家", "里"]
    assert [text[a:b] for a, b in joined(text, word_spans(text), [2, 4, 3, 7])] == ["我们", "在", "家里"]
    english = "the dog"
    assert joined(english, word_spans(english), [7]) == word_spans(english), "white space always separates words"


def test_words_consist_of_whole_tokens() -> None:
    tokenizer: Tokenizer = train_tokenizer("bpe", ["我们在家里。你们在家里。" * 20], 300)
    text = "我们在家。"
    found = pieces_of_words(text, tokenizer)
    ends = set(accumulate(tokenizer.sizes(text)))
    assert {len(text[: span.end].encode()) for span in found} <= ends
    assert 1 < len(found) < len(text), "some characters share a token"
    assert "".join(text[start:end] for start, end in found) == text
