from collections.abc import Callable, Sequence
from itertools import product
from math import inf

import pytest
import torch
from torch import Tensor

from penwright.config import Table
from penwright.decoding.batches import TargetBatch
from penwright.decoding.beam_search import MIN_PATIENCE, beam_search
from penwright.decoding.hypotheses import BeamSettings, Hypothesis
from penwright.errors import PenwrightError
from penwright.model.transformer import EncoderDecoder

START, END = 1, 2
SOURCES = [[4, 5, 6, 2], [7, 2], [9, 8, 7, 6, 5, 4, 3, 2], [3, 4, 2]]
LIMITS = [8, 6, 10, 1]


def search(
    model: EncoderDecoder, sources: Sequence[list[int]], limits: Sequence[int], settings: BeamSettings
) -> list[list[Hypothesis]]:
    rows = TargetBatch(model, sources, start_id=START, max_new_tokens=max(limits))
    return beam_search(rows, limits, settings, end_id=END)


@torch.inference_mode()
def log_prob(model: EncoderDecoder, source: list[int], tokens: Sequence[int]) -> float:
    """Return the log-probability of the tokens after the start token, from one full pass."""
    read = torch.tensor([source])
    logits = model(read, torch.ones_like(read, dtype=torch.bool), torch.tensor([[START, *tokens]]))[0, :-1]
    return float(logits.double().log_softmax(-1).gather(1, torch.tensor([*tokens])[:, None]).sum())


def whole(hypothesis: Hypothesis) -> list[int]:
    return [*hypothesis.tokens, END] if hypothesis.finish == "end" else list(hypothesis.tokens)


def assert_same(some: list[list[Hypothesis]], others: list[list[Hypothesis]]) -> None:
    for best, other in zip(some, others, strict=True):
        assert [whole(hypothesis) for hypothesis in best] == [whole(hypothesis) for hypothesis in other]
        scores = [hypothesis.score for hypothesis in other]
        assert [hypothesis.score for hypothesis in best] == pytest.approx(scores, abs=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_beam_size_1_is_greedy_search(translating_model: Callable[..., EncoderDecoder], seed: int) -> None:
    model = translating_model(29, seed)
    beams = search(model, SOURCES, LIMITS, BeamSettings(beam_size=1, banned=(0, START)))
    for source, limit, (best,) in zip(SOURCES, LIMITS, beams, strict=True):
        tokens = greedy_tokens(model, source, limit, banned=(0, START))
        assert whole(best) == tokens
        assert best.finish == ("end" if tokens[-1] == END else "length")
        assert best.log_prob == pytest.approx(log_prob(model, source, tokens), abs=1e-3)


@torch.inference_mode()
def greedy_tokens(model: EncoderDecoder, source: list[int], limit: int, banned: tuple[int, ...]) -> list[int]:
    """Return the likeliest token at each step, from a full pass over the target each time."""
    read, tokens = torch.tensor([source]), list[int]()
    while len(tokens) < limit and tokens[-1:] != [END]:
        logits = model(read, torch.ones_like(read, dtype=torch.bool), torch.tensor([[START, *tokens]]))[0, -1]
        logits[list(banned)] = -inf
        tokens.append(int(logits.argmax()))
    return tokens


@pytest.mark.parametrize(("seed", "length_penalty"), [(0, 0.0), (1, 0.6), (0, 2.0), (1, -1.0)])
def test_exhaustive_beam_finds_the_n_best(
    translating_model: Callable[..., EncoderDecoder], length_penalty: float, seed: int
) -> None:
    model, source, longest, n_best = translating_model(4, seed), [3, 0, 2], 4, 5
    settings = BeamSettings(beam_size=108, n_best=n_best, length_penalty=length_penalty)
    (found,) = search(model, [source], [longest], settings)
    ended = [(*tokens, END) for n in range(longest) for tokens in product([0, 1, 3], repeat=n)]
    scores = {tokens: log_prob(model, source, tokens) / len(tokens) ** length_penalty for tokens in ended}
    best = sorted(scores, key=scores.__getitem__, reverse=True)[:n_best]
    assert [(*hypothesis.tokens, END) for hypothesis in found] == best
    assert [hypothesis.score for hypothesis in found] == pytest.approx([scores[tokens] for tokens in best], abs=1e-4)


class FakeModel:
    """A fake model with given probabilities of token 0 and the end token at each step."""

    def __init__(self, *probabilities: tuple[float, float]):
        self.steps = iter(probabilities)
        self.n_rows = 1

    def first(self) -> Tensor:
        token_0, end = next(self.steps)
        return torch.tensor([[token_0, 1 - token_0 - end, end]]).log().expand(self.n_rows, 3).clone()

    def step(self, tokens: Tensor) -> Tensor:
        return self.first()

    def select(self, rows: Tensor) -> None:
        self.n_rows = len(rows)

    def branch(self, n: int) -> None:
        self.n_rows *= n

    def reorder(self, rows: Tensor) -> None:
        pass


@pytest.mark.parametrize(
    ("length_penalty", "steps", "best"),
    [
        (1.0, [(0.35, 0.6), (0.99, 0.001), (0.99, 0.001), (0.001, 0.99)], (0, 0, 0)),  # a longer hypothesis wins
        (-1.0, [(0.7, 0.2), (0.001, 0.99), *[(0.5, 0.1)] * 6], (0,)),  # a shorter hypothesis wins
    ],
)
def test_search_continues_while_a_better_hypothesis_is_possible(
    length_penalty: float, steps: list[tuple[float, float]], best: tuple[int, ...]
) -> None:
    ((found,),) = beam_search(
        FakeModel(*steps), [len(steps)], BeamSettings(2, length_penalty=length_penalty), end_id=END
    )
    assert found.tokens == best


@pytest.mark.parametrize(("patience", "n_tokens"), [(0.25, 0), (inf, 107)])
def test_beam_patience_waits_for_longer_hypotheses(patience: float, n_tokens: int) -> None:
    steps = [(0.35, 0.6), *[(0.4, 0.25)] * 7, *[(0.99, 0.001)] * 99, (0.001, 0.99)]
    ((found,),) = beam_search(FakeModel(*steps), [len(steps)], BeamSettings(2, beam_patience=patience), end_id=END)
    assert found.tokens == (0,) * n_tokens


def test_short_hypotheses_may_grow_by_some_tokens_without_patience() -> None:
    steps = [(0.35, 0.6), *[(0.99, 0.001)] * MIN_PATIENCE, (0.001, 0.99)]
    ((found,),) = beam_search(FakeModel(*steps), [len(steps)], BeamSettings(2, beam_patience=0.0), end_id=END)
    assert found.tokens == (0,) * (MIN_PATIENCE + 1)


def test_search_stops_when_no_better_hypothesis_is_possible() -> None:
    ((found,),) = beam_search(FakeModel((0.1, 0.8)), [4], BeamSettings(2, length_penalty=0.0), end_id=END)
    assert found.tokens == ()  # the fake model has no second step


def test_cancelled_source_leaves_the_batch_and_changes_no_other(
    translating_model: Callable[..., EncoderDecoder],
) -> None:
    model = translating_model(29, 0).double()
    settings, steps, rows = BeamSettings(beam_size=3, n_best=2, banned=(END,)), 0, []
    translating = TargetBatch(model, SOURCES, start_id=START, max_new_tokens=10)
    ours = translating.step

    def step(tokens: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        rows.append(len(tokens))
        return ours(tokens)

    translating.step = step  # type: ignore[method-assign]
    found = beam_search(translating, [10] * 4, settings, end_id=END, wanted=lambda number: number != 2 or steps < 4)
    assert rows == [4, *[12] * 3, *[9] * 6]  # start tokens; 3 steps of all sources; 6 of the others
    others = [number for number in range(4) if number != 2]
    alone = search(model, [SOURCES[number] for number in others], [10] * 3, settings)
    assert_same([found[number] for number in others], alone)
    assert len(found[2][0].tokens) == 4


def test_source_is_translated_alone_as_in_any_batch(
    translating_model: Callable[..., EncoderDecoder], variant: Table
) -> None:
    model = translating_model(**variant).double()  # so that rounding decides no near-tie
    settings = BeamSettings(beam_size=5, n_best=4)
    order = [3, 1, 0, 2]
    together = search(model, [SOURCES[n] for n in order], [LIMITS[n] for n in order], settings)
    assert_same(together, [search(model, [SOURCES[n]], [LIMITS[n]], settings)[0] for n in order])


def test_hypotheses_are_distinct_sorted_and_scored_by_the_model(
    translating_model: Callable[..., EncoderDecoder],
) -> None:
    model = translating_model()
    settings = BeamSettings(beam_size=6, n_best=6, length_penalty=0.7, banned=(0, START))
    for source, limit, found in zip(SOURCES, LIMITS, search(model, SOURCES, LIMITS, settings), strict=True):
        assert len({tuple(whole(hypothesis)) for hypothesis in found}) == len(found)
        assert found == sorted(found, key=lambda h: (h.finish == "end", h.score), reverse=True)
        for hypothesis in found:
            tokens = whole(hypothesis)
            assert len(tokens) <= limit
            assert not {0, START} & set(tokens)
            assert hypothesis.log_prob == pytest.approx(log_prob(model, source, tokens), abs=1e-3)
            assert hypothesis.score == pytest.approx(hypothesis.log_prob / len(tokens) ** 0.7)


def test_unfinished_hypothesis_is_marked(translating_model: Callable[..., EncoderDecoder]) -> None:
    model = translating_model(output_bias=True)
    with torch.no_grad():
        model.output.bias[END] = -1000.0
    found = search(model, SOURCES, LIMITS, BeamSettings(beam_size=3, n_best=2))
    assert all(hypothesis.finish == "length" for best in found for hypothesis in best)
    assert [len(best[0].tokens) for best in found] == LIMITS


def test_small_vocabulary_limits_the_number_of_hypotheses(translating_model: Callable[..., EncoderDecoder]) -> None:
    (found,) = search(translating_model(3), [[0, 2]], [1], BeamSettings(beam_size=8, n_best=8))
    assert {hypothesis.tokens for hypothesis in found} == {(), (0,), (1,)}


def test_diverged_model_is_reported(translating_model: Callable[..., EncoderDecoder]) -> None:
    model = translating_model()
    torch.nn.init.constant_(model.output.weight, float("nan"))
    with pytest.raises(PenwrightError, match="diverged"):
        search(model, SOURCES, LIMITS, BeamSettings())
