"""What the page needs to write: tokens as they come, each with what else might have come, and why."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from functools import lru_cache
from math import exp
from time import perf_counter
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from jaxtyping import Float
from pydantic import BaseModel, Field
from torch import Tensor

from penwright.config import DecodingSettings
from penwright.decoding.batches import in_view
from penwright.decoding.completion_draft import MAX_NEW_TOKENS, manner_of
from penwright.decoding.constraints.constraints import is_constrained
from penwright.decoding.constraints.expressions import never_end
from penwright.decoding.requests import News, Request
from penwright.decoding.sampling.penalties import History
from penwright.decoding.unknown_tokens import unknown_warnings
from penwright.errors import PenwrightError, UsageError
from penwright.inspection.token_scores import TokenScores
from penwright.inspection.tokens import readable
from penwright.serving.decoding_fields import decoding_settings
from penwright.serving.errors import REFUSALS, TooMuch, told
from penwright.serving.fields import ModelRequest, Name, Text, TheSettings, TheShelf, TokenId, as_json, check_texts
from penwright.serving.model_worker import ModelWorker
from penwright.tokenizers import TextStream, Tokenizer

router = APIRouter(responses={**REFUSALS})
N_LIKELY = 10
MOST_LIKELY = 50_000  # alternatives of all tokens of a text
Tokens = tuple[int, ...]


class TokenChoice(BaseModel):
    """A token that might come."""

    id: int
    text: str  # as it reads by itself
    shown: str | None = None  # what it adds to a text, where that is something else: "" for a part of a character
    probability: float  # under the model itself
    chance: float | None = None  # of being drawn under the settings; None where there were none


class Foresight(BaseModel):
    """The next token, before it is drawn."""

    likeliest: list[TokenChoice]
    entropy: float  # of the model's distribution, in nats
    n_kept: int  # how many tokens can be drawn


class WrittenToken(BaseModel):
    """A token as it was drawn."""

    id: int
    text: str
    shown: str  # the text that has become complete with it
    log_prob: float  # under the model itself, in nats
    rank: int
    entropy: float
    likeliest: list[TokenChoice]
    finish: str | None = None


class ScoredToken(BaseModel):
    """A token of a text, as the model saw it come."""

    id: int
    text: str
    start: int  # in characters (Unicode code points) of the text
    end: int
    log_prob: float
    rank: int
    entropy: float
    likeliest: list[TokenChoice]


class Scores(BaseModel):
    """All tokens of a text."""

    tokens: list[ScoredToken]
    warnings: list[str]  # of what the model does not know


class PromptRequest(ModelRequest):
    """A text, and the tokens after it: what was written before is continued token by token."""

    model: Name | None = None
    text: Text = ""
    tokens: Annotated[list[TokenId], Field(max_length=100_000, fail_fast=True, default_factory=list)]
    settings: Annotated[
        dict[str, Any], Field(default_factory=dict)
    ]  # what differs from the model's own; a null takes a rule away


@router.post("/next")
async def next_token(asked: PromptRequest, shelf: TheShelf, limits: TheSettings) -> Foresight:
    """Return what may come next, before and after the settings. For a text that was just asked about, no model runs."""
    served = shelf.get(asked.model, "writer")
    check_texts([asked.text], limits)
    settings = decoding_settings(served.generator.defaults, asked.settings, "settings")
    tokens = await asyncio.to_thread(_tokens, served, asked)
    return await served.run(lambda: _foresight(served, tokens, settings))


@router.post("/score", response_model=Scores)
async def score(asked: PromptRequest, shelf: TheShelf, limits: TheSettings) -> Response:
    """Return how likely each token of a text is, given those before it. Of a long text, fewer alternatives are told."""
    served = shelf.get(asked.model, "writer")
    check_texts([asked.text], limits)
    tokenizer = served.generator.tokenizer
    k = min(N_LIKELY, max(1, MOST_LIKELY // max(1, len(asked.text))))
    found = await served.run(lambda: served.inspector.token_scores(asked.text, k=k))

    def answer() -> Scores:
        tokens = [_scored(tokenizer, found, place) for place in range(len(found.tokens))]
        return Scores(tokens=tokens, warnings=unknown_warnings(tokenizer, asked.text))

    return await as_json(answer)


@router.post("/write", response_class=StreamingResponse)
async def write(asked: PromptRequest, shelf: TheShelf, limits: TheSettings) -> StreamingResponse:
    """Continue a text: events `token` (a WrittenToken), then `done` or `error`."""
    served = shelf.get(asked.model, "writer")
    check_texts([asked.text], limits)
    settings = decoding_settings(served.generator.defaults, asked.settings, "settings")
    if settings.max_new_tokens is None:
        settings = settings.model_copy(update={"max_new_tokens": min(MAX_NEW_TOKENS, limits.max_new_tokens)})
    elif settings.max_new_tokens > limits.max_new_tokens:
        raise TooMuch(f"{settings.max_new_tokens} new tokens: this server writes {limits.max_new_tokens} at a time")

    def prepare(check: Callable[[], None]) -> list[Request]:
        _, *tokens = _tokens(served, asked)
        return served.generator.requests(tokens, settings, n_likely=N_LIKELY, check=check)

    is_quick = not is_constrained(settings)
    news = served.write(await (asyncio.to_thread(prepare, never_end) if is_quick else served.build(prepare)))
    first = await anext(news, None)  # what cannot begin is refused as anything else is
    return StreamingResponse(_events(served, first, news), media_type="text/event-stream")


async def _events(
    served: ModelWorker, first: tuple[int, News] | None, rest: AsyncGenerator[tuple[int, News], None]
) -> AsyncIterator[str]:
    start, n, tokenizer = perf_counter(), 0, served.generator.tokenizer
    try:
        async with aclosing(rest):
            found = first
            while found is not None:
                n += 1
                yield _event("token", _written(tokenizer, found[1]).model_dump(exclude_none=True))
                found = await anext(rest, None)
        yield _event("done", {"n": n, "seconds": perf_counter() - start})
    except (PenwrightError, TimeoutError) as error:
        yield _event("error", {"message": told(error)[1]})


def _event(name: str, data: Mapping[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _written(tokenizer: Tokenizer, news: News) -> WrittenToken:
    assert news.look is not None
    return WrittenToken(
        id=news.token,
        text=readable(tokenizer, news.token),
        shown=news.text,
        log_prob=news.log_prob,
        rank=news.look.rank,
        entropy=news.look.entropy,
        likeliest=[_choice(tokenizer, each.token, exp(each.log_prob), each.chance) for each in news.look.likely],
        finish=news.finish,
    )


def _scored(tokenizer: Tokenizer, found: TokenScores, place: int) -> ScoredToken:
    token, others = found.tokens[place], found.alternatives
    pairs = zip(others.ids[place].tolist(), others.probabilities[place].tolist(), strict=True)
    return ScoredToken(
        id=token.id,
        text=token.text,
        start=token.start,
        end=token.end,
        log_prob=float(found.log_probs[place]),
        rank=int(found.ranks[place]),
        entropy=float(found.entropies[place]),
        likeliest=[_choice(tokenizer, *pair) for pair in pairs],
    )


def _tokens(served: ModelWorker, asked: PromptRequest) -> Tokens:
    """Return the tokens with the start token; raises UsageError for those that the model does not have."""
    tokenizer = served.generator.tokenizer
    strange = next((token for token in asked.tokens if token >= tokenizer.vocab_size), None)
    if strange is not None:
        raise UsageError(f"there is no token {strange}: tokens are 0 to {tokenizer.vocab_size - 1}")
    return (tokenizer.start_id, *tokenizer.encode(asked.text), *asked.tokens)


@lru_cache(maxsize=32)
def _logits(served: ModelWorker, tokens: Tokens) -> Float[Tensor, " vocab_size"]:
    """Return the scores of the token after these; kept, so that settings can be tried out."""
    return served.generator.next_logits(tokens).double()


def _foresight(served: ModelWorker, tokens: Tokens, settings: DecodingSettings) -> Foresight:
    tokenizer, context = served.generator.tokenizer, served.generator.model.settings.context_length
    logits = _logits(served, tuple(in_view(tokens, context)))  # the model reads no more, so no more is kept
    sampling = manner_of(tokenizer, settings, []).sampling
    reshaped = sampling.reshape(logits[None], History([tokens], logits[None]) if sampling.looks_back else None)[0]
    chances = (
        torch.zeros_like(reshaped).index_fill(0, reshaped.argmax(), 1.0) if sampling.greedy else reshaped.softmax(-1)
    )
    probabilities = logits.softmax(-1)
    best = probabilities.argsort(descending=True, stable=True)[:N_LIKELY]
    choices = zip(best.tolist(), probabilities[best].tolist(), chances[best].tolist(), strict=True)
    return Foresight(
        likeliest=[_choice(tokenizer, *each) for each in choices],
        entropy=float(torch.special.entr(probabilities).sum()),
        n_kept=int((chances > 0).sum()),
    )


def _choice(tokenizer: Tokenizer, token: int, probability: float, chance: float | None = None) -> TokenChoice:
    text, shown = readable(tokenizer, token), TextStream(tokenizer).push(token)
    return TokenChoice(
        id=token, text=text, shown=None if shown == text else shown, probability=probability, chance=chance
    )
