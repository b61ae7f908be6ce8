from collections import defaultdict
from collections.abc import Callable, Sequence
from weakref import ref

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penwright.config import DecodingSettings, Table
from penwright.decoding import continuous_batching as pool_module
from penwright.decoding import continuous_batching as prefixes_module
from penwright.decoding import cuda_graphs
from penwright.decoding.batches import PromptBatch
from penwright.decoding.continuous_batching import ContinuousBatch, Prefixes, n_common
from penwright.decoding.requests import Request, TokenUpdate
from penwright.errors import PenwrightError
from penwright.generation.generator import Completion, Generator
from penwright.model.attention import KeysValues
from penwright.model.transformer import DecoderOnly
from penwright.tokenizers import Tokenizer

SETTINGS = DecodingSettings(max_new_tokens=12, temperature=1.0)
SAMPLERS = [
    SETTINGS,
    SETTINGS.model_copy(update={"temperature": 0.0, "max_new_tokens": 7}),
    SETTINGS.model_copy(update={"top_k": 5, "repetition_penalty": 1.3, "seed": 3}),
    SETTINGS.model_copy(update={"min_p": 0.02, "stop": ("a", "bc"), "max_new_tokens": 24}),
    SETTINGS.model_copy(update={"pattern": "[a-e ]{4,9}", "min_new_tokens": 6, "frequency_penalty": 0.5}),
]
PROMPTS = ["", "abc", "ja, a b c d e", "hhhh" * 9, "b"]


@pytest.fixture(autouse=True)
def short_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share prefixes of three tokens or more."""
    for module in (pool_module, prefixes_module):
        monkeypatch.setattr(module, "MIN_PREFIX", 3)


@pytest.fixture
def generator(generating_model: Callable[..., DecoderOnly], characters: Tokenizer) -> Generator:
    return Generator(generating_model(characters.vocab_size).double(), characters, SETTINGS)  # float64: no near-ties


@pytest.fixture(params=[False, True], ids=["", "ahead"])
def _steps_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each step before the last tokens are written, as on a GPU, but without CUDA graphs."""
    if request.param:
        monkeypatch.setattr(cuda_graphs, "DEVICES", ("cpu",))
        monkeypatch.setattr(cuda_graphs, "STEPS_BEFORE", 10**9)


def drain(pool: ContinuousBatch) -> dict[Request, list[TokenUpdate]]:
    """Run the pool until every request is finished, and return the updates."""
    updates = defaultdict(list)
    while pool.busy:
        for request, update in pool.step():
            updates[request].append(update)
    return updates


def completed(updates: Sequence[TokenUpdate]) -> tuple[str, tuple[int, ...], str | None]:
    return "".join(each.text for each in updates), tuple(each.token for each in updates), updates[-1].finish


def expected(completion: Completion) -> tuple[str, tuple[int, ...], str | None]:
    return completion.text, completion.tokens, completion.finish


@pytest.mark.usefixtures("_steps_ahead")
def test_rows_that_join_and_leave_are_generated_as_alone(
    generating_model: Callable[..., DecoderOnly], characters: Tokenizer, variant: Table
) -> None:
    generator = Generator(generating_model(characters.vocab_size, **variant).double(), characters)
    pool, requests, updates = generator.pool(max_rows=3), {}, defaultdict(list)
    for number, sampler in enumerate(SAMPLERS):
        (requests[number],) = generator.requests(PROMPTS[number], sampler)
    waiting = list(requests.values())
    while pool.busy or waiting:
        if waiting:
            pool.join(waiting.pop())
        for request, update in pool.step():
            updates[request].append(update)
    for number, sampler in enumerate(SAMPLERS):
        (alone,) = generator.generate(PROMPTS[number], sampler)
        assert completed(updates[requests[number]]) == expected(alone)
        values = [update.log_prob for update in updates[requests[number]]]
        assert values == pytest.approx(alone.log_probs, abs=1e-6)  # in float32, by other operations


@pytest.mark.usefixtures("_steps_ahead")
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    schedule=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 12), st.integers(0, 30)), max_size=6
    ),
    max_rows=st.integers(1, 4),
)
def test_random_joins_and_leaves_do_not_change_other_rows(
    generator: Generator, schedule: list[tuple[int, int, int, int]], max_rows: int
) -> None:
    pool = generator.pool(max_rows)
    requests = [generator.requests(PROMPTS[prompt], SAMPLERS[sampler])[0] for prompt, sampler, _, _ in schedule]
    updates = defaultdict(list)
    for step in range(120):
        for request, (_, _, joins_at, n_steps) in zip(requests, schedule, strict=True):
            if joins_at == step:
                pool.join(request)
            request.cancelled |= step == joins_at + n_steps and n_steps % 2 == 0
        for request, update in pool.step():
            updates[request].append(update)
    assert not pool.busy
    expectations = {
        (prompt, sampler): generator.generate(PROMPTS[prompt], SAMPLERS[sampler])[0]
        for prompt, sampler, _, _ in schedule
    }
    for request, (prompt, sampler, _, n_steps) in zip(requests, schedule, strict=True):
        alone = expectations[prompt, sampler]
        text, tokens, finish = completed(updates[request]) if updates[request] else ("", (), None)
        if finish is None:
            assert n_steps % 2 == 0
            assert alone.text.startswith(text)
            assert tokens == alone.tokens[: len(tokens)]
        else:
            assert (text, tokens, finish) == expected(alone)


def test_shared_prompt_prefix_is_not_read_again(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    hidden = generator.model.hidden

    def record_shape(tokens: torch.Tensor, **rest: object) -> torch.Tensor:
        shapes.append(tuple(tokens.shape))
        return hidden(tokens, **rest)

    monkeypatch.setattr(generator.model, "hidden", record_shape)
    pool = generator.pool()
    for request in generator.requests("abcdefgh", n=3):
        pool.join(request)
    pool.step()
    assert shapes == [(1, 9)]  # once for all three, with the start token
    for prompt in ("abcdefij", "abcdef,", "bcdefgh"):
        pool.join(generator.requests(prompt)[0])
    pool.step()
    assert sorted(shapes[1:]) == [(1, 8), (2, 2), (3, 1)]  # one whole prompt; two after six letters; the other rows
    drain(pool)
    pool.join(generator.requests("abcdefghij")[0])
    shapes.clear()
    pool.step()
    assert shapes == [(1, 2)]  # though its requests are finished


def test_token_look_lists_the_candidates_and_the_rank_of_the_token(generator: Generator) -> None:
    settings = DecodingSettings(temperature=0.7, top_k=4, max_new_tokens=6, seed=2)
    (request,) = generator.requests("abc", settings, n_likely=99)  # more than the vocabulary
    pool = generator.pool()
    pool.join(request)
    updates = drain(pool)[request]
    assert len(updates) > 1
    for update in updates:
        assert update.candidates is not None
        likely = update.candidates.likely
        assert [each.log_prob for each in likely] == sorted((each.log_prob for each in likely), reverse=True)
        assert likely[update.candidates.rank - 1].token == update.token
        assert likely[update.candidates.rank - 1].log_prob == pytest.approx(update.log_prob)
        assert sum(each.draw_probability > 0 for each in likely) == 4 < len(likely) == generator.tokenizer.vocab_size
        assert sum(each.draw_probability for each in likely) == pytest.approx(1)


def test_requests_with_different_penalties_begin_together_in_bfloat16(generator: Generator) -> None:
    generator.model.bfloat16()
    pool = generator.pool()
    requests = [generator.requests("abc", SAMPLERS[number])[0] for number in (0, 2, 4)]
    for request in requests:
        pool.join(request)
    assert drain(pool).keys() == {*requests}


def test_pool_can_be_used_again_after_an_error(generator: Generator) -> None:
    pool = generator.pool(max_rows=1)
    requests = generator.requests("abc", n=2)
    for request in requests:
        pool.join(request)
    with torch.no_grad():
        saved = generator.model.output.weight.clone()
        generator.model.output.weight.fill_(float("nan"))
    with pytest.raises(PenwrightError, match="diverged"):
        pool.step()
    assert pool.clear() == requests
    with torch.no_grad():
        generator.model.output.weight.copy_(saved)
    pool.join(requests[0])
    assert completed(drain(pool)[requests[0]]) == expected(generator.generate("abc")[0])


def test_cancelled_request_is_dropped_although_no_row_is_free(generator: Generator) -> None:
    pool = generator.pool(max_rows=1)
    running, unwanted, waiting = generator.requests("abc", SAMPLERS[1], n=3)
    for request in (running, unwanted, waiting):
        pool.join(request)
    pool.step()
    unwanted.cancelled, seen = True, ref(unwanted)
    del request, unwanted
    pool.step()
    assert seen() is None
    assert not running.is_finished
    assert set(drain(pool)) == {running, waiting}


def test_biases_apply_to_single_tokens(generator: Generator) -> None:
    (free,) = generator.generate("a", SAMPLERS[1])
    (request,) = generator.requests("a", SAMPLERS[1], biases={free.tokens[0]: -100.0})
    pool = generator.pool()
    pool.join(request)
    updates = drain(pool)[request]
    assert updates and all(update.token != free.tokens[0] for update in updates)


def entry(tokens: Sequence[int]) -> tuple[np.ndarray, list[KeysValues]]:
    kept = torch.zeros(1, 1, len(tokens), 4)
    return np.array(tokens), [KeysValues(kept, kept)]


def test_prefixes_drop_the_oldest_and_those_contained_in_others() -> None:
    prefixes = Prefixes(max_bytes=2 * 4 * 4 * 12)
    for tokens in ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3], [5, 6, 7, 8], [9, 9, 9, 9, 9]):
        prefixes.keep(*entry(tokens))
    assert [each.tokens.tolist() for each in prefixes.entries] == [[5, 6, 7, 8], [9, 9, 9, 9, 9]]
    assert n_common(np.array([1, 2, 3]), np.array([1, 2, 4, 5])) == 2


def test_beginning_of_a_text_that_is_longer_than_the_cache_is_kept() -> None:
    prefixes = Prefixes(max_bytes=2 * 4 * 4 * 5)
    for tokens in ([1, 2, 3], [4, 5, 6, 7, 8, 9]):
        prefixes.keep(*entry(tokens))
    assert [each.tokens.tolist() for each in prefixes.entries] == [[4, 5, 6, 7, 8]]
    assert prefixes.entries[0].layers[0].keys.shape == (1, 1, 5, 4)


def test_requests_whose_prompts_cannot_be_read_are_dropped_too(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, requests = generator.pool(3), [*generator.requests("abc", n=2), *generator.requests("hh", n=2)]
    pool.join(requests[0])
    pool.step()
    for request in requests[1:]:
        pool.join(request)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(PromptBatch, "first", lambda *_: _raise(MemoryError()))
        pool.step()
    assert pool.clear() == requests and pool.clear() == [] and not pool.busy


def _raise(error: Exception) -> None:
    raise error
