"""Display width, wrapping and spacing of text in several scripts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penwright.text import display_width, gap_between, significant, wrap


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("你好", 4), ("한국", 4), ("e\u0301", 1), ("בְּ", 1), ("", 0)])
def test_wide_characters_take_two_columns_and_accents_none(text, width):
    assert display_width(text) == width


@given(st.text("你好 。「」ab\u3000", max_size=60), st.integers(4, 20))
def test_wrapped_lines_keep_all_letters_in_order(text, width):
    assert "".join("".join(wrap(text, width)).split()) == "".join(text.split())


def test_wrapped_lines_fit_and_never_start_with_a_full_stop():
    lines = list(wrap("我来了。你好吗？" * 9, 14))
    assert max(map(display_width, lines)) <= 14
    assert not any(line.startswith(("。", "？")) for line in lines)


@pytest.mark.parametrize(
    ("before", "gap", "after", "source", "found"),
    [
        ("Hello.", "", "You?", ("好。", "你"), " "),  # Chinese to English
        ("好。", " ", "你", ("Hello.", "You?"), ""),
        ("สวัสดี", " ", "คุณ", ("Hello.", "You?"), " "),  # Thai sentences have a space between them
        ("supercali", "", "fragilistic", ("super", "cali"), ""),  # a long word that was cut
        ("好。", "", "你", ("好。", "你"), ""),
        ("Hello.", "  ", "You?", ("Salut.", "Toi"), "  "),
    ],
)
def test_gap_between_sentences_follows_their_script(before, gap, after, source, found):
    assert gap_between(before, gap, after, source) == found


@pytest.mark.parametrize(
    ("number", "printed"),
    [(248123.7, "248124"), (2.5e9, "2500000000"), (-3.14159265, "-3.14159"), (0.00001, "0.00001"), (3.0, "3")],
)
def test_numbers_are_printed_without_an_exponent(number: float, printed: str) -> None:
    assert significant(number) == printed
