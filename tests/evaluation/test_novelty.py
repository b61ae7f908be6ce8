import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.data.corpus import Document
from penwright.evaluation.novelty import LENGTHS, SHORTEST, measure, passages

chunks = st.lists(st.text("abé \n", max_size=40), min_size=1, max_size=3)
quick = settings(max_examples=80)


def squeezed(text: str) -> str:
    return re.sub("  +", "  ", text)


def longest_by_trying(text: str, documents: list[list[str]]) -> int:
    """In bytes."""
    spelled = squeezed(text).encode()
    whole = [squeezed("".join(document)).encode() for document in documents]
    runs = [(a, b) for a in range(len(spelled)) for b in range(a, len(spelled) + 1)]
    return max((b - a for a, b in runs if any(spelled[a:b] in document for document in whole)), default=0)


@given(st.lists(st.text("abé \n", max_size=30), max_size=3), st.lists(chunks, max_size=3))
@quick
def test_the_longest_run_is_the_one_that_trying_finds(texts: list[str], documents: list[list[str]]) -> None:
    training = [Document(f"d{number}", document) for number, document in enumerate(documents)]
    for text, novelty in zip(texts, measure(texts, training), strict=True):
        expected = longest_by_trying(text, documents)
        if novelty.longest is None:
            assert expected < SHORTEST
            continue
        assert expected - 2 <= len(novelty.longest.text.encode()) <= expected  # half an é is no character
        assert novelty.longest.text in squeezed(text)
        whole = squeezed("".join(documents[int(novelty.longest.document[1:])]))
        found = [match.start() for match in re.finditer(f"(?={re.escape(novelty.longest.text)})", whole)]
        assert novelty.longest.line in {whole.count("\n", 0, place) + 1 for place in found}


@given(st.lists(st.sampled_from("abc"), max_size=40), st.lists(st.sampled_from("abc"), max_size=40))
@quick
def test_the_share_of_new_n_grams_is_that_of_counting(text: list[str], training: list[str]) -> None:
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
def test_what_stands_across_a_cut_of_the_reading_is_found(cut: int) -> None:
    text = "It was day 7, and the rain fell on houses.\n\n"
    (novelty,) = measure([text], [Document("d", ["x\n", text[:cut], text[cut:], "more"])])
    assert novelty.longest is not None
    assert (novelty.longest.text, novelty.longest.line, novelty.longest.n_words) == (text, 2, 10)
    assert max(novelty.new.values()) == 0


def test_no_run_goes_from_one_document_to_the_next() -> None:
    (novelty,) = measure(["abcdefghijklmnop"], [Document("a", ["--abcdefghi"]), Document("b", ["jklmnop--"])])
    assert novelty.longest is not None
    assert (novelty.longest.text, novelty.longest.document) == ("abcdefghi", "a")


def test_a_line_of_dashes_is_nothing_to_copy() -> None:
    documents = [Document("d", ["a\n" + "-" * 30, "-" * 30 + "\nthe words here\n"])]
    (dashes, words) = measure(["-" * 50, "--- the words"], documents)
    assert dashes.longest is None
    assert words.longest is not None and (words.longest.text, words.longest.line) == ("the words", 3)


@pytest.mark.parametrize("odd", ["", " ", "🎉a" * 9, "\x00\x01" * 20, "\u2028\u2029" * 9, "\ud800a" * 9, "a"])
def test_odd_texts_are_measured(odd: str) -> None:
    (novelty, other) = measure([odd, "plain words stand here"], [Document("d", [odd.replace("\ud800", "?"), "\n"])])
    assert (novelty.longest is not None) == (len(odd.encode(errors="replace")) >= SHORTEST)
    assert other.longest is None


def test_passages_are_of_the_length_and_from_everywhere() -> None:
    documents = [Document("a", ["a" * 500, "b" * 500]), Document("b", ["c" * 1000]), Document("short", ["d"])]
    found = passages(documents, 50, most=10)
    assert 8 <= len(found) <= 10
    assert {len(passage) for passage in found} <= {50, 1}
    assert {"a", "b", "c"} <= {passage[0] for passage in found}
