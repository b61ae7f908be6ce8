"""Completions, compared with a loop that reads the whole text for each token."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from penwright.config import DecodingSettings, Table
from penwright.decoding.requests import plan_of
from penwright.decoding.sampling.logits_process import NEG_INF, History
from penwright.decoding.sampling.sampler import RowRng
from penwright.errors import PenwrightError
from penwright.generation.generator import Generator
from penwright.model.transformer import DecoderOnly
from penwright.tokenizers import Tokenizer

Make = Callable[..., Generator]
PROMPTS = ["abcdefg", "a", "hijhi ,.abc", "", "abcdefghij ,.ABC abcdef", "a"]  # one is longer than the context
GREEDY = {"temperature": 0.0, "max_new_tokens": 12}
SAMPLED = {
    "repetition_penalty": 1.3,
    "temperature": 0.9,
    "top_k": 15,
    "top_p": 0.95,
    "min_p": 0.01,
    "max_new_tokens": 20,
}
PENALTIES = {"dry_multiplier": 1.0, "no_repeat_ngram": 2, "presence_penalty": 0.3, "frequency_penalty": 0.2}
ALL_SAMPLERS = {
    **PENALTIES,
    "typical_p": 0.95,
    "eta_cutoff": 0.001,
    "epsilon_cutoff": 0.001,
    "top_n_sigma": 3.0,
    "xtc_probability": 0.5,
    "temperature": 1.2,
    "top_p": 0.9,
    "logit_bias": {"ab": 3.0},
    "dry_breakers": ("c",),
    "min_new_tokens": 5,
    "max_new_tokens": 20,
}


@pytest.fixture
def make(generating_model: Callable[..., DecoderOnly], characters: Tokenizer) -> Make:
    def make_generator(seed: int = 0, **changes: object) -> Generator:
        model = generating_model(characters.vocab_size, seed, **changes)
        return Generator(model.double(), characters)  # float64: no near-ties

    return make_generator


@torch.inference_mode()
def reference(generator: Generator, prompt: str, settings: DecodingSettings, number: int) -> list[int]:
    """Return the tokens of a completion, each from a full pass over the visible context."""
    tokenizer, context = generator.tokenizer, generator.model.settings.context_length
    plan, half = plan_of(tokenizer, settings, [prompt], [tokenizer.end_id]), context - context // 2
    seen = [tokenizer.start_id, *tokenizer.encode(prompt)]
    context_tokens, written, state = seen if len(seen) <= context else seen[-half:], list[int](), np.uint8(0)
    history, rng = History([seen], torch.zeros(1, tokenizer.vocab_size)), RowRng(settings.seed, [number])
    while len(written) < plan.n_new and written[-1:] != [tokenizer.end_id]:
        logits = generator.model(torch.tensor([context_tokens]))[:, -1]
        n_left = plan.n_new - len(written) - 1
        plan.utf8_rules.forbid(logits, plan.utf8_rules.situations(np.array([state]), np.array([n_left])))
        if len(written) < settings.min_new_tokens:
            logits[:, tokenizer.end_id] = NEG_INF
        tokens = plan.sampling.choose(logits, history, rng)
        history.push(tokens)
        written += tokens.tolist()
        state = plan.utf8_rules.after[state, written[-1]]
        context_tokens = [*context_tokens, written[-1]]
        context_tokens = context_tokens if len(context_tokens) <= context else context_tokens[-half:]
    return written


def assert_equals_reference(generator: Generator, given: Mapping[str, object]) -> None:
    settings = DecodingSettings(**given)
    found = generator.generate(PROMPTS, settings)
    numbers = [0, 0, 0, 0, 0, 1]  # the last prompt comes twice
    expected = [reference(generator, *each) for each in zip(PROMPTS, [settings] * len(PROMPTS), numbers, strict=True)]
    assert [list(completion.tokens) for completion in found] == expected


def test_batched_completions_equal_the_reference_loop(make: Make, variant: Table) -> None:
    assert_equals_reference(make(**variant), SAMPLED)


@pytest.mark.parametrize("seed", range(3))
def test_greedy_completions_equal_the_reference_loop(make: Make, seed: int) -> None:
    assert_equals_reference(make(seed), GREEDY)


def test_completions_with_all_samplers_equal_the_reference_loop(make: Make) -> None:
    assert_equals_reference(make(), ALL_SAMPLERS)


def test_random_models_generate_varied_tokens(make: Make) -> None:
    written = make().generate(PROMPTS, min_new_tokens=25, max_new_tokens=30, temperature=0.0)
    assert all(len(set(completion.tokens)) > 4 for completion in written)
    assert len({completion.tokens for completion in written}) == len(set(PROMPTS))


def test_completions_end_at_the_end_token_or_the_length_limit(make: Make) -> None:
    generator = make()
    end = generator.tokenizer.end_id
    written = generator.generate(PROMPTS, n=4, max_new_tokens=9, temperature=1.5)
    for completion in written:
        ended = completion.tokens[-1] == end
        assert completion.finish == ("end" if ended else "length") and end not in completion.tokens[:-1]
        assert ended or len(completion.tokens) == 9
    assert {completion.finish for completion in written} == {"end", "length"}


def test_log_probs_are_those_of_the_model_for_any_sampling(make: Make) -> None:
    generator = make(context_length=64)
    (completion,) = generator.generate("abc", SAMPLED)
    tokens = [generator.tokenizer.start_id, *generator.tokenizer.encode("abc")]
    logits = generator.model(torch.tensor([[*tokens, *completion.tokens]]))[0, len(tokens) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
    assert completion.log_probs == pytest.approx(expected.tolist(), abs=1e-4)


def test_strong_repetition_penalty_prevents_every_repetition(make: Make) -> None:
    generator = make()
    strict = {"temperature": 0.0, "repetition_penalty": 1e30, "min_new_tokens": 8, "max_new_tokens": 8}
    (completion,) = generator.generate("ab", strict)
    assert len(set(completion.tokens)) == 8
    assert not set(generator.tokenizer.encode("ab")) & set(completion.tokens)


@pytest.mark.parametrize("given", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_diverged_model_is_reported(make: Make, given: Table) -> None:
    generator = make()
    torch.nn.init.constant_(generator.model.output.weight, float("nan"))
    with pytest.raises(PenwrightError, match="diverged"):
        generator.generate("a", given)
