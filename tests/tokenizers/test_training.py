"""Training of tokenizers: deterministic, robust to any text and vocabulary size, with notes on limits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.errors import PenwrightError
from penwright.tokenizers import Tokenizer, training
from penwright.tokenizers.training import KINDS, train_tokenizer

STEMS = ["walk", "talk", "jump", "sleep", "wait", "paint", "play", "laugh", "śpiew", "czyt"]
ENDINGS = ["", "s", "ed", "er", "ers", "ing", "ać", "ający"]
TEXT = " ".join(stem + ending for stem in STEMS for ending in ENDINGS) + "\n"

kinds = pytest.mark.parametrize("kind", list(KINDS))
learned = pytest.mark.parametrize("kind", ["bpe", "unigram"])


@kinds
def test_training_is_deterministic(kind: str):
    assert len({train_tokenizer(kind, [TEXT, TEXT[:40]]).fingerprint for _ in range(4)}) == 1


@learned
def test_frequent_parts_become_tokens(kind: str):
    tokenizer = train_tokenizer(kind, [TEXT], 300)
    assert len(tokenizer.encode(TEXT)) < len(TEXT) / 2


@learned
def test_vocabulary_size_includes_special_tokens(kind: str):
    assert train_tokenizer(kind, [TEXT], 280).vocab_size == 280


@learned
def test_small_text_limits_the_vocabulary_with_a_note(kind: str):
    tokenizer = train_tokenizer(kind, [TEXT], 100_000)
    assert tokenizer.notes == (f"the text only supports a vocabulary of {tokenizer.vocab_size} tokens, not 100,000",)


@learned
def test_vocabulary_too_small_for_the_bytes_is_refused(kind: str):
    with pytest.raises(PenwrightError, match="259 tokens or more"):
        train_tokenizer(kind, [TEXT], 258)


@learned
@settings(max_examples=50)
@given(texts=st.lists(st.text(), min_size=1), vocab_size=st.sampled_from([259, 260, 300, 10_000]))
def test_any_text_can_be_trained_on_and_round_trips(kind: str, texts: list[str], vocab_size: int):
    text = "".join(texts) + "."
    tokenizer = train_tokenizer(kind, [*texts, "."], vocab_size)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@learned
@pytest.mark.parametrize("run", ["a", " ", "ab"])
def test_one_very_long_word_can_be_trained_on(kind: str, run: str):
    text = run * 100_000
    tokenizer = train_tokenizer(kind, [text], 300)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@kinds
@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_empty_text_is_refused(kind: str, texts: list[str]):
    with pytest.raises(PenwrightError, match="there is no text"):
        train_tokenizer(kind, texts)


@kinds
def test_lone_surrogate_in_the_training_text_is_accepted(kind: str):
    assert isinstance(train_tokenizer(kind, ["a\ud800b"]), Tokenizer)


def test_rarest_characters_become_unknown_in_a_small_vocabulary():
    tokenizer = train_tokenizer("characters", ["aaa bbb ccc x y"], 4 + 4)
    assert tokenizer.decode(tokenizer.encode("abc xy")) == "abc \ufffd\ufffd"
    assert tokenizer.notes == ("the rarest 2 of the 6 characters of the text become <unk>",)


def test_byte_vocabulary_has_a_fixed_size():
    assert train_tokenizer("bytes", ["a"]).notes == ()
    assert train_tokenizer("bytes", ["a"], 8000).notes == ("a vocabulary of bytes always has 259 tokens, not 8000",)


def test_sample_covers_both_languages_of_alternating_lines():
    lines = ("strawberries" if number % 2 else "truskawki" for number in range(20_000))
    tokenizer = train_tokenizer("bpe", lines, 300, max_bytes=10_000)
    assert len(tokenizer.encode("strawberries")) == len(tokenizer.encode("truskawki")) == 1


def test_sample_is_bounded_while_the_stream_is_read_to_its_end():
    read = []

    def lines() -> Iterator[str]:
        for number in range(5_000):
            read.append(number)
            yield f"word{number}"

    tokenizer = train_tokenizer("bpe", lines(), 100_000, max_bytes=1_000)
    assert len(read) == 5_000
    assert tokenizer.vocab_size < 600


@learned
@pytest.mark.parametrize("word", ["בְּרֵאשִׁית", "ที่นี่", "हिन्दी", "cafe\u0301s"])
def test_vowel_signs_and_accents_do_not_end_a_word(kind: str, word: str, tmp_path: Path):
    tokenizer = train_tokenizer(kind, [f"{word} {word}\n" * 300], 400)
    assert kind == "unigram" or len(tokenizer.encode(word)) == 1  # unigrams of one word alone stay bytes
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.kind, loaded.joins_marks) == (kind, True)


@learned
def test_text_without_combining_marks_is_split_as_by_gpt2(kind: str):
    assert not train_tokenizer(kind, ["Plain words, and accents: żółć, été. " * 50], 300).joins_marks


@given(st.lists(st.tuples(st.sampled_from(["x", " ", "\n", "ab ", "\u2003"]), st.integers(0, 600)), max_size=8))
def test_long_runs_are_split_as_by_the_regular_expression(parts: list[tuple[str, int]]):
    text = "".join(part * n for part, n in parts)
    if text:
        assert list(training._pieces(text)) == [piece for piece in training._LONG_RUN.split(text) if piece]
