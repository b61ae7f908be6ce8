import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.data.corpus import Document
from penwright.evaluation.novelty import LENGTHS, SHORTEST, measure, passages

chunks = st.lists(st.text("abé \n", max_size=40), min_size=1, max_size=3)
fewer_examples = settings(max_examples=80)


def collapse_spaces(text: str) -> str:
    return re.sub("  +", "  ", text)


def longest_by_brute_force(text: str, documents: list[list[str]]) -> int:
    """Return the length in bytes of the longest passage found in the documents."""
    collapsed = collapse_spaces(text).encode()
    whole = [collapse_spaces("".join(document)).encode() for document in documents]
    runs = [(a, b) for a in range(len(collapsed)) for b in range(a, len(collapsed) + 1)]
    return max((b - a for a, b in runs if any(collapsed[a:b] in document for document in whole)), default=0)


@given(st.lists(st.text("abé \n", max_size=30), max_size=3), st.lists(chunks, max_size=3))
@fewer_examples
def test_longest_copy_equals_brute_force(texts: list[str], documents: list[list[str]]) -> None:
    training = [Document(f"d{number}", document) for number, document in enumerate(documents)]
    for text, novelty in zip(texts, measure(texts, training), strict=True):
        expected = longest_by_brute_force(text, documents)
        if novelty.longest is None:
            assert expected < SHORTEST
            continue
        assert expected - 2 <= len(novelty.longest.text.encode()) <= expected  # half an é is not a character
        assert novelty.longest.text in collapse_spaces(text)
        whole = collapse_spaces("".join(documents[int(novelty.longest.document[1:])]))
        found = [match.start() for match in re.finditer(f"(?={re.escape(novelty.longest.text)})", whole)]
        assert novelty.longest.line in {whole.count("\n", 0, place) + 1 for place in found}


@given(st.lists(st.sampled_from("abc"), max_size=40), st.lists(st.sampled_from("abc"), max_size=40))
@fewer_examples
def test_proportion_of_new_n_grams_equals_counting(text: list[str], training: list[str]) -> None:
    whole = " ".join(training)
    (novelty,) = measure([", ".join(text).upper()], [Document("d", [whole])])
    for n in LENGTHS:
        grams = [tuple(text[place : place + n]) for place in range(len(text) - n + 1)]
        known = {tuple(training[place : place + n]) for place in range(len(training) - n + 1)}
        if grams:
            assert novelty.new[n] == pytest.approx(sum(gram not in known for gram in grams) / len(grams))
        else:
            assert n not in novelty.new


@pytest.mark.parametrize("cut", range(1, 44, 5))
def test_copy_across_a_chunk_boundary_is_found(cut: int) -> None:
    text = "It was day 7, and the rain fell on houses.\n\n"
    (novelty,) = measure([text], [Document("d", ["x\n", text[:cut], text[cut:], "more"])])
    assert novelty.longest is not None
    assert (novelty.longest.text, novelty.longest.line, novelty.longest.n_words) == (text, 2, 10)
    assert max(novelty.new.values()) == 0


def test_copy_does_not_span_two_documents() -> None:
    (novelty,) = measure(["abcdefghijklmnop"], [Document("a", ["--abcdefghi"]), Document("b", ["jklmnop--"])])
    assert novelty.longest is not None
    assert (novelty.longest.text, novelty.longest.document) == ("abcdefghi", "a")


def test_line_of_dashes_is_not_a_copy() -> None:
    documents = [Document("d", ["a\n" + "-" * 30, "-" * 30 + "\nthe words here\n"])]
    (dashes, words) = measure(["-" * 50, "--- the words"], documents)
    assert dashes.longest is None
    assert words.longest is not None and (words.longest.text, words.longest.line) == ("the words", 3)


@pytest.mark.parametrize("unusual", ["", " ", "🎉a" * 9, "\x00\x01" * 20, "\u2028\u2029" * 9, "\ud800a" * 9, "a"])
def test_unusual_texts_are_measured(unusual: str) -> None:
    (novelty, other) = measure(
        [unusual, "plain words stand here"], [Document("d", [unusual.replace("\ud800", "?"), "\n"])]
    )
    assert (novelty.longest is not None) == (len(unusual.encode(errors="replace")) >= SHORTEST)
    assert other.longest is None


def test_passages_have_the_length_and_come_from_every_document() -> None:
    documents = [Document("a", ["a" * 500, "b" * 500]), Document("b", ["c" * 1000]), Document("short", ["d"])]
    found = passages(documents, 50, most=10)
    assert 8 <= len(found) <= 10
    assert {len(passage) for passage in found} <= {50, 1}
    assert {"a", "b", "c"} <= {passage[0] for passage in found}


def test_passages_begin_and_end_with_whole_words() -> None:
    words = {f"word{number}" for number in range(200)}
    found = passages([Document("a", [" ".join(sorted(words))])], 45)
    assert len(found) > 10 and set(" ".join(found).split()) <= words
