import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.decoding.completion_draft import StopFilter

texts = st.text("abc", max_size=12)
stop_strings = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def shown(portions: list[str], stops: list[str]) -> tuple[str, bool]:
    stop_filter = StopFilter(stops)
    text = "".join(stop_filter.push(portion) for portion in portions)
    stopped = stop_filter.stopped
    return text + stop_filter.finish(), stopped


@given(st.lists(texts, max_size=6), stop_strings)
@settings(max_examples=200)
def test_portions_make_no_difference(portions: list[str], stops: list[str]) -> None:
    assert shown(portions, stops) == shown(list("".join(portions)), stops)


@given(texts, stop_strings)
@settings(max_examples=200)
def test_what_is_shown_holds_no_stop_string_and_is_where_the_text_begins(text: str, stops: list[str]) -> None:
    before, stopped = shown([text], stops)
    assert text.startswith(before)
    assert stopped == any(stop in text for stop in stops)
    assert not any(stop in before for stop in stops)
    assert stopped or before == text


def test_the_beginning_of_a_stop_string_is_held_back_until_it_turns_out_to_be_none() -> None:
    stop_filter = StopFilter(["END"])
    assert [stop_filter.push(portion) for portion in ("one E", "N", "TER", "x")] == ["one ", "", "ENTER", "x"]


def test_text_is_cut_before_the_stop_string() -> None:
    stop_filter = StopFilter(["\n\n"])
    assert [stop_filter.push(portion) for portion in ("a\n", "\nb", "c")] == ["a", "", ""]
    assert stop_filter.stopped


@pytest.mark.parametrize("stops", [[], [""]])
def test_without_stop_strings_all_text_passes(stops: list[str]) -> None:
    assert StopFilter(stops).push("abc") == "abc"
