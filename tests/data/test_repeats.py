"""Texts that occur in two parts of data."""

import pytest

from penwright.data import repeats
from penwright.data.conversations import Conversation
from penwright.data.corpus import Document, Labelled, Pair
from penwright.data.repeats import AnyExample, find_repeats
from penwright.tokenizers.chat_template import Message

LINE = "A line of running text that is long enough to compare, number"


def talk(prompt: str, answer: str) -> Conversation:
    return Conversation((Message("user", prompt), Message("assistant", answer)), ())


@pytest.mark.parametrize(
    ("examples", "others", "found"),
    [
        ([Labelled("a", "x"), Labelled("b", "x")], [Labelled("b", "y")], "1 of 2 texts"),
        ([Pair("ja", "yes"), Pair("nein", "no")], [Pair("ja", "yeah"), Pair("doch", "no")], "2 of 4 sentences"),
        ([talk("Who?", "I."), talk("When?", "Now.")], [talk("Who?", "You.")], "1 of 2 prompts"),
        (
            [Document("a", [f"{LINE} 1\nshort\n", f" {LINE} 2"])],
            [Document("b", [f"short\n{LINE} 2\n"])],
            "1 of 2 lines",
        ),
        ([Pair("ja", "yes")], [Labelled("ja", "x")], "1 of 2 sentences"),
    ],
)
def test_texts_that_repeat_are_counted(examples: list[AnyExample], others: list[AnyExample], found: str) -> None:
    result = find_repeats(examples, others)
    assert result.describe() == found and result.are_many
    assert not find_repeats(examples, []).are_many


def test_some_lines_may_repeat_and_large_data_is_searched_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    book, chapter = ([Document("", [f"{LINE} {n}\n" for n in range(begin, 100)])] for begin in (0, 96))
    assert find_repeats(book, chapter).n == 4 and not find_repeats(book, chapter).are_many
    assert find_repeats(chapter, book).are_many
    monkeypatch.setattr(repeats, "MOST", 50)
    assert find_repeats(chapter, book).n == 0
