"""Characters stay whole: what may come after any beginning of a text is what Python's decoder lets come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penwright.decoding.sampling.utf8 import FREE, MISSING, Utf8Rules

BYTES = [bytes([byte]) for byte in range(256)]
CHARACTERS = ["a", "é", "ł", "न", "漢", "\ud7ff", "\ue000", "😀", "\U0010ffff"]


WHOLE = (chr(code).encode() for code in range(0x110000) if not 0xD800 <= code < 0xE000)
BEGINNINGS = {character[:n] for character in WHOLE for n in range(1, len(character))}


def stays_text(spelled: bytes) -> bool:
    """Whether it is text, or text and the beginning of one more character."""
    rests = (spelled[len(spelled) - n :] for n in range(1, 4))
    whole = [spelled, *(spelled[: -len(rest)] for rest in rests if rest in BEGINNINGS)]
    return any(is_text(each) for each in whole)


def is_text(spelled: bytes) -> bool:
    try:
        spelled.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.lists(st.sampled_from(BYTES), min_size=1, max_size=6).map(b"".join))
def test_a_byte_may_come_where_what_is_there_can_still_become_text(spelled: bytes) -> None:
    spelling, state = Utf8Rules(BYTES), np.zeros(1, np.uint8)
    for place, byte in enumerate(spelled):
        may_come = spelling.may_come[spelling.situations(state, np.array([9]))][0, byte]
        assert may_come == stays_text(spelled[: place + 1])
        if not may_come:
            return
        state = spelling.after[state, byte]


@pytest.mark.parametrize("text", CHARACTERS)
def test_missing_bytes_are_counted(text: str) -> None:
    spelled, spelling = text.encode(), Utf8Rules(BYTES)
    for n in range(1, len(spelled) + 1):
        state = Utf8Rules([spelled[:n]]).after[0, 0]
        assert MISSING[state] == len(spelled) - n
        (may_come,) = spelling.may_come[spelling.situations(np.array([state]), np.array([9]))]
        assert n == len(spelled) or may_come[spelled[n]]


def test_a_piece_of_many_bytes_is_followed_from_every_state() -> None:
    spelling = Utf8Rules(["漢字".encode(), "漢".encode()[:2], "漢".encode()[2:], "漢".encode()[2:] + b" \xe5"])
    may_come = spelling.may_come[spelling.situations(np.array([0, 1], dtype=np.uint8), np.array([9]))]
    assert may_come.tolist() == [[True, True, False, False], [False, False, True, True]]
    assert spelling.after[0, :2].tolist() == [0, 1] and spelling.after[1, 2:].tolist() == [0, 2]


def test_the_end_comes_after_whole_characters_only_and_what_is_banned_never() -> None:
    spelling = Utf8Rules([b"a", b"\xc3", b"\xa9", b"", b""], banned=[4], end_id=3)
    whole, begun = spelling.may_come[spelling.situations(np.array([0, 1], dtype=np.uint8), np.array([5]))]
    assert whole.tolist() == [True, True, False, True, False]
    assert begun.tolist() == [False, False, True, False, False]
    assert spelling.may_come[FREE].tolist() == [True, True, True, True, False]


def test_no_character_is_begun_that_there_is_no_room_to_end() -> None:
    spelling = Utf8Rules([*BYTES, b"", "漢".encode()], end_id=256)
    for n_left in range(4):
        (may_come,) = spelling.may_come[spelling.situations(np.zeros(1, np.uint8), np.array([n_left]))]
        assert [bool(may_come[byte]) for byte in (0x61, 0xC3, 0xE6, 0xF0)] == [True, *(n_left > n for n in range(3))]
        assert may_come[257]


def test_after_what_is_broken_a_text_begins_anew() -> None:
    spelling = Utf8Rules(BYTES)
    assert spelling.after[0, 0x80] == spelling.after[1, 0x61] == 0
