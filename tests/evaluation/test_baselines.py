from itertools import islice
from math import log
from unittest.mock import Mock

import numpy as np
import pytest

from penwright.data.store import Column
from penwright.evaluation import baselines
from penwright.evaluation.baselines import kneser_ney, learn_dictionary, ngram_baselines, translate_words
from penwright.tasks import RunContext, generation

TEXT = np.random.default_rng(0).integers(0, 4, 300)


def test_unigram_baseline_is_the_entropy_of_the_frequencies() -> None:
    training = np.array([0] * 3000 + [1] * 1000)
    held_out = np.array([1] + [0] * 3 * 100 + [1] * 100)
    expected = -(0.75 * log(0.75) + 0.25 * log(0.25))
    assert ngram_baselines(training, held_out, 2)["unigram"] == pytest.approx(expected, abs=0.01)


def test_bigram_baseline_learns_transitions() -> None:
    training, held_out = np.arange(4000) % 5, np.arange(100) % 5
    found = ngram_baselines(training, held_out, 5)
    assert found["bigram"] < 0.05 < found["unigram"] == pytest.approx(log(5), abs=0.01)


def test_unseen_bigrams_have_positive_probability() -> None:
    found = ngram_baselines(np.array([0, 1, 0, 1]), np.array([2, 2, 1, 1]), 3)
    assert np.isfinite(found["bigram"]) and found["bigram"] > 0


def test_bigram_probabilities_sum_to_one() -> None:
    training = np.random.default_rng(0).integers(0, 4, 300)
    total = sum(np.exp(-ngram_baselines(training, np.array([2, token]), 5)["bigram"]) for token in range(5))
    assert total == pytest.approx(1.0)


def test_one_token_of_training_text_gives_no_bigrams() -> None:
    one, held_out = np.array([3], dtype=np.uint16), np.array([3, 3, 1], dtype=np.uint16)
    nats = ngram_baselines(one, held_out, 4)
    assert nats["bigram"] == pytest.approx(nats["unigram"]) and nats["unigram"] > 0


def test_single_held_out_token_gives_no_baselines() -> None:
    training = np.array([0, 1, 2, 0], dtype=np.uint16)
    assert ngram_baselines(training, np.array([1], dtype=np.uint16), 3) == {}


@pytest.mark.parametrize("context", [[2], [2, 1, 0, 3, 1], [4, 4], [0, 4, 1, 2, 3, 3]])
def test_kneser_ney_probabilities_sum_to_one_in_any_context(context: list[int]) -> None:
    def nats(tokens: list[int]) -> float:
        return kneser_ney(TEXT, np.array(tokens), 5) * (len(tokens) - 1)

    before = nats(context) if len(context) > 1 else 0.0
    assert sum(np.exp(before - nats([*context, token])) for token in range(5)) == pytest.approx(1.0)


def test_kneser_ney_equals_a_hand_computed_example() -> None:
    """In "a b a c", the bigrams "b a" and "a c" follow a token, and "a b" does not. Each token has one predecessor."""
    training, held_out = np.array([0, 1, 0, 2]), np.array([0, 1])
    unigram = (1 - 0.6) / 3 + 0.6 / 3  # three tokens with count 1: the discount is 1 - 2 * 3 / (3 + 2) / 3
    bigram = 0.5 * unigram  # two pairs with count 1, so the discount is 1 - 2 * 2 / (2 + 2) / 2
    assert kneser_ney(training, held_out, 3) == pytest.approx(-log(bigram))


def test_kneser_ney_uses_long_contexts() -> None:
    rng = np.random.default_rng(0)
    training = rng.integers(0, 2, 6000)
    training[4:] = 0
    for place in range(4, len(training)):  # depends on the fourth token back
        training[place] = training[place - 4] ^ (rng.random() < 0.02)
    found = ngram_baselines(training[:5000], training[5000:], 2)
    assert found["Kneser-Ney 5-gram"] < 0.2 < found["bigram"]


def test_kneser_ney_does_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kneser_ney(TEXT[:200], TEXT[200:], 4)
    monkeypatch.setattr(baselines, "CHUNK", 7)
    assert kneser_ney(TEXT[:200], TEXT[200:], 4) == pytest.approx(whole)


def test_kneser_ney_names_the_part_of_a_large_text_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MOST_COUNTED", 100)
    assert "Kneser-Ney 5-gram of the first 100 tokens" in ngram_baselines(TEXT, TEXT, 4)


@pytest.mark.parametrize("length", range(6))
def test_kneser_ney_of_very_short_texts_is_finite(length: int) -> None:
    assert np.isfinite(kneser_ney(TEXT[:length], TEXT, 4))


def writer_baselines(training: np.ndarray, held_out: np.ndarray, begins: bool = True) -> dict[str, float]:
    """Return the baselines of a writer for these documents, which are the rows of the arrays."""
    columns = (Column(part.ravel(), np.arange(len(part) + 1) * part.shape[1], 0) for part in (training, held_out))
    first, second = (Mock(column=Mock(return_value=column)) for column in columns)
    context = Mock(spec=RunContext, training=first, held_out=second, is_slow=False, recipe=Mock())
    context.tokenizer, context.recipe.training.minutes = Mock(end_id=0, begins=begins, vocab_size=18), None
    return {score.note: score.value for score in generation.baselines(context)}


def test_baselines_of_writers_see_where_documents_begin() -> None:
    documents = np.random.default_rng(0).integers(2, 4, (500, 4), dtype=np.uint16)
    documents[:, 0] = 1
    parts, name = (documents[:400], documents[400:]), "Kneser-Ney 5-gram"
    joined = ngram_baselines(*(part.ravel() for part in parts), 18)
    assert writer_baselines(*(part.reshape(1, -1) for part in parts)) == joined
    assert writer_baselines(*parts)[name] == pytest.approx(0.75 * log(2), abs=0.02)
    assert writer_baselines(*parts, begins=False)[name] == pytest.approx(log(2), abs=0.02)


PAIRS = [
    ("the dog sleeps.", "der Hund schläft."),
    ("the cat sleeps.", "die Katze schläft."),
    ("the dog eats.", "der Hund frisst."),
    ("the cat eats!", "die Katze frisst!"),
    ("a dog", "ein Hund"),
    ("a cat", "eine Katze"),
]


def test_learned_dictionary_pairs_the_right_words() -> None:
    dictionary = learn_dictionary(PAIRS)
    assert {word: dictionary[word] for word in ("dog", "cat", "sleeps", "eats", ".")} == {
        "dog": "Hund",
        "cat": "Katze",
        "sleeps": "schläft",
        "eats": "frisst",
        ".": ".",
    }
    assert list(translate_words(["dog eats fish.", ""], dictionary)) == ["Hund frisst fish.", ""]


def test_dictionary_puts_no_spaces_between_chinese_characters() -> None:
    assert list(translate_words(["good day"], {"good": "好", "day": "日"})) == ["好日"]


def test_dictionary_stops_reading_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MOST_LINKS", 5)
    left = iter(PAIRS)
    assert learn_dictionary(left) and len(list(islice(left, 9))) == len(PAIRS) - 1
    assert learn_dictionary([]) == learn_dictionary([("", "")]) == {}
