from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penwright.config import DecodingSettings, Table
from penwright.decoding import Completion, Generator
from penwright.decoding import pool as pool_module
from penwright.decoding import prefixes as prefixes_module
from penwright.decoding.pool import News, Pool, Request
from penwright.models import DecoderOnly
from penwright.tokenizers import Tokenizer

SETTINGS = DecodingSettings(max_new_tokens=20, temperature=1.0)
MANNERS = [
    SETTINGS,
    SETTINGS.model_copy(update={"temperature": 0.0, "max_new_tokens": 7}),
    SETTINGS.model_copy(update={"top_k": 5, "repetition_penalty": 1.3, "seed": 3}),
    SETTINGS.model_copy(update={"min_p": 0.02, "stop": ("a", "bc"), "max_new_tokens": 40}),
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


def write(pool: Pool) -> dict[Request, list[News]]:
    """Everything that is asked for, to its end."""
    written = defaultdict(list)
    while pool.busy:
        for request, news in pool.step():
            written[request].append(news)
    return written


def completed(news: Sequence[News]) -> tuple[str, tuple[int, ...], str | None]:
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
        assert values == pytest.approx(alone.log_probs, abs=1e-9)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plan=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 12), st.integers(0, 30)), max_size=8),
    max_rows=st.integers(1, 4),
)
def test_however_rows_come_and_leave_the_others_are_written_as_alone(
    generator: Generator, plan: list[tuple[int, int, int, int]], max_rows: int
) -> None:
    pool = generator.pool(max_rows)
    requests = [generator.requests(PROMPTS[prompt], MANNERS[manner])[0] for prompt, manner, _, _ in plan]
    written = defaultdict(list)
    for moment in range(250):
        for request, (_, _, comes, stays) in zip(requests, plan, strict=True):
            if comes == moment:
                pool.join(request)
            request.left |= moment == comes + stays and stays % 2 == 0
        for request, news in pool.step():
            written[request].append(news)
    assert not pool.busy
    for request, (prompt, manner, _, stays) in zip(requests, plan, strict=True):
        (alone,) = generator.generate(PROMPTS[prompt], MANNERS[manner])
        text, tokens, finish = completed(written[request]) if written[request] else ("", (), None)
        if finish is None:
            assert stays % 2 == 0
            assert alone.text.startswith(text)
            assert tokens == alone.tokens[: len(tokens)]
        else:
            assert (text, tokens, finish) == expected(alone)
