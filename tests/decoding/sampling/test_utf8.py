"""UTF-8 rules: only tokens that keep the text valid are allowed, as Python's decoder defines it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penwright.decoding.sampling.utf8 import FREE, GO_ON, MISSING, Utf8Rules

BYTES = [bytes([byte]) for byte in range(256)]
CHARACTERS = ["a", "é", "ł", "न", "漢", "\ud7ff", "\ue000", "😀", "\U0010ffff"]
# One of each 64 characters that differ only in the last byte, which belongs to no partial character.
WHOLE = (chr(code).encode() for code in range(0, 0x110000, 64) if not 0xD800 <= code < 0xE000)
PARTIAL_CHARACTERS = {character[:n] for character in WHOLE for n in range(1, len(character))}


def can_become_text(text_bytes: bytes) -> bool:
    """Whether these bytes are text, or text and a part of one more character."""
    rests = (text_bytes[len(text_bytes) - n :] for n in range(1, 4))
    whole = [text_bytes, *(text_bytes[: -len(rest)] for rest in rests if rest in PARTIAL_CHARACTERS)]
    return any(is_text(each) for each in whole)


def is_text(text_bytes: bytes) -> bool:
    try:
        text_bytes.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.lists(st.sampled_from(BYTES), min_size=1, max_size=6).map(b"".join))
def test_byte_is_allowed_iff_the_text_can_still_become_valid(text_bytes: bytes) -> None:
    utf8_rules, state = Utf8Rules(BYTES), np.zeros(1, np.uint8)
    for place, byte in enumerate(text_bytes):
        allowed = utf8_rules.may_come[utf8_rules.situations(state, np.array([9]))][0, byte]
        assert allowed == can_become_text(text_bytes[: place + 1])
        if not allowed:
            return
        state = utf8_rules.after[state, byte]


@pytest.mark.parametrize("text", CHARACTERS)
def test_missing_bytes_are_counted(text: str) -> None:
    text_bytes, utf8_rules = text.encode(), Utf8Rules(BYTES)
    for n in range(1, len(text_bytes) + 1):
        state = Utf8Rules([text_bytes[:n]]).after[0, 0]
        assert MISSING[state] == len(text_bytes) - n
        (allowed,) = utf8_rules.may_come[utf8_rules.situations(np.array([state]), np.array([9]))]
        assert n == len(text_bytes) or allowed[text_bytes[n]]


def test_multi_byte_tokens_are_followed_from_every_state() -> None:
    utf8_rules = Utf8Rules(["漢字".encode(), "漢".encode()[:2], "漢".encode()[2:], "漢".encode()[2:] + b" \xe5"])
    allowed = utf8_rules.may_come[utf8_rules.situations(np.array([0, 1], dtype=np.uint8), np.array([9]))]
    assert allowed.tolist() == [[True, True, False, False], [False, False, True, True]]
    assert utf8_rules.after[0, :2].tolist() == [0, 1] and utf8_rules.after[1, 2:].tolist() == [0, 2]


def test_end_token_only_after_whole_characters_and_banned_tokens_never() -> None:
    utf8_rules = Utf8Rules([b"a", b"\xc3", b"\xa9", b"", b""], banned=[4], end_ids=[3])
    whole, partial = utf8_rules.may_come[utf8_rules.situations(np.array([0, 1], dtype=np.uint8), np.array([5]))]
    assert whole.tolist() == [True, True, False, True, False]
    assert partial.tolist() == [False, False, True, False, False]
    assert utf8_rules.may_come[FREE].tolist() == [True, True, True, True, False]


def test_end_token_waits_until_the_text_may_end_unless_nothing_else_is_possible() -> None:
    may_come = Utf8Rules([b"a", b"", b"\xa9"], end_ids=[1]).may_come
    assert may_come[GO_ON].tolist() == [True, False, False]
    assert may_come[GO_ON + FREE].tolist() == [True, False, True]
    assert Utf8Rules([b"\xa9", b""], end_ids=[1]).may_come[GO_ON].tolist() == [False, True]


def test_no_character_is_begun_without_room_to_finish_it() -> None:
    utf8_rules = Utf8Rules([*BYTES, b"", "漢".encode()], end_ids=[256])
    for n_left in range(4):
        (allowed,) = utf8_rules.may_come[utf8_rules.situations(np.zeros(1, np.uint8), np.array([n_left]))]
        assert [bool(allowed[byte]) for byte in (0x61, 0xC3, 0xE6, 0xF0)] == [True, *(n_left > n for n in range(3))]
        assert allowed[257]


def test_text_starts_over_after_invalid_bytes() -> None:
    utf8_rules = Utf8Rules(BYTES)
    assert utf8_rules.after[0, 0x80] == utf8_rules.after[1, 0x61] == 0
