"""Words of many texts at once are the words of each text, and their ids are the plain library's."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.tokenizers import Tokenizer, encoders
from penwright.tokenizers.encoders import WORD, split_words
from penwright.tokenizers.training import train_tokenizer

PROSE = "The cat sat on the mat, and\tthe dog's  mat was\r\n\r\nsat on.\n" * 20
NEAR = ["a", "a\0", "a\0\0", "\0", "\0a", "twelve_units", "\ntwelve_un", "thirteen_unit", "👍👍👍👍👍👍"]
CHARACTERS = st.sampled_from("ab.é'_1 \t\n\r\0\x1c\x1f\x85\u00a0\u2028\u3000\u0301\ufeff\uffff字👍")
TEXTS = st.lists(st.text(CHARACTERS) | st.text() | st.sampled_from(NEAR))


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def slow(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param, [PROSE, *NEAR], 300)


@pytest.fixture
def quick(slow: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Tokenizer:
    """The same, which finds all its words at once, few as they are; its table is so small that many find no room."""
    monkeypatch.setattr(encoders, "_SMALL", -1)
    monkeypatch.setattr(encoders, "_SLOT_BITS", 4)
    monkeypatch.setattr(encoders, "_CHUNK", 3)
    return Tokenizer(slow._library)


@given(texts=TEXTS)
def test_texts_are_cut_into_their_words(texts: list[str]):
    found = split_words(texts)
    assert found.spelled(np.arange(len(found.starts))) == [word for text in texts for word in WORD.findall(text)]
    assert np.diff(found.bounds).tolist() == [len(WORD.findall(text)) for text in texts]


def test_all_white_space_is_known():
    texts = [f"a{chr(code)}b" for code in range(1 << 16) if not 0xD800 <= code < 0xE000]
    found = split_words(texts)
    assert np.diff(found.bounds).tolist() == [len(WORD.findall(text)) for text in texts]


@pytest.mark.parametrize("n_times", [1, 3])
def test_words_found_at_once_have_the_ids_of_the_plain_library(slow: Tokenizer, quick: Tokenizer, n_times: int):
    texts = [PROSE, "", *NEAR, "", *NEAR[::-1]] * 2
    for _ in range(n_times):
        found = quick.encode_batch(texts)
    assert [ids.tolist() for ids in found] == [slow._library.encode(text).ids for text in texts]


@settings(max_examples=50)
@given(lists=st.lists(TEXTS, min_size=1, max_size=4))
def test_whatever_was_seen_before(slow: Tokenizer, lists: list[list[str]]):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoders, "_SMALL", -1)
        patched.setattr(encoders, "_SLOT_BITS", 4)
        patched.setattr(encoders, "_CHUNK", 3)
        quick = Tokenizer(slow._library)
        for texts in lists:
            assert [ids.tolist() for ids in quick.encode_batch(texts)] == [slow.encode(text) for text in texts]


def test_threads_may_share_the_table(slow: Tokenizer, quick: Tokenizer):
    texts = [f"{word} {word}{n} of {n % 7}\n" * 3 for n, word in enumerate([*NEAR, *PROSE.split()] * 5)]
    parts = [texts[n::8] for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(quick.encode_batch, parts))
    for ids, part in zip(found, parts, strict=True):
        assert [of_one.tolist() for of_one in ids] == [slow.encode(text) for text in part]


def test_most_words_of_a_text_are_found(slow: Tokenizer):
    """Else the table would be of no use, and nothing above would tell."""
    quick = Tokenizer(slow._library)
    quick.encode(PROSE * 20)
    table = quick._encoder._table
    assert int((table._lengths > 0).sum()) == len(set(WORD.findall(PROSE * 20)))
