"""Streaming: text decoded token by token equals text decoded at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.tokenizers import TextStream, Tokenizer
from penwright.tokenizers.training import train_tokenizer


@pytest.fixture(scope="module", params=["characters", "bytes", "bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param, ["ab Zażółć 👨‍👩‍👧 字 ab Zażółć"])


@settings(max_examples=50)
@given(text=st.text())
def test_streamed_text_equals_the_decoded_text(tokenizer: Tokenizer, text: str):
    stream = TextStream(tokenizer)
    ids = tokenizer.encode(text)
    assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids)


@settings(max_examples=50)
@given(data=st.data())
def test_any_token_ids_stream_as_they_decode(tokenizer: Tokenizer, data: st.DataObject):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    stream = TextStream(tokenizer)
    assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids)


def test_incomplete_character_is_held_back_until_its_last_byte():
    tokenizer = train_tokenizer("bytes", ["a"])
    stream = TextStream(tokenizer)
    assert [stream.push(token_id) for token_id in tokenizer.encode("字a")] == ["", "", "字", "a"]


def test_unfinished_character_becomes_a_replacement_character():
    tokenizer = train_tokenizer("bytes", ["a"])
    stream = TextStream(tokenizer)
    assert [stream.push(token_id) for token_id in tokenizer.encode("字")[:2]] == ["", ""]
    assert stream.finish() == "\ufffd"
