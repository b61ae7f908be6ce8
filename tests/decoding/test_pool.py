from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penwright.config import DecodingSettings, Table
from penwright.decoding import continuous_batching as pool_module
from penwright.decoding import continuous_batching as prefixes_module
from penwright.decoding.continuous_batching import ContinuousBatch, Prefixes, n_common
from penwright.decoding.requests import Request, TokenUpdate
from penwright.errors import PenwrightError
from penwright.generation.generator import Completion, Generator
from penwright.model.attention import KeysValues
from penwright.model.decoder_only import DecoderOnly
from penwright.tokenizers import Tokenizer

SETTINGS = DecodingSettings(max_new_tokens=12, temperature=1.0)
MANNERS = [
    SETTINGS,
    SETTINGS.model_copy(update={"temperature": 0.0, "max_new_tokens": 7}),
    SETTINGS.model_copy(update={"top_k": 5, "repetition_penalty": 1.3, "seed": 3}),
    SETTINGS.model_copy(update={"min_p": 0.02, "stop": ("a", "bc"), "max_new_tokens": 24}),
    SETTINGS.model_copy(update={"pattern": "[a-e ]{4,9}", "min_new_tokens": 6, "frequency_penalty": 0.5}),
]
PROMPTS = ["", "abc", "ja, a b c d e", "hhhh" * 9, "b"]


@pytest.fixture(autouse=True)
def short_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has three tokens in common shares what was read of them."""
    for module in (pool_module, prefixes_module):
        monkeypatch.setattr(module, "WORTH", 3)


@pytest.fixture
def generator(writer: Callable[..., DecoderOnly], characters: Tokenizer) -> Generator:
    return Generator(writer(characters.vocab_size).double(), characters, SETTINGS)  # without ties by rounding


def write(pool: ContinuousBatch) -> dict[Request, list[TokenUpdate]]:
    """Everything that is asked for, to its end."""
    written = defaultdict(list)
    while pool.busy:
        for request, news in pool.step():
            written[request].append(news)
    return written


def completed(news: Sequence[TokenUpdate]) -> tuple[str, tuple[int, ...], str | None]:
    return "".join(each.text for each in news), tuple(each.token for each in news), news[-1].finish


def expected(completion: Completion) -> tuple[str, tuple[int, ...], str | None]:
    return completion.text, completion.tokens, completion.finish


def test_rows_that_come_and_go_are_written_as_alone(
    writer: Callable[..., DecoderOnly], characters: Tokenizer, variant: Table
) -> None:
    generator = Generator(writer(characters.vocab_size, **variant).double(), characters)
    pool, asked, written = generator.pool(max_rows=3), {}, defaultdict(list)
    for number, manner in enumerate(MANNERS):
        (asked[number],) = generator.requests(PROMPTS[number], manner)
    coming = list(asked.values())
    while pool.busy or coming:
        if coming:
            pool.join(coming.pop())
        for request, news in pool.step():
            written[request].append(news)
    for number, manner in enumerate(MANNERS):
        (alone,) = generator.generate(PROMPTS[number], manner)
        assert completed(written[asked[number]]) == expected(alone)
        values = [news.log_prob for news in written[asked[number]]]
        assert values == pytest.approx(alone.log_probs, abs=1e-6)  # in float32, by other ways


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plan=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 12), st.integers(0, 30)), max_size=6),
    max_rows=st.integers(1, 4),
)
def test_however_rows_come_and_leave_the_others_are_written_as_alone(
    generator: Generator, plan: list[tuple[int, int, int, int]], max_rows: int
) -> None:
    pool = generator.pool(max_rows)
    requests = [generator.requests(PROMPTS[prompt], MANNERS[manner])[0] for prompt, manner, _, _ in plan]
    written = defaultdict(list)
    for moment in range(120):
        for request, (_, _, comes, stays) in zip(requests, plan, strict=True):
            if comes == moment:
                pool.join(request)
            request.left |= moment == comes + stays and stays % 2 == 0
        for request, news in pool.step():
            written[request].append(news)
    assert not pool.busy
    expectations = {
        (prompt, manner): generator.generate(PROMPTS[prompt], MANNERS[manner])[0] for prompt, manner, _, _ in plan
    }
    for request, (prompt, manner, _, stays) in zip(requests, plan, strict=True):
        alone = expectations[prompt, manner]
        text, tokens, finish = completed(written[request]) if written[request] else ("", (), None)
        if finish is None:
            assert stays % 2 == 0
            assert alone.text.startswith(text)
            assert tokens == alone.tokens[: len(tokens)]
        else:
            assert (text, tokens, finish) == expected(alone)


def test_what_was_read_of_a_prompt_is_not_read_again(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    hidden = generator.model.hidden

    def counted(tokens: torch.Tensor, **rest: object) -> torch.Tensor:
        read.append(tuple(tokens.shape))
        return hidden(tokens, **rest)

    monkeypatch.setattr(generator.model, "hidden", counted)
    pool = generator.pool()
    for request in generator.requests("abcdefgh", n=3):
        pool.join(request)
    pool.step()
    assert read == [(1, 9)]  # once for all three, with the start token
    for prompt in ("abcdefij", "abcdef,", "bcdefgh"):
        pool.join(generator.requests(prompt)[0])
    pool.step()
    assert sorted(read[1:]) == [(1, 8), (2, 2), (3, 1)]  # one from its beginning, two after six letters; all others
    write(pool)
    pool.join(generator.requests("abcdefghij")[0])
    read.clear()
    pool.step()
    assert read == [(1, 2)]  # those who wrote it have gone


def test_a_look_tells_what_stood_to_choose_from(generator: Generator) -> None:
    settings = DecodingSettings(temperature=0.7, top_k=4, max_new_tokens=6, seed=2)
    (request,) = generator.requests("abc", settings, n_likely=99)  # all that there are
    pool = generator.pool()
    pool.join(request)
    for news in write(pool)[request]:
        assert news.look is not None
        likely = news.look.likely
        assert [each.log_prob for each in likely] == sorted((each.log_prob for each in likely), reverse=True)
        assert likely[news.look.rank - 1].token == news.token
        assert likely[news.look.rank - 1].log_prob == pytest.approx(news.log_prob)
        assert sum(each.chance > 0 for each in likely) == 4 < len(likely) == generator.tokenizer.vocab_size
        assert sum(each.chance for each in likely) == pytest.approx(1)


def test_an_error_frees_the_pool(generator: Generator) -> None:
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
    assert completed(write(pool)[requests[0]]) == expected(generator.generate("abc")[0])


def test_biases_are_for_single_tokens(generator: Generator) -> None:
    (free,) = generator.generate("a", MANNERS[1])
    (request,) = generator.requests("a", MANNERS[1], biases={free.tokens[0]: -100.0})
    pool = generator.pool()
    pool.join(request)
    assert all(news.token != free.tokens[0] for news in write(pool)[request])


def entry(tokens: Sequence[int]) -> tuple[np.ndarray, list[KeysValues]]:
    kept = torch.zeros(1, 1, len(tokens), 4)
    return np.array(tokens), [KeysValues(kept, kept)]


def test_prefixes_forget_the_oldest_and_what_others_begin_with() -> None:
    prefixes = Prefixes(max_bytes=2 * 4 * 4 * 12)
    for tokens in ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3], [5, 6, 7, 8], [9, 9, 9, 9, 9]):
        prefixes.keep(*entry(tokens))
    assert [each.tokens.tolist() for each in prefixes.kept] == [[5, 6, 7, 8], [9, 9, 9, 9, 9]]
    assert n_common(np.array([1, 2, 3]), np.array([1, 2, 4, 5])) == 2
