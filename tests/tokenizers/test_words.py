"""Batch encoding by words: the same words and ids as the tokenizers library gives text by text."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.tokenizers import Tokenizer, encoders
from penwright.tokenizers.encoders import WORD, split_words
from penwright.tokenizers.training import train_tokenizer

PROSE = "The cat sat on the mat, and\tthe dog's  mat was\r\n\r\nsat on.\n" * 20
EDGE_CASES = ["a", "a\0", "a\0\0", "\0", "\0a", "twelve_units", "\ntwelve_un", "thirteen_unit", "👍👍👍👍👍👍"]
CHARACTERS = st.sampled_from("ab.é'_1 \t\n\r\0\x1c\x1f\x85\u00a0\u2028\u3000\u0301\ufeff\uffff字👍")
TEXTS = st.lists(st.text(CHARACTERS) | st.text() | st.sampled_from(EDGE_CASES))


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def reference(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param, [PROSE, *EDGE_CASES], 300)


@pytest.fixture
def batched(reference: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Tokenizer:
    """Return the same tokenizer with the batch path for any size and a word table too small for all words."""
    monkeypatch.setattr(encoders, "_SMALL", -1)
    monkeypatch.setattr(encoders, "_SLOT_BITS", 4)
    monkeypatch.setattr(encoders, "_CHUNK", 3)
    return Tokenizer(reference._library)


@given(texts=TEXTS)
def test_split_words_agrees_with_the_regular_expression(texts: list[str]):
    found = split_words(texts)
    assert found.spelled(np.arange(len(found.starts))) == [word for text in texts for word in WORD.findall(text)]
    assert np.diff(found.bounds).tolist() == [len(WORD.findall(text)) for text in texts]


def test_split_words_recognizes_all_white_space():
    texts = [f"a{chr(code)}b" for code in range(1 << 16) if not 0xD800 <= code < 0xE000]
    found = split_words(texts)
    assert np.diff(found.bounds).tolist() == [len(WORD.findall(text)) for text in texts]


@pytest.mark.parametrize("n_times", [1, 3])
def test_batched_ids_equal_those_of_the_tokenizers_library(reference: Tokenizer, batched: Tokenizer, n_times: int):
    texts = [PROSE, "", *EDGE_CASES, "", *EDGE_CASES[::-1]] * 2
    for _ in range(n_times):
        found = batched.encode_batch(texts)
    assert [ids.tolist() for ids in found] == [reference._library.encode(text).ids for text in texts]


@settings(max_examples=50)
@given(lists=st.lists(TEXTS, min_size=1, max_size=4))
def test_batched_ids_do_not_depend_on_earlier_texts(reference: Tokenizer, lists: list[list[str]]):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoders, "_SMALL", -1)
        patched.setattr(encoders, "_SLOT_BITS", 4)
        patched.setattr(encoders, "_CHUNK", 3)
        batched = Tokenizer(reference._library)
        for texts in lists:
            assert [ids.tolist() for ids in batched.encode_batch(texts)] == [reference.encode(text) for text in texts]


def test_threads_can_share_the_word_table(reference: Tokenizer, batched: Tokenizer):
    texts = [f"{word} {word}{n} of {n % 7}\n" * 3 for n, word in enumerate([*EDGE_CASES, *PROSE.split()] * 5)]
    parts = [texts[n::8] for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(batched.encode_batch, parts))
    for ids, part in zip(found, parts, strict=True):
        assert [of_one.tolist() for of_one in ids] == [reference.encode(text) for text in part]


def test_word_table_holds_every_word_of_a_text(reference: Tokenizer):
    """Otherwise the table would be useless, and no other test would notice."""
    batched = Tokenizer(reference._library)
    batched.encode(PROSE * 20)
    table = batched._encoder._table
    assert int((table._lengths > 0).sum()) == len(set(WORD.findall(PROSE * 20)))
