"""Translation of documents, which keep their layout."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.translation.documents import blocks, translated


def unchanged(sentences: Sequence[str]) -> Sequence[str]:
    return sentences


def uppercased(sentences: Sequence[str]) -> list[str]:
    return [sentence.upper() for sentence in sentences]


DOCUMENT = """# A title

  It was late. The dog, which had been asleep for most of the afternoon, went
  out into the garden, where it saw Mr. Smith. It barked!

- one thing
- another thing that is so long that it had to be wrapped by the one who wrote
  it down here
    1. nested

A short line
and a verse.
"""


def test_paragraphs_blank_lines_indentation_and_bullets_are_kept() -> None:
    assert translated(DOCUMENT, "en", unchanged) == DOCUMENT
    assert translated(DOCUMENT, "en", uppercased).split("\n")[2].startswith("  IT WAS LATE. THE DOG")


def test_sentences_are_translated_singly_across_wrapped_lines() -> None:
    seen: list[str] = []

    def note(sentences: Sequence[str]) -> Sequence[str]:
        seen.extend(sentences)
        return sentences

    translated(DOCUMENT, "en", note)
    assert "It was late." in seen and "It barked!" in seen and "nested" in seen
    assert any(sentence.startswith("The dog") and sentence.endswith("Mr. Smith.") for sentence in seen)


@given(st.text("ab .-#1\n\t", max_size=80))
@settings(max_examples=200)
def test_short_lines_are_neither_lost_nor_moved(document: str) -> None:
    kept = translated(document, "en", unchanged).split("\n")
    assert [line.rstrip() for line in kept] == [line.rstrip() for line in document.split("\n")]


def test_blocks_of_a_document_are_its_lines() -> None:
    assert [block.text for block in blocks("a\n\n b")] == ["a", "", "b"]


def test_longer_translations_of_wrapped_paragraphs_are_rewrapped() -> None:
    paragraph = "The first line of this paragraph is full up to here,\nand so is not the second."
    lines = translated(paragraph, "en", lambda sentences: [f"{each} {each}" for each in sentences]).split("\n")
    assert len(lines) > 2 and max(map(len, lines)) <= 52


def lookup(names: dict[str, str]) -> Callable[[Sequence[str]], list[str]]:
    return lambda sentences: [names[sentence] for sentence in sentences]


def test_space_between_sentences_follows_the_target_script() -> None:
    english = lookup({"我来了。": "I am here.", "你好吗？": "How are you?"})
    assert translated("我来了。你好吗？", "zh", english) == "I am here. How are you?"
    chinese = lookup({"I am here.": "我来了。", "How are you?": "你好吗？"})
    assert translated("  I am here. How are you?", "en", chinese) == "  我来了。你好吗？"


def test_chinese_is_joined_without_spaces_and_wrapped_by_character() -> None:
    line = "却说宝玉听了这话不觉又惊又喜便忙忙地走到老太太那边去请安"
    seen: list[str] = []

    def note(sentences: Sequence[str]) -> Sequence[str]:
        seen.extend(sentences)
        return sentences

    document = f"{line}\n{line[:9]}。"
    assert translated(document, "zh", note) == document
    assert seen == [f"{line}{line[:9]}。"]


def test_arabic_question_mark_ends_a_sentence() -> None:
    line = "هل قرأت الكتاب الذي أعطيتك إياه أمس مساء؟"  # shorter than a full line, and the end of a sentence
    assert len(blocks(f"{line}\nنعم")) == 2


def test_unbreakable_words_are_not_split_by_wrapping() -> None:
    parts = ["https://example.org/a-long-page-with-hyphens-in-it", "5\u00a0km", "{{user-name}}"]
    document = (
        f"There was a time when nobody would have thought of looking at\n{' and then there was '.join(parts)} again.\n"
    )
    for line in translated(document * 3, "en", uppercased).lower().split("\n"):
        assert line.count("https") == line.count("-in-it") and line.count("{{") == line.count("}}")
        assert not line.endswith(("5", "\u00a0"))


def test_line_breaks_of_markdown_are_kept() -> None:
    long = "This line ends with two spaces, and so it is long enough to be continued  \nby the next line, but is not."
    for document in (long, "Two spaces.  \nNext line.\n", "Blank line with spaces.\n   \nNext.\n"):
        assert translated(document, "en", unchanged) == document


def test_windows_line_ends_become_newlines() -> None:
    assert translated("a.\r\n\r\nb.\r\n", "en", unchanged) == "a.\n\nb.\n"


DIALOGUE = """"Where have you been all this time, and why did you not write to me?"
"I was in Paris with my brother and we had no time at all for writing letters."
"I see."
"""
EXPORTED = """This paragraph is on one line, and it is quite long, since a word processor wrote it without wrapping it.
The second one is also on one line, and it is nearly as long as the first one, but not quite as long as that.
The end.
"""


@pytest.mark.parametrize("document", [DIALOGUE, EXPORTED, DIALOGUE * 2 + EXPORTED])
def test_paragraphs_on_one_line_each_are_not_joined(document: str) -> None:
    longer = [f"{sentence} Indeed!" for sentence in document.splitlines()]
    assert translated(document, "en", lambda seen: [f"{sentence} Indeed!" for sentence in seen]).splitlines() == longer


def test_lines_without_letters_are_not_translated() -> None:
    document = "One.\n\n  * * *\n\n-----\n| a | b |\n|---|---|\n...\nTwo."
    seen: list[str] = []
    assert translated(document, "en", lambda sentences: seen.extend(sentences) or sentences) == document
    assert all(any(map(str.isalnum, sentence)) for sentence in seen) and len(seen) == 3


SUBTITLES = """WEBVTT

1
00:00:01,000 --> 00:00:03,500
<i>It was</i> late.
It barked!

2
00:00:04,000 --> 00:00:05,000
- A dog?
- No, a cat that is so long that its line has
to be wrapped.

3
00:00:06,000 --> 00:00:09,000
One line
"""


def test_subtitles_keep_numbers_times_and_lines() -> None:
    seen: list[str] = []
    kept = translated(SUBTITLES, "en", lambda sentences: seen.extend(sentences) or sentences, "subtitles")
    assert seen == [
        "<i>It was</i> late.",
        "It barked!",
        "A dog?",
        "No, a cat that is so long that its line has to be wrapped.",
        "One line",
    ]
    assert kept == SUBTITLES.replace("late.\nIt", "late. It")  # as wide as a subtitle may be


def test_web_pages_keep_their_tags() -> None:
    page = '<p\nclass="a">One. Two &amp; three.</p><script>if (a < b) {}</script><pre>First line\n  second</pre>'
    done = translated(page, "en", uppercased, "html")
    assert done == page.replace("One. Two &amp; three", "ONE. TWO &amp; THREE").replace(
        "First line\n  second", "FIRST LINE\n  SECOND"
    )
