import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.decoding.requests import StopFilter

texts = st.text("abc", max_size=12)
stop_strings = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def emitted(chunks: list[str], stops: list[str]) -> tuple[str, bool]:
    stop_filter = StopFilter(stops)
    text = "".join(stop_filter.push(chunk) for chunk in chunks)
    stopped = stop_filter.stopped
    return text + stop_filter.finish(), stopped


@given(st.lists(texts, max_size=6), stop_strings)
@settings(max_examples=200)
def test_chunking_does_not_change_the_emitted_text(chunks: list[str], stops: list[str]) -> None:
    assert emitted(chunks, stops) == emitted(list("".join(chunks)), stops)


@given(texts, stop_strings)
@settings(max_examples=200)
def test_emitted_text_is_a_prefix_without_stop_strings(text: str, stops: list[str]) -> None:
    before, stopped = emitted([text], stops)
    assert text.startswith(before)
    assert stopped == any(stop in text for stop in stops)
    assert not any(stop in before for stop in stops)
    assert stopped or before == text


def test_partial_stop_string_is_held_back_until_it_is_refuted() -> None:
    stop_filter = StopFilter(["END"])
    assert [stop_filter.push(chunk) for chunk in ("one E", "N", "TER", "x")] == ["one ", "", "ENTER", "x"]


def test_text_is_cut_before_the_stop_string() -> None:
    stop_filter = StopFilter(["\n\n"])
    assert [stop_filter.push(chunk) for chunk in ("a\n", "\nb", "c")] == ["a", "", ""]
    assert stop_filter.stopped


@pytest.mark.parametrize("stops", [[], [""]])
def test_all_text_passes_without_stop_strings(stops: list[str]) -> None:
    assert StopFilter(stops).push("abc") == "abc"
