from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penwright.config import DecodingSettings
from penwright.decoding.sampling import (
    Chances,
    Sampling,
    ban,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise_repetition,
    with_temperature,
)

VOCABULARY = 12
scores = st.lists(st.floats(-30, 30, width=32), min_size=VOCABULARY, max_size=VOCABULARY)
quick = settings(max_examples=50, deadline=None)


def row(values: list[float]) -> Tensor:
    return torch.tensor([values], dtype=torch.float32)


def kept(logits: Tensor) -> Tensor:
    return logits > float("-inf")


rules = st.tuples(
    st.sampled_from([(), (3,), (0, 5)]),  # banned
    st.floats(0.5, 2),  # repetition penalty
    st.floats(1e-50, 100),  # temperature
    st.none() | st.integers(1, 20),  # top k
    st.none() | st.floats(1e-9, 1),  # top p
    st.none() | st.floats(0, 1),  # min p
)


@given(scores, rules, st.lists(st.booleans(), min_size=VOCABULARY, max_size=VOCABULARY))
@quick
def test_probabilities_sum_to_one_and_never_go_to_banned_tokens(
    values: list[float], fields: tuple[Any, ...], seen: list[bool]
) -> None:
    sampling = Sampling(*fields)
    probabilities = sampling.reshape(row(values), torch.tensor([seen])).softmax(-1)
    assert probabilities.sum() == pytest.approx(1)
    assert not probabilities[0, list(sampling.banned)].any()


@given(scores, rules)
@quick
def test_the_best_allowed_token_is_always_kept(values: list[float], fields: tuple[Any, ...]) -> None:
    logits, sampling = row(values), Sampling(*fields)
    allowed = ban(logits, sampling.banned)
    reshaped = sampling.reshape(logits, torch.zeros(1, VOCABULARY, dtype=torch.bool))
    assert kept(reshaped)[0, allowed.argmax()]


@given(st.permutations(range(VOCABULARY)), st.integers(1, 20))
@quick
def test_top_k_keeps_the_k_best(values: list[int], k: int) -> None:
    survivors = torch.tensor(values)[kept(keep_top_k(row([float(v) for v in values]), k))[0]]
    assert sorted(survivors.tolist()) == list(range(VOCABULARY))[-k:]


def test_top_k_keeps_no_more_than_k_of_equal_tokens() -> None:
    assert kept(keep_top_k(torch.zeros(1, 9), 4)).sum() == 4


@given(scores, st.floats(0.01, 0.99))
@quick
def test_top_p_keeps_the_smallest_set_that_reaches_p(values: list[float], p: float) -> None:
    logits = row(values)
    probabilities = logits.double().softmax(-1)[0]
    inside = kept(keep_top_p(logits, p))[0]
    assert probabilities[inside].sum() >= p - 1e-9
    assert probabilities[inside].sum() - probabilities[inside].min() < p + 1e-9
    assert not (~inside).any() or probabilities[~inside].max() <= probabilities[inside].min()


@given(scores, st.floats(0.001, 1))
@quick
def test_min_p_keeps_what_has_that_share_of_the_best(values: list[float], share: float) -> None:
    logits = row(values)
    probabilities = logits.double().softmax(-1)[0]
    inside = kept(keep_min_p(logits, share))[0]
    ratio = probabilities / probabilities.max()
    assert inside[ratio > share * 1.0001].all()
    assert not inside[ratio < share * 0.9999].any()


@given(st.permutations(range(VOCABULARY)), st.sampled_from([1e-2, 1e-30, 1e-300]))
@quick
def test_a_temperature_close_to_zero_is_greedy(values: list[int], temperature: float) -> None:
    logits = row([float(value) for value in values])
    chances = torch.tensor([1e-6, 0.5, 0.999999], dtype=torch.float64)
    drawn = draw(Sampling(temperature=temperature).reshape(logits).expand(3, -1), chances)
    assert drawn.tolist() == [logits.argmax().item()] * 3


def test_temperature_divides_differences_of_scores() -> None:
    assert with_temperature(row([0.0, 3.0, 1.0]), 2.0).tolist() == [[-1.5, 0.0, -1.0]]


def test_the_repetition_penalty_lowers_seen_tokens_whatever_their_sign() -> None:
    seen = torch.tensor([[True, True, False, False]])
    assert penalise_repetition(row([2.0, -2.0, 2.0, -2.0]), seen, 2.0).tolist() == [[1.0, -4.0, 2.0, -2.0]]


@given(scores, st.floats(0, 1, exclude_max=True))
@quick
def test_a_draw_never_takes_a_token_without_probability(values: list[float], chance: float) -> None:
    logits = keep_top_k(row(values), 3)
    token = draw(logits, torch.tensor([chance], dtype=torch.float64))
    assert kept(logits)[0, token]


def test_the_last_possible_chance_still_draws_a_possible_token() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.7, 0.0]]))
    assert draw(logits, torch.tensor([1 - 2**-53], dtype=torch.float64)).tolist() == [2]


def test_draws_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.2, 0.3])
    chances = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    drawn = draw(probabilities.log().expand(1000, 3), chances)
    assert torch.bincount(drawn).tolist() == [500, 200, 300]


def test_a_row_draws_the_same_alone_and_among_others() -> None:
    together, alone = Chances(7, [3, 0, 5]), Chances(7, [5])
    drawn = [(together.next()[2].item(), alone.next().item()) for _ in range(150)]
    assert all(a == b for a, b in drawn)


def test_a_row_draws_on_undisturbed_when_others_leave() -> None:
    all_rows, fewer = Chances(7, [0, 1, 2]), Chances(7, [0, 1, 2])
    whole = [all_rows.next()[2].item() for _ in range(100)]
    before = [fewer.next()[2].item() for _ in range(10)]
    fewer.select([2])
    assert before + [fewer.next()[0].item() for _ in range(90)] == whole


@pytest.mark.parametrize("other", [(8, 0), (7, 1), (0, 7)])
def test_other_seeds_and_rows_draw_otherwise(other: tuple[int, int]) -> None:
    assert Chances(7, [0]).next() != Chances(other[0], [other[1]]).next()


def test_sampling_takes_its_settings_over() -> None:
    given_settings = DecodingSettings(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.2)
    assert Sampling.from_settings(given_settings, [1, 2]) == Sampling((1, 2), 1.2, 0.5, 3, 0.9, 0.1)
