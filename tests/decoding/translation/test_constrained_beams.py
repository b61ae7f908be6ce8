"""Constraint automata, and beam search constrained by them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product, repeat

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.decoding.batches import TargetBatch
from penwright.decoding.beam_search import beam_search
from penwright.decoding.constraints.constrained_beams import BeamState, ConstrainedBeams
from penwright.decoding.constraints.term_automaton import SLACK, Borders, ConstraintAutomaton, RequiredTerm
from penwright.decoding.hypotheses import BeamSettings, Hypothesis
from penwright.decoding.sampling.logits_process import NEG_INF
from penwright.decoding.sampling.topk import MAX_K
from penwright.model.transformer import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer

START, END = 1, 2
SOURCES = [[4, 5, 6, 2], [7, 2], [9, 8, 7, 6, 5, 4, 3, 2]]


class EveryTokenIsAWord(Borders):
    """Word boundaries for a vocabulary in which every token is a word."""

    def __init__(self, vocab_size: int = 29):
        self.ends = torch.ones(vocab_size, dtype=torch.bool)
        self.is_end, self.is_opening = [True] * vocab_size, [False] * vocab_size


def exact_term(*tokens: int, times: int = 1, bias: float = float("inf")) -> RequiredTerm:
    return RequiredTerm((tokens,), (tokens,), (tokens,), times, bias)


def search(
    model: EncoderDecoder, guides: Sequence[ConstraintAutomaton | None], limits: Sequence[int], beam: BeamSettings
) -> list[list[Hypothesis]]:
    rows = TargetBatch(model, SOURCES[: len(guides)], start_id=START, max_new_tokens=max(limits))
    return beam_search(rows, limits, beam, end_id=END, guides=guides)


def count(tokens: Sequence[int], part: Sequence[int]) -> int:
    return sum(tuple(tokens[n : n + len(part)]) == tuple(part) for n in range(len(tokens)))


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return train_tokenizer("characters", ["ab cde,-(\n"])


@pytest.fixture(scope="module")
def borders(letters: Tokenizer) -> Borders:
    return Borders(letters)


def spell(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text))


@given(st.text("ab ,-(", max_size=14))
@settings(max_examples=60)
def test_automaton_counts_only_whole_words(text: str) -> None:
    tokenizer = train_tokenizer("characters", ["ab ,-("])
    term = RequiredTerm((spell(tokenizer, " ab"),), (spell(tokenizer, "ab"),), (spell(tokenizer, "ab"),), times=20)
    automaton = ConstraintAutomaton([term], Borders(tokenizer))
    stage = automaton.start()
    for token in [*tokenizer.encode(text), tokenizer.end_id]:
        stage = automaton.after(stage, token)
    padded = f"^{text}$"
    occurrences = [n for n in range(1, len(padded)) if padded.startswith("ab", n)]
    alone = [n for n in occurrences if padded[n - 1] in "^ (" and padded[n + 2] in "$ ,("]
    assert 20 - stage.state.remaining[0] == len(alone)


@pytest.mark.parametrize("seed", range(4))
def test_exhaustive_beam_finds_the_best_constrained_target(
    translating_model: Callable[..., EncoderDecoder], seed: int
) -> None:
    model, longest = translating_model(5, seed), 4
    source, letters = [3, 0, 2], [0, 1, 3, 4]
    rows = TargetBatch(model, [source], start_id=START, max_new_tokens=longest)
    automaton = ConstraintAutomaton([exact_term(3, 4)], EveryTokenIsAWord(5))
    beam = BeamSettings(beam_size=400, n_best=3, length_penalty=0.6)
    (found,) = beam_search(rows, [longest], beam, end_id=END, guides=[automaton])
    ended = [tokens for n in range(longest) for tokens in product(letters, repeat=n) if count(tokens, (3, 4)) == 1]

    def score(tokens: tuple[int, ...]) -> float:
        read, target = torch.tensor([source]), torch.tensor([[START, *tokens, END]])
        with torch.inference_mode():
            logits = model(read, torch.ones_like(read, dtype=torch.bool), target)[0, :-1]
        total = logits.double().log_softmax(-1).gather(1, target[0, 1:, None]).sum()
        return float(total) / (len(tokens) + 1) ** 0.6

    best = max(score(tokens) for tokens in ended)
    assert max(hypothesis.score for hypothesis in found) == pytest.approx(best, abs=1e-4)
    assert all(hypothesis.tokens in ended for hypothesis in found)


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_required_terms_occur_once_even_with_a_small_beam(
    translating_model: Callable[..., EncoderDecoder], beam_size: int
) -> None:
    terms = [(11, 12, 13), (20,), (15, 16)]
    guides = [ConstraintAutomaton([exact_term(*term) for term in terms], EveryTokenIsAWord()) for _ in SOURCES]
    found = search(translating_model(), guides, [12, 12, 14], BeamSettings(beam_size))
    for best, *_ in found:
        assert [count(best.tokens, term) for term in terms] == [1, 1, 1]


def test_begun_term_is_continued_when_too_few_tokens_are_left() -> None:
    automaton = ConstraintAutomaton([exact_term(3, 4, 5)], EveryTokenIsAWord())
    begun = automaton.after(automaton.after(automaton.start(), 3), 4)
    for limit, expected in ((6, {5}), (8, {5, 7, 9})):  # with a new start, the term and the end need a limit of seven
        guided = ConstrainedBeams(automaton, limit, [BeamState(begun)] * 3)
        before = [(0.0, 0.0), (NEG_INF, NEG_INF), (NEG_INF, NEG_INF)]
        chosen = guided.choose(guided.candidates([[7, 9, 5]] * 3, 3), repeat(0.0), before, 3)
        assert {continuation.token for continuation in chosen} == expected


@pytest.mark.parametrize("beam_size", [1, 3])
def test_term_is_a_whole_word_at_the_token_limit(
    translating_model: Callable[..., EncoderDecoder], borders: Borders, letters: Tokenizer, beam_size: int
) -> None:
    model, forms = translating_model(letters.vocab_size), (spell(letters, " ab"), spell(letters, "ab"))
    model.output.weight.data[letters.end_id] = 0
    model.output.weight.data[spell(letters, "e")[0]] *= 3  # so that this letter is the likeliest everywhere
    automaton = ConstraintAutomaton([RequiredTerm(forms[:1], forms[1:], forms[1:])], borders)
    for limit in range(5, 12):
        rows = TargetBatch(model, SOURCES[:1], start_id=START, max_new_tokens=limit)
        beam = BeamSettings(beam_size)
        ((best, *_),) = beam_search(rows, [limit], beam, end_id=letters.end_id, guides=[automaton])
        assert re.findall(r"\bab\b", letters.decode(best.tokens))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_long_form_is_not_begun_when_only_a_short_form_fits(
    translating_model: Callable[..., EncoderDecoder], beam_size: int
) -> None:
    model, forms = translating_model(output_bias=True), ((11, 12, 13, 14), (15,))
    model.output.bias.data[11] = 20.0  # the first token of the long form is the likeliest everywhere
    automaton = ConstraintAutomaton([RequiredTerm(forms, forms, forms)], EveryTokenIsAWord())
    for limit in range(2, 9):
        best, *_ = search(model, [automaton], [limit], BeamSettings(beam_size))[0]
        assert any(count(best.tokens, form) for form in forms), best


def test_term_can_be_required_twice_in_any_form(translating_model: Callable[..., EncoderDecoder]) -> None:
    forms = ((11, 12), (13,))
    automaton = ConstraintAutomaton([RequiredTerm(forms, forms, forms, times=2)], EveryTokenIsAWord())
    (best,) = search(translating_model(), [automaton], [10], BeamSettings(4))[0]
    assert sum(count(best.tokens, form) for form in forms) == 2


@pytest.mark.parametrize("beam_size", [4, MAX_K + 4])
def test_unconstrained_rows_are_unchanged_by_constrained_ones(
    translating_model: Callable[..., EncoderDecoder], beam_size: int
) -> None:
    model = translating_model().double()
    beam, limits = BeamSettings(beam_size, n_best=3), [10, 10, 12]
    plain = search(model, [None, None, None], limits, beam)
    mixed = search(model, [None, ConstraintAutomaton([exact_term(11, 12)], EveryTokenIsAWord()), None], limits, beam)
    for one, other in ((plain[0], mixed[0]), (plain[2], mixed[2])):
        assert [h.tokens for h in one] == [h.tokens for h in other]
    assert plain[1] != mixed[1]


def test_constrained_row_is_the_same_alone_and_in_a_batch(translating_model: Callable[..., EncoderDecoder]) -> None:
    model = translating_model().double()
    guides = [ConstraintAutomaton([exact_term(11, 12), exact_term(20 + n)], EveryTokenIsAWord()) for n in range(3)]
    together = search(model, guides, [10, 12, 11], BeamSettings(5))
    alone = search(model, guides[:1], [10], BeamSettings(5))
    assert [h.tokens for h in together[0]] == [h.tokens for h in alone[0]]


def test_log_probabilities_are_those_of_the_model_and_add_up(translating_model: Callable[..., EncoderDecoder]) -> None:
    model = translating_model()
    (best,) = search(
        model,
        [ConstraintAutomaton([exact_term(11, 12), exact_term(14, bias=3.0)], EveryTokenIsAWord())],
        [10],
        BeamSettings(4),
    )[0]
    ended = [END] if best.finish == "end" else []
    source, target = torch.tensor([SOURCES[0]]), torch.tensor([[START, *best.tokens, *ended]])
    with torch.inference_mode():
        log_probs = model(source, torch.ones_like(source, dtype=torch.bool), target)[0, :-1].log_softmax(-1)
    expected = log_probs.gather(1, target[0, 1:, None])[:, 0].tolist()
    assert list(best.log_probs) == pytest.approx(expected, abs=1e-4)
    assert best.log_prob == pytest.approx(sum(expected), abs=1e-3)


@pytest.mark.parametrize("position", [0, 3, 6, 9])  # without a position, this model begins the term at 4 or 9
def test_term_begins_at_its_expected_position(translating_model: Callable[..., EncoderDecoder], position: int) -> None:
    automaton = ConstraintAutomaton([replace(exact_term(10), position=position)], EveryTokenIsAWord())
    (best,) = search(translating_model(), [automaton], [12], BeamSettings(4))[0]
    assert best.tokens.index(10) == pytest.approx(position, abs=SLACK)


def test_word_inside_a_longer_term_does_not_count() -> None:
    automaton = ConstraintAutomaton([exact_term(4), exact_term(3, 4)], EveryTokenIsAWord())
    stage = automaton.start()
    for token, remaining in ((3, (1, 1)), (4, (1, 1)), (4, (1, 0)), (7, (0, 0))):
        stage = automaton.after(stage, token)
        assert stage.state.remaining == remaining


def test_bias_makes_a_term_likelier_without_forcing_it(translating_model: Callable[..., EncoderDecoder]) -> None:
    model = translating_model()

    def n_written(bias: float) -> int:
        """Count how many of six tokens occur, each with a bias in its own search."""
        guides = [ConstraintAutomaton([exact_term(token, bias=bias)], EveryTokenIsAWord()) for token in range(10, 16)]
        found = [search(model, [automaton], [8], BeamSettings(4))[0][0].tokens for automaton in guides]
        return sum(token in tokens for token, tokens in enumerate(found, start=10))

    assert n_written(0.0) < n_written(4.0) <= n_written(50.0) == 6
    assert n_written(0.5) < 6


def test_target_starts_with_its_prefix(translating_model: Callable[..., EncoderDecoder]) -> None:
    guides = [
        ConstraintAutomaton([exact_term(20)], EveryTokenIsAWord(), prefix=(9, 9, 17)),
        None,
        ConstraintAutomaton([], EveryTokenIsAWord(), prefix=(5,)),
    ]
    found = search(translating_model(), guides, [10, 10, 10], BeamSettings(3))
    assert found[0][0].tokens[:3] == (9, 9, 17) and 20 in found[0][0].tokens
    assert found[2][0].tokens[:1] == (5,)


def test_forbidden_word_does_not_occur(translating_model: Callable[..., EncoderDecoder]) -> None:
    model = translating_model()
    (plain,) = search(model, [None], [8], BeamSettings(4))[0]
    unwanted = plain.tokens[0]
    (found,) = search(
        model, [ConstraintAutomaton([exact_term(unwanted, times=0)], EveryTokenIsAWord())], [8], BeamSettings(4)
    )[0]
    assert unwanted not in found.tokens


@pytest.mark.parametrize("times", [0, 1])
def test_word_at_the_end_of_a_verbatim_term_does_not_count(letters: Tokenizer, borders: Borders, times: int) -> None:
    def term(text: str, times: int, verbatim: bool) -> RequiredTerm:
        forms = (spell(letters, f" {text}"),), (spell(letters, text),), (spell(letters, text),)
        return RequiredTerm(*forms, times, verbatim=verbatim)

    automaton = ConstraintAutomaton([term("ab c", 1, True), term("c", times, False)], borders)
    stage = automaton.start()
    for token in letters.encode("c, ab c" if times else "ab c"):
        stage = automaton.after(stage, token)
    assert stage.state.closed and stage.prospects.may_end_word and stage.prospects.may_end
