from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penwright.config import DecodingSettings
from penwright.decoding.sampling.logits_process import (
    FILTERS,
    History,
    exclude_top_choices,
    keep_epsilon,
    keep_eta,
    keep_min_p,
    keep_top_k,
    keep_top_n_sigma,
    keep_top_p,
    keep_typical_p,
)
from penwright.decoding.sampling.sampler import RowRng, Sampling, ban, draw, with_temperature

VOCABULARY = 12
scores = st.lists(st.floats(-30, 30, width=32), min_size=VOCABULARY, max_size=VOCABULARY)
quick = settings(max_examples=50)


def row(values: list[float]) -> Tensor:
    return torch.tensor([values], dtype=torch.float32)


def kept(logits: Tensor) -> Tensor:
    return logits > float("-inf")


FILTER_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "top_n_sigma": st.floats(1e-3, 10),
    "top_k": st.integers(1, 20),
    "top_p": st.floats(1e-9, 1),
    "min_p": st.floats(0, 1),
    "typical_p": st.floats(1e-9, 1),
    "epsilon_cutoff": st.floats(1e-9, 0.999),
    "eta_cutoff": st.floats(1e-9, 0.999),
}
PENALTY_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "repetition_penalty": st.floats(0.5, 2),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "dry_multiplier": st.floats(0, 3),
    "dry_allowed_length": st.integers(1, 3),
    "no_repeat_ngram": st.none() | st.integers(1, 4),
}
mixtures = st.fixed_dictionaries(
    {"temperature": st.floats(1e-50, 100)}, optional={**FILTER_VALUES, **PENALTY_VALUES}
).map(lambda table: DecodingSettings(**table))
banned = st.sampled_from([(), (3,), (0, 5)])
pasts = st.lists(st.integers(0, VOCABULARY - 1), max_size=30)


def history_of(tokens: list[int], prompt: tuple[int, ...] = ()) -> History:
    history = History([prompt], torch.zeros(1, VOCABULARY))
    for token in tokens:
        history.push(torch.tensor([token]))
    return history


def test_every_filter_has_test_values() -> None:
    assert set(FILTER_VALUES) == set(FILTERS)


@pytest.mark.parametrize("name", FILTERS)
@given(data=st.data(), values=scores, banned_ids=banned)
@quick
def test_every_filter_leaves_a_distribution_without_banned_tokens(
    name: str, data: st.DataObject, values: list[float], banned_ids: tuple[int, ...]
) -> None:
    logits = ban(row(values), banned_ids)
    filtered = FILTERS[name](logits, data.draw(FILTER_VALUES[name]))
    assert filtered.softmax(-1).sum() == pytest.approx(1)
    assert torch.equal(filtered[kept(filtered)], logits[kept(filtered)])  # kept tokens keep their logits
    assert not kept(filtered)[0, list(banned_ids)].any()


@given(scores, mixtures, banned, pasts)
@quick
def test_any_mix_of_samplers_is_a_distribution_without_banned_tokens(
    values: list[float], mixture: DecodingSettings, banned_ids: tuple[int, ...], past: list[int]
) -> None:
    processed = Sampling(banned_ids, mixture).process(row(values), history_of(past))
    assert processed.softmax(-1).sum() == pytest.approx(1)
    assert not kept(processed)[0, list(banned_ids)].any()


@given(scores, mixtures, pasts)
@quick
def test_row_is_reshaped_alone_as_in_a_batch(values: list[float], mixture: DecodingSettings, past: list[int]) -> None:
    sampling, others = Sampling((), mixture), torch.randn(2, VOCABULARY)
    history = History([past, [3, 3, 3, 3], []], torch.zeros(3, VOCABULARY))
    together = sampling.process(torch.cat([row(values), others]), history)[:1]
    alone = sampling.process(row(values), History([past], torch.zeros(1, VOCABULARY)))
    assert torch.equal(together, alone)


@given(scores, st.sampled_from(sorted(set(FILTERS) - {"typical_p"})), st.data())
@quick
def test_likeliest_token_survives_every_filter_but_typical_p(
    values: list[float], name: str, data: st.DataObject
) -> None:
    logits = row(values)
    survivors = logits[kept(FILTERS[name](logits, data.draw(FILTER_VALUES[name])))]
    assert survivors.max() == logits.max()


@given(st.permutations(range(VOCABULARY)), st.integers(1, 20))
@quick
def test_top_k_keeps_the_k_largest_logits(values: list[int], k: int) -> None:
    survivors = torch.tensor(values)[kept(keep_top_k(row([float(v) for v in values]), k))[0]]
    assert sorted(survivors.tolist()) == list(range(VOCABULARY))[-k:]


def test_top_k_keeps_exactly_k_of_equal_logits() -> None:
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
def test_min_p_keeps_tokens_with_that_share_of_the_top_probability(values: list[float], share: float) -> None:
    logits = row(values)
    probabilities = logits.double().softmax(-1)[0]
    inside = kept(keep_min_p(logits, share))[0]
    ratio = probabilities / probabilities.max()
    assert inside[ratio > share * 1.0001].all()
    assert not inside[ratio < share * 0.9999].any()


def distribution(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def test_typical_p_excludes_a_token_with_too_little_information() -> None:
    logits = distribution(0.4, *[0.06] * 10)  # entropy 2.05 nats: 0.06 is 2.81 nats, 0.4 only 0.92
    likeliest, *others = kept(keep_typical_p(logits, 0.29))[0].tolist()
    assert not likeliest and sum(others) == 5


def test_epsilon_cutoff_keeps_likely_tokens_and_always_the_best() -> None:
    assert kept(keep_epsilon(distribution(0.5, 0.3, 0.15, 0.05), 0.1)).tolist() == [[True, True, True, False]]
    assert kept(keep_epsilon(distribution(0.4, 0.35, 0.25), 0.9)).tolist() == [[True, False, False]]


def test_eta_cutoff_is_looser_than_epsilon_at_high_entropy() -> None:
    flat = distribution(0.02, *[0.01] * 98)
    assert kept(keep_epsilon(flat, 0.015)).sum() == 1
    assert kept(keep_eta(flat, 0.015)).all()  # the threshold is sqrt(0.015) * exp(-4.58)
    confident = distribution(0.97, 0.01, 0.02)
    assert torch.equal(keep_eta(confident, 0.015), keep_epsilon(confident, 0.015))


@given(scores, st.floats(0.1, 3), st.floats(0.2, 5))
@quick
def test_top_n_sigma_does_not_depend_on_temperature(values: list[float], n: float, temperature: float) -> None:
    logits = torch.tensor([values], dtype=torch.float64)
    edge = logits.max() - n * logits.std(correction=0)
    clear = (logits - edge).abs() > 1e-6
    warmed = kept(keep_top_n_sigma(logits / temperature, n))
    assert torch.equal(warmed[clear], (logits > edge)[clear])


def test_top_n_sigma_does_not_depend_on_banned_tokens() -> None:
    logits = row([3.0, 2.0, 1.0, 0.0])  # the standard deviation is 1.118, so the edge is 0.88
    assert kept(keep_top_n_sigma(logits, 1.9)).tolist() == [[True, True, True, False]]
    more = ban(row([3.0, 2.0, 1.0, 0.0, 5.0, -9.0]), (4, 5))
    assert kept(keep_top_n_sigma(more, 1.9)).tolist() == [[True, True, True, False, False, False]]


@pytest.mark.parametrize("rows", [[True, False], [False, True]])
def test_xtc_keeps_the_least_likely_top_choice_and_all_unlikely_tokens(rows: list[bool]) -> None:
    logits = distribution(0.3, 0.4, 0.05, 0.25).expand(2, -1)
    here = kept(exclude_top_choices(logits, 0.2, torch.tensor(rows)))
    assert here[rows.index(True)].tolist() == [False, False, True, True]
    assert here[rows.index(False)].all()


def test_xtc_does_nothing_with_a_single_top_choice() -> None:
    assert kept(exclude_top_choices(distribution(0.9, 0.06, 0.04), 0.1, torch.tensor([True]))).all()


@given(st.permutations(range(VOCABULARY)), st.sampled_from([1e-2, 1e-30, 1e-300]))
@quick
def test_temperature_near_zero_is_greedy(values: list[int], temperature: float) -> None:
    logits = row([float(value) for value in values])
    uniform = torch.tensor([1e-6, 0.5, 0.999999], dtype=torch.float64)
    drawn = draw(Sampling((), DecodingSettings(temperature=temperature)).process(logits).expand(3, -1), uniform)
    assert drawn.tolist() == [logits.argmax().item()] * 3


@pytest.mark.parametrize(("temperature", "n_kept"), [(1.0, 2), (2.0, 3)])
def test_filters_see_the_probabilities_at_the_given_temperature(temperature: float, n_kept: int) -> None:
    settings = DecodingSettings(temperature=temperature, min_p=0.3)
    logits = distribution(0.6, 0.3, 0.1)  # a sixth of the likeliest; at temperature 2, sqrt(1/6)
    assert kept(Sampling((), settings).process(logits)).sum() == n_kept


def test_penalties_are_applied_in_their_documented_order() -> None:
    given = {"repetition_penalty": 2.0, "presence_penalty": 1.0, "temperature": 0.0}
    processed = Sampling((), DecodingSettings(**given)).process(row([6.0] * VOCABULARY), history_of([3]))
    assert processed[0, 3] == 6 / 2 - 1


def test_temperature_divides_logit_differences() -> None:
    assert with_temperature(row([0.0, 3.0, 1.0]), 2.0).tolist() == [[-1.5, 0.0, -1.0]]


@given(scores, st.floats(0, 1, exclude_max=True))
@quick
def test_draw_never_returns_a_token_of_zero_probability(values: list[float], uniform: float) -> None:
    logits = keep_top_k(row(values), 3)
    token = draw(logits, torch.tensor([uniform], dtype=torch.float64))
    assert kept(logits)[0, token]


def test_largest_random_number_still_draws_a_possible_token() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.7, 0.0]]))
    assert draw(logits, torch.tensor([1 - 2**-53], dtype=torch.float64)).tolist() == [2]


def test_draws_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.2, 0.3])
    uniform = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    drawn = draw(probabilities.log().expand(1000, 3), uniform)
    assert torch.bincount(drawn).tolist() == [500, 200, 300]


def test_row_draws_the_same_alone_and_in_a_batch() -> None:
    together, alone = RowRng(7, [3, 0, 5]), RowRng(7, [5])
    drawn = [(together.next()[2].item(), alone.next().item()) for _ in range(150)]
    assert all(a == b for a, b in drawn)


def test_row_draws_the_same_after_other_rows_leave() -> None:
    all_rows, fewer = RowRng(7, [0, 1, 2]), RowRng(7, [0, 1, 2])
    whole = [all_rows.next()[2].item() for _ in range(100)]
    before = [fewer.next()[2].item() for _ in range(10)]
    fewer.select([2])
    assert before + [fewer.next()[0].item() for _ in range(90)] == whole


@pytest.mark.parametrize("other", [(8, 0), (7, 1), (0, 7)])
def test_other_seeds_and_rows_give_other_draws(other: tuple[int, int]) -> None:
    assert RowRng(7, [0]).next() != RowRng(other[0], [other[1]]).next()


def test_xtc_applies_with_its_probability() -> None:
    sampling = Sampling((), DecodingSettings(temperature=1.0, xtc_probability=0.3, xtc_threshold=0.1))
    logits = distribution(0.4999, 0.5, 1e-4).expand(2000, -1)
    chosen = sampling.choose(logits, None, RowRng(0, range(2000)))
    share = (chosen == 0).float().mean()  # 0.3 + 0.7 * 0.5
    assert share == pytest.approx(0.65, abs=0.05)
