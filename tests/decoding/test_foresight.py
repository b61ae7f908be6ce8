"""Guesses: they are what followed before, they spare steps, and no guess, right or wrong, changes a text."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from penwright.config import DecodingSettings, Table
from penwright.decoding import Completion, Generator, step
from penwright.decoding.foresight import MOST, Foresight
from penwright.decoding.ngrams import DISCOUNT, LEAST, ORDERS, Ngrams
from penwright.decoding.step import Stepper
from penwright.errors import PenwrightError
from penwright.models import DecoderOnly
from penwright.tokenizers import Tokenizer

MANNERS = [
    DecodingSettings(max_new_tokens=40, temperature=0),
    DecodingSettings(max_new_tokens=40, temperature=1.0, seed=4),
    DecodingSettings(max_new_tokens=40, temperature=0.9, repetition_penalty=1.2, top_k=5),
    DecodingSettings(max_new_tokens=12, pattern="[a-d ]{3,9}", temperature=1.0),
    DecodingSettings(max_new_tokens=30, stop=("ab",), temperature=1.0),
]


class Told(Foresight):
    """Guesses what it is told to."""

    def __init__(self, tell: Callable[[list[int]], Sequence[int]]):
        super().__init__()
        self._tell = tell

    def guess(self, text: np.ndarray) -> list[int]:
        return list(self._tell(text.tolist()))


@pytest.fixture
def generator(writer: Callable[..., DecoderOnly], characters: Tokenizer) -> Generator:
    model = writer(characters.vocab_size, context_length=24).double()  # without ties by rounding; some texts outgrow it
    return Generator(model, characters)


def written(generator: Generator, manner: DecodingSettings, foresight: Foresight | None) -> tuple[Completion, int]:
    """A completion, and the steps it took."""
    steps: list[None] = []
    stepper = generator._stepper
    stepper.foresight = foresight
    with stepper.watched(lambda: steps.append(None)):
        (completion,) = generator.generate("abcab", manner)
    return completion, len(steps)


def true_guesses(whole: list[int]) -> Foresight:
    """Of one who has read it all; of a text that is longer than what is in view, only the end is known."""

    def tell(text: list[int]) -> list[int]:
        end = next(end for end in range(len(whole), 0, -1) if whole[:end][-len(text) :] == text)
        return whole[end : end + MOST]

    return Told(tell)


@pytest.mark.parametrize("manner", MANNERS, ids=range(len(MANNERS)))
def test_true_guesses_spare_steps_and_change_nothing(generator: Generator, manner: DecodingSettings) -> None:
    plain, n_steps = written(generator, manner, None)
    same, n_fewer = written(generator, manner, true_guesses([*generator._encode("abcab"), *plain.tokens]))
    assert same.tokens == plain.tokens and same.text == plain.text and same.finish == plain.finish
    assert same.log_probs == pytest.approx(plain.log_probs, abs=1e-6)
    assert n_fewer <= n_steps / 2 or n_steps < 8


def test_every_variant_reads_ahead(writer: Callable[..., DecoderOnly], characters: Tokenizer, variant: Table) -> None:
    generator = Generator(writer(characters.vocab_size, **variant).double(), characters)
    plain, n_steps = written(generator, MANNERS[1], None)
    same, n_fewer = written(generator, MANNERS[1], true_guesses([*generator._encode("abcab"), *plain.tokens]))
    assert same.tokens == plain.tokens and n_fewer < n_steps


@pytest.mark.parametrize("manner", MANNERS, ids=range(len(MANNERS)))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(guesses=st.lists(st.lists(st.integers(3, 10), max_size=9), min_size=1, max_size=9))
def test_no_guess_changes_a_text(generator: Generator, manner: DecodingSettings, guesses: list[list[int]]) -> None:
    plain, _ = written(generator, manner, None)
    same, _ = written(generator, manner, Told(lambda text: guesses[len(text) % len(guesses)]))
    assert same.tokens == plain.tokens and same.finish == plain.finish
    assert same.log_probs == pytest.approx(plain.log_probs, abs=1e-6)


def test_what_is_read_in_parts_is_read_alike(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = "abcab, ja ja abc"  # which grows beyond the context
    plain = generator.generate(prompt, MANNERS[1])[0]
    parts: list[int] = []
    ahead = Stepper.ahead
    monkeypatch.setattr(step, "MOST_TARGETS", 5)
    monkeypatch.setattr(Stepper, "reads_quickly", lambda *_: True)
    monkeypatch.setattr(
        Stepper, "ahead", lambda self, tokens, cache: parts.append(len(tokens)) or ahead(self, tokens, cache)
    )
    generator._stepper.foresight = None
    same = generator.generate(prompt, MANNERS[1])[0]
    assert same.tokens == plain.tokens and same.log_probs == pytest.approx(plain.log_probs, abs=1e-6)
    assert max(parts) == 5 and len(parts) > 5


def test_rows_that_come_while_one_is_read_ahead_are_written_as_alone(generator: Generator) -> None:
    generator._stepper.foresight = Told(lambda text: [text[0], *text[:5]])
    alone = [generator.generate(prompt, MANNERS[1])[0] for prompt in ("abc", "ja")]
    pool = generator.pool()
    requests = [generator.requests(prompt, MANNERS[1])[0] for prompt in ("abc", "ja")]
    tokens: list[list[int]] = [[], []]
    pool.join(requests[0])
    for moment in range(60):
        if moment == 5:
            pool.join(requests[1])
        for request, news in pool.step():
            tokens[requests.index(request)].append(news.token)
    assert tokens == [list(each.tokens) for each in alone]


def test_what_follows_a_repetition_is_guessed_until_it_is_wrong_too_often() -> None:
    foresight = Foresight()
    assert foresight.guess(np.array([1, 2, 3, 4])) == []
    passage = list(range(10, 30))
    assert foresight.guess(np.array([*passage, 7, *passage[:9]]))[:3] == passage[9:12]
    deceived = Foresight()
    n_guessed = [bool(deceived.guess(np.array([*passage, *([7] * n), *passage[:9], 8]))) for n in range(1, 40)]
    assert not any(n_guessed)  # 8 was never seen before
    for n in range(40):  # what follows the repetition is always another token
        text = [*passage, 7, *passage[:9]]
        guessed = deceived.guess(np.array(text))
        deceived.guess(np.array([*text, 100 + n]))
    assert guessed == []


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.lists(st.integers(0, 4), max_size=60), max_size=4))
def test_ngrams_guess_what_followed_most_often_as_surely_as_it_did(texts: list[list[int]]) -> None:
    ngrams = Ngrams.of(np.array(text, dtype=np.uint16) for text in texts)
    counts: dict[tuple[int, ...], Counter[int]] = {}
    for text in texts:
        for place in range(1, len(text)):
            for order in range(1, min(ORDERS, place) + 1):
                counts.setdefault(tuple(text[place - order : place][::-1]), Counter())[text[place]] += 1
    for context, followers in counts.items():
        sure = []
        for order in range(1, len(context) + 1):
            of_order = counts[context[:order]]
            chance = (max(of_order.values()) - DISCOUNT) / of_order.total()
            if max(of_order.values()) > 1 and chance >= LEAST:
                sure.append((of_order, chance))
        guess = ngrams.guess(context)
        assert followers and (guess is not None or not sure or len(sure) < len(context))
        if guess is not None:  # by the longest context that has kept its slot
            assert any(
                of_order[guess.token] == max(of_order.values()) and chance - 1 / 256 <= guess.chance <= chance
                for of_order, chance in sure
            )


def test_ngrams_of_a_text_that_goes_round_know_it_by_heart(tmp_path: Path) -> None:
    ngrams = Ngrams.of([np.array([5, 6, 7, 6] * 50, dtype=np.uint8)])
    path = tmp_path / "ngrams.safetensors"
    path.write_bytes(ngrams.dump())
    for each in (ngrams, Ngrams.load(path, 8)):
        text = [5, 6, 7, 6, 5, 6]
        for token in (7, 6, 5, 6, 7):
            guess = each.guess(text[::-1])
            assert guess is not None and guess.token == token and guess.chance > 0.9
            text.append(token)
    assert Foresight(ngrams).guess(np.array([5, 6])) == [7, 6, 5, 6, 7, 6, 5]


def test_damaged_ngrams_are_an_error_with_words(tmp_path: Path) -> None:
    path = tmp_path / "ngrams.safetensors"
    path.write_bytes(b"half")
    with pytest.raises(PenwrightError, match="cannot be read"):
        Ngrams.load(path, 8)
    path.write_bytes(Ngrams.of([np.array([5, 60] * 9)]).dump())
    with pytest.raises(PenwrightError, match="does not belong"):
        Ngrams.load(path, 8)
    wrong_shapes = [np.zeros(shape, dtype=np.int64) for shape in ((2, 3), (4,), (), (2, 0))]
    for entries in (*wrong_shapes, np.zeros((2, 4), dtype=np.float32)):
        path.write_bytes(save({"entries": entries}))
        with pytest.raises(PenwrightError, match="does not belong"):
            Ngrams.load(path, 8)


def test_no_text_gives_no_guesses() -> None:
    for texts in ([], [np.zeros(0, dtype=np.uint16)], [np.array([1], dtype=np.uint16)]):
        assert Ngrams.of(texts).guess([1, 2]) is None
