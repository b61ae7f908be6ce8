from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penwright.decoding.sampling.logits_process import (
    Bias,
    History,
    RowHistory,
    add_biases,
    dont_repeat_yourself,
    forbid_repeated,
    penalize_frequency,
    penalize_presence,
    penalize_repetition,
)

VOCABULARY = 6
texts = st.lists(st.integers(0, VOCABULARY - 1), max_size=80)
quick = settings(max_examples=60)
ZERO_LOGITS = torch.zeros(1, VOCABULARY)


def history_of(written: list[int], prompt: list[int] | None = None) -> History:
    history = History([prompt or []], ZERO_LOGITS)
    for token in written:
        history.push(torch.tensor([token]))
    return history


def changed(logits: Tensor) -> dict[int, float]:
    return {token: value for token, value in enumerate(logits[0].tolist()) if value != 0}


@given(texts)
@quick
def test_repetitions_give_how_far_each_position_matches_the_end(text: list[int]) -> None:
    following, overlaps = RowHistory(text).repetitions()
    assert following.tolist() == text[1:]
    for place, overlap in enumerate(overlaps.tolist()):
        before = text[: place + 1]
        assert before[len(before) - overlap :] == text[len(text) - overlap :]
        assert overlap == len(before) or before[-overlap - 1] != text[-overlap - 1]


def test_repetition_penalty_lowers_seen_tokens_of_either_sign() -> None:
    history = history_of([1], prompt=[0])
    scores = torch.tensor([[2.0, -2.0, 2.0, -2.0, 0.0, 0.0]])
    assert penalize_repetition(scores, history, 2.0).tolist() == [[1.0, -4.0, 2.0, -2.0, 0.0, 0.0]]


def test_presence_counts_once_frequency_each_time_and_the_prompt_never() -> None:
    history = history_of([1, 1, 2], prompt=[0, 0])
    assert changed(penalize_presence(ZERO_LOGITS, history, 0.5)) == {1: -0.5, 2: -0.5}
    assert changed(penalize_frequency(ZERO_LOGITS, history, 0.5)) == {1: -1.0, 2: -0.5}


def expected_dry(text: list[int], strength: float, base: float, allowed: int, breakers: set[int]) -> dict[int, float]:
    """Compute DRY as in the pull request that introduced it, position by position."""
    longest = Counter[int]()
    for place in range(len(text) - 1):
        length = 0
        while length <= place and text[place - length] == text[-1 - length] and text[-1 - length] not in breakers:
            length += 1
        if text[place + 1] not in breakers and length >= allowed:
            longest[text[place + 1]] = max(longest[text[place + 1]], length)
    return {token: -strength * base ** (length - allowed) for token, length in longest.items()}


@given(texts, st.sampled_from([1, 2, 3]), st.sampled_from([set(), {0}, {1, 4}]))
@quick
def test_dry_matches_its_published_definition(text: list[int], allowed: int, breakers: set[int]) -> None:
    penalized = dont_repeat_yourself(ZERO_LOGITS, history_of([], text), 0.5, 1.2, allowed, sorted(breakers))
    assert changed(penalized) == pytest.approx(expected_dry(text, 0.5, 1.2, allowed, breakers), rel=1e-4)


def test_dry_penalty_of_an_endless_repetition_is_finite() -> None:
    assert torch.isfinite(dont_repeat_yourself(ZERO_LOGITS, history_of([], [3] * 3000), 1.0, 2.0, 2, ())).all()


@given(texts, st.integers(1, 4))
@quick
def test_no_repeat_ngram_forbids_every_repeated_ngram(text: list[int], n: int) -> None:
    scores = forbid_repeated(ZERO_LOGITS, history_of([], text), n)
    ngrams = {tuple(text[place : place + n]) for place in range(len(text) - n + 1)}
    end = text[len(text) - n + 1 :] if n > 1 else []
    complete = len(text) >= n - 1
    again = {token for token in range(VOCABULARY) if complete and (*end, token) in ngrams}
    forbidden = {token for token in range(VOCABULARY) if scores[0, token] == float("-inf")}
    assert forbidden == (again if len(again) < VOCABULARY else set())


def test_bias_of_a_text_is_divided_among_its_tokens() -> None:
    bias = Bias([[2, 3, 3]], 6.0)
    assert changed(add_biases(ZERO_LOGITS, history_of([1]), [bias])) == {2: 2.0}
    assert changed(add_biases(ZERO_LOGITS, history_of([1, 2]), [bias])) == {2: 2.0, 3: 2.0}
    assert changed(add_biases(ZERO_LOGITS, history_of([1, 2, 3]), [bias])) == {2: 2.0, 3: 2.0}
    assert changed(add_biases(ZERO_LOGITS, history_of([2, 3, 3]), [bias])) == {2: 2.0}


def test_selected_rows_keep_their_history() -> None:
    history = History([[0], [1, 2], [3]], ZERO_LOGITS.expand(3, -1))
    history.push(torch.tensor([4, 4, 5]))
    history.select([2, 1])
    assert [past.tokens.tolist() for past in history.pasts] == [[3, 5], [1, 2, 4]]
    assert history.seen.nonzero().tolist() == [[0, 3], [0, 5], [1, 1], [1, 2], [1, 4]]
    assert history.written.nonzero().tolist() == [[0, 5], [1, 4]]


@given(texts, texts)
@quick
def test_prompt_given_at_once_equals_prompt_token_by_token(prompt: list[int], rest: list[int]) -> None:
    whole, stepwise = RowHistory([*prompt]), RowHistory([])
    for token in prompt:
        stepwise.push(token)
    for token in rest:
        whole.push(token)
        stepwise.push(token)
    for one, other in zip(whole.repetitions(), stepwise.repetitions(), strict=True):
        assert one.tolist() == other.tolist()
