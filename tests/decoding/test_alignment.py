"""Word alignment: lexical links from a corpus, and links from attention heads."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.errors import PenwrightError
from penwright.model.transformer import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.translation.alignment import (
    Aligner,
    AlignmentHead,
    TokenPair,
    choose_head,
    coverage,
    cross_attention,
    f1,
    lexical_links,
    pharaoh,
    word_numbers,
    word_weights,
)

PAIRS = [("ab cd", "cd ab ef"), ("abc", "a b"), ("j, a b", "b"), ("", "a"), ("a", "")]


@given(st.text("ab \t\u00e9,\u2028", max_size=30))
@settings(max_examples=100)
def test_word_numbers_assign_each_token_to_its_word(text: str) -> None:
    tokenizer = train_tokenizer("bytes", ["any"])
    numbers = word_numbers(text, tokenizer)
    assert len(numbers) == len(tokenizer.encode(text)) and numbers == sorted(numbers)
    spelled: dict[int, bytes] = {}
    for token, number in zip(tokenizer.encode(text), numbers, strict=True):
        spelled[number] = spelled.get(number, b"") + tokenizer.token_bytes(token)
    words = [spelling.decode("utf-8", "replace").strip() for spelling in spelled.values()]
    assert [word for word in words if word] == text.split()


def test_lexical_links_find_reordered_words() -> None:
    rng, order = random.Random(0), (1, 0, 3, 2)
    chosen = [rng.sample("abcdefghijkl", 4) for _ in range(150)]
    pairs = [(" ".join(words), " ".join(words[place] * 2 for place in order)) for words in chosen]
    right = sum(len(links & set(zip(order, range(4), strict=True))) for links in lexical_links(pairs))
    assert right >= 0.95 * 4 * len(pairs)


def test_alignment_links_are_valid_and_the_same_alone_as_in_a_batch(
    translating_model: Callable[..., EncoderDecoder], characters: Tokenizer
) -> None:
    model = translating_model(characters.vocab_size).double()
    for head in (AlignmentHead(0, 0, 0), AlignmentHead(1, 3, 1)):
        aligner = Aligner(model, characters, head)
        together = aligner.align(PAIRS)
        assert together == [aligner.align([pair])[0] for pair in PAIRS]
        for (source, target), links in zip(PAIRS, together, strict=True):
            assert all(i < len(source.split()) and j < len(target.split()) for i, j in links)
            assert len({j for _, j in links}) == len(links)
    assert pharaoh({(1, 0), (0, 2), (0, 1)}) == "0-1 0-2 1-0"


def test_choose_head_ranks_every_head_by_agreement(
    translating_model: Callable[..., EncoderDecoder], characters: Tokenizer
) -> None:
    model = translating_model(characters.vocab_size)
    found = choose_head(model, characters, PAIRS)
    assert len({agreement.head for agreement in found}) == 2 * 4 * 2
    assert [each.f1 for each in found] == sorted((each.f1 for each in found), reverse=True)
    best = Aligner(model, characters, found[0].head).align(PAIRS)
    assert found[0].f1 == pytest.approx(f1(best, lexical_links(PAIRS)))


def test_pair_too_long_for_the_model_has_no_links(
    translating_model: Callable[..., EncoderDecoder], characters: Tokenizer
) -> None:
    model = translating_model(characters.vocab_size, positions={"type": "learned"})
    long = ("a " * 40, "b")
    assert Aligner(model, characters, AlignmentHead(0, 0, 0)).align([long, ("a", "b")])[0] == frozenset()
    assert choose_head(model, characters, [long, *PAIRS]) == choose_head(model, characters, PAIRS)
    assert cross_attention(model, characters, [TokenPair((3,) * 40, (3,))]) == [None] and coverage(None) == 0
    with pytest.raises(PenwrightError, match="no sentence pair that fits"):
        choose_head(model, characters, [long])


def test_coverage_is_lower_when_source_tokens_lack_attention(
    translating_model: Callable[..., EncoderDecoder], characters: Tokenizer
) -> None:
    model = translating_model(characters.vocab_size)
    short, long = cross_attention(model, characters, [TokenPair((3, 4, 5), (6,)), TokenPair((3, 4, 5), (6,) * 12)])
    assert coverage(short) < coverage(long) <= 0


def test_links_of_the_manually_aligned_pairs_are_valid() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "aligned.en-de.tsv"
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 20
    for source, target, links in rows:
        pairs = {tuple(map(int, link.split("-"))) for link in links.split()}
        assert {i for i, _ in pairs} <= set(range(len(source.split())))
        assert {j for _, j in pairs} == set(range(len(target.split())))


def test_word_weights_are_combined_from_their_tokens(
    translating_model: Callable[..., EncoderDecoder], characters: Tokenizer
) -> None:
    model, pair = translating_model(characters.vocab_size).double(), ("ab cd", "cd ab e")
    (maps,) = cross_attention(model, characters, [TokenPair(*map(characters.encode, pair))])
    (weights,) = Aligner(model, characters, AlignmentHead(1, 2, 1)).weights([pair])
    at = {"ab ": [0, 1, 2], "cd": [3, 4]}, {"cd ": [0, 1, 2], "ab ": [3, 4, 5], "e": [6]}
    expected = [
        [maps[1, 2, [t + 1 for t in to]][:, of].sum(1).mean() for of in at[0].values()] for to in at[1].values()
    ]
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    (mean,) = Aligner(model, characters, None).weights([pair])
    np.testing.assert_allclose(mean[0, 0], maps[:, :, :3, :3].mean((0, 1)).sum(1).mean(), atol=1e-6)


def test_characters_are_words_in_scripts_without_spaces() -> None:
    pairs = [("one cat", "一猫"), ("one dog", "一狗"), ("two dogs", "二狗"), ("two cats", "二猫")]
    assert lexical_links(pairs)[0] == {(0, 0), (1, 1)}


def test_characters_of_one_token_share_its_weights() -> None:
    tokenizer = train_tokenizer("bpe", ["猫狗猫狗 ab"] * 9, 270)
    assert len(tokenizer.encode("猫狗")) == 1
    maps = np.full((1, 1, 3, 1), 0.5)
    weights = word_weights(maps, ("ab", "猫狗"), AlignmentHead(0, 0, 0), tokenizer)
    assert weights.tolist() == [[0.5], [0.5]]
