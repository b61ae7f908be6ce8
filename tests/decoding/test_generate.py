from collections.abc import Callable, Sequence

import pytest
import torch

from penwright.config import DecodingSettings, Table
from penwright.decoding.batches import PromptBatch
from penwright.decoding.generation_loop import generate
from penwright.decoding.sampling.penalties import Bias
from penwright.decoding.sampling.sampler import RowRng, Sampling
from penwright.errors import PenwrightError
from penwright.model.decoder_only import DecoderOnly

VOCABULARY, END = 29, 2
PROMPTS = [
    [1, 2, 3, 4, 5, 6, 7],
    [9],
    [8, 3, 8, 3, 5, 1, 7, 9, 11, 12, 3, 4, 5],
    [3],
    list(range(3, 21)),
]  # the last is longer than the context
GREEDY = Sampling(banned=(0,))
SAMPLED = Sampling(
    banned=(0,),
    settings=DecodingSettings(repetition_penalty=1.3, temperature=0.9, top_k=20, top_p=0.95, min_p=0.01),
)


def write(
    model: DecoderOnly,
    prompts: Sequence[list[int]],
    sampling: Sampling = GREEDY,
    numbers: Sequence[int] | None = None,
    end_id: int = END,
    max_new_tokens: int = 12,
    should_stop: Callable[[int, int], bool] | None = None,
) -> list[tuple[list[int], str]]:
    """Each row's tokens and how it finished."""
    tokens: list[list[int]] = [[] for _ in prompts]
    finished = {}
    steps = generate(
        PromptBatch(model, prompts, max_new_tokens),
        sampling,
        RowRng(5, numbers or [0] * len(prompts)),
        end_id=end_id,
        max_new_tokens=max_new_tokens,
        prompts=prompts,
        should_stop=should_stop,
    )
    for step in steps:
        for row, token in zip(step.rows, step.tokens, strict=True):
            tokens[row].append(token)
        finished |= step.finished
    return [(row, finished[number]) for number, row in enumerate(tokens)]


def assert_alone_as_in_a_batch(model: DecoderOnly, sampling: Sampling) -> None:
    model.double()  # so that rounding decides no near-tie
    alone = [write(model, [prompt], sampling, [number])[0] for number, prompt in enumerate(PROMPTS)]
    order = [2, 0, 1]
    together = write(model, [PROMPTS[number] for number in order], sampling, order)
    assert together == [alone[number] for number in order]


def test_a_prompt_is_continued_alone_as_in_any_batch(writer: Callable[..., DecoderOnly], variant: Table) -> None:
    assert_alone_as_in_a_batch(writer(VOCABULARY, **variant), SAMPLED)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_holds_for_greedy_search(writer: Callable[..., DecoderOnly], seed: int) -> None:
    assert_alone_as_in_a_batch(writer(VOCABULARY, seed), GREEDY)


def test_the_same_holds_for_all_samplers_together(writer: Callable[..., DecoderOnly]) -> None:
    everything = {
        "typical_p": 0.95,
        "eta_cutoff": 0.001,
        "epsilon_cutoff": 0.001,
        "top_n_sigma": 3.0,
        "min_new_tokens": 5,
    }
    looking_back = {"dry_multiplier": 1.0, "no_repeat_ngram": 2, "presence_penalty": 0.3, "frequency_penalty": 0.2}
    settings = {**everything, **looking_back, "xtc_probability": 0.5, "temperature": 1.2, "top_p": 0.9}
    sampling = Sampling((0,), DecodingSettings(**settings), (Bias([[4, 5]], 3.0),), (3,))
    assert_alone_as_in_a_batch(writer(VOCABULARY), sampling)


def test_these_models_do_not_always_say_the_same(writer: Callable[..., DecoderOnly]) -> None:
    written = write(writer(VOCABULARY), PROMPTS, end_id=-1, max_new_tokens=30)
    assert all(len(set(tokens)) > 4 for tokens, _ in written)
    assert len({tuple(tokens) for tokens, _ in written}) == len(PROMPTS)


def test_rows_end_at_the_end_token_or_at_the_longest_length(writer: Callable[..., DecoderOnly]) -> None:
    model = writer(VOCABULARY)
    free = write(model, PROMPTS, end_id=-1, max_new_tokens=12)
    end = free[0][0][5]
    for (tokens, finish), (unstopped, _) in zip(
        write(model, PROMPTS, end_id=end, max_new_tokens=12), free, strict=True
    ):
        length = unstopped.index(end) + 1 if end in unstopped else 12
        assert (tokens, finish) == (unstopped[:length], "end" if end in unstopped else "length")


def test_a_stop_rule_ends_its_row_only(writer: Callable[..., DecoderOnly]) -> None:
    model, seen = writer(VOCABULARY), [0, 0]

    def third_of_second(row: int, token: int) -> bool:
        seen[row] += 1
        return row == 1 and seen[row] == 3

    free = write(model, PROMPTS[:2], end_id=-1, max_new_tokens=6)
    stopped = write(model, PROMPTS[:2], end_id=-1, max_new_tokens=6, should_stop=third_of_second)
    assert stopped == [free[0], (free[1][0][:3], "stop")]


def test_log_probabilities_are_the_models_own_whatever_the_sampling(writer: Callable[..., DecoderOnly]) -> None:
    model = writer(VOCABULARY)
    steps = generate(
        PromptBatch(model, [PROMPTS[0]], 6), SAMPLED, RowRng(0, [0]), end_id=-1, max_new_tokens=6, prompts=[PROMPTS[0]]
    )
    tokens, log_probs = zip(*((step.tokens[0], step.log_probs[0]) for step in steps), strict=True)
    logits = model(torch.tensor([[*PROMPTS[0], *tokens]]))[0, len(PROMPTS[0]) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert log_probs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_strong_repetition_penalty_lets_nothing_come_twice(writer: Callable[..., DecoderOnly]) -> None:
    strict = Sampling(settings=DecodingSettings(temperature=0.0, repetition_penalty=1e30))
    ((tokens, _),) = write(writer(VOCABULARY), [[9, 7]], strict, end_id=-1, max_new_tokens=12)
    assert len(set(tokens)) == 12
    assert not {9, 7} & set(tokens)


def test_another_seed_writes_another_text(writer: Callable[..., DecoderOnly]) -> None:
    model = writer(VOCABULARY)
    assert write(model, [[5]], SAMPLED, [0]) != write(model, [[5]], SAMPLED, [1])


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_model_that_diverged_is_reported(writer: Callable[..., DecoderOnly], sampling: Sampling) -> None:
    model = writer(VOCABULARY)
    torch.nn.init.constant_(model.output.weight, float("nan"))
    with pytest.raises(PenwrightError, match="diverged"):
        write(model, [[5]], sampling)
