"""The routes of the writing screen: generated tokens with their alternatives, and scores of texts."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from math import exp
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from penwright.decoding.batches import in_view
from penwright.decoding.constraints.constraints import is_constrained
from penwright.decoding.requests import MAX_NEW_TOKENS, Request, RunningCompletion, TokenUpdate
from penwright.errors import PenwrightError, do_nothing
from penwright.inspection.forward_pass import readable
from penwright.inspection.token_scores import TokenScores
from penwright.serving.errors import ERROR_RESPONSES, RequestTooLarge, status_and_message
from penwright.serving.fields import (
    Limits,
    ModelRequest,
    Name,
    Registry,
    Text,
    TokenId,
    as_json,
    check_texts,
    check_tokens,
    decoding_settings,
)
from penwright.serving.model_worker import ModelWorker
from penwright.serving.settings import ServingSettings
from penwright.tokenizers import TextStream, Tokenizer
from penwright.tokenizers.tokenizer import unknown_warnings

router = APIRouter(responses={**ERROR_RESPONSES})
N_LIKELY = 10
MAX_ALTERNATIVES = 50_000  # maximum total number of alternatives over all tokens of a text


class TokenChoice(BaseModel):
    """A candidate for the next token."""

    id: int
    text: str  # text of the token, decoded by itself
    shown: str | None = None  # text that the token adds, if it differs from `text`; "" while a character is incomplete
    probability: float  # the model's probability, without the decoding settings
    chance: float | None = None  # probability with the decoding settings; None if no setting applies


class NextTokenDistribution(BaseModel):
    """The distribution of the next token before it is sampled."""

    likeliest: list[TokenChoice]
    entropy: float  # entropy of the model's distribution, in nats
    n_kept: int  # number of tokens with a nonzero probability after filtering, e.g. by top_k


class WrittenToken(BaseModel):
    """A generated token."""

    id: int
    text: str
    shown: str  # text that the token adds to the output; "" while a character is incomplete
    log_prob: float  # the model's log-probability in nats, without the decoding settings
    rank: int
    entropy: float
    likeliest: list[TokenChoice]
    finish: str | None = None


class ScoredToken(BaseModel):
    """A token of a given text, scored by the model."""

    id: int
    text: str
    start: int  # offset in the text, in characters (Unicode code points)
    end: int
    log_prob: float
    rank: int
    entropy: float
    likeliest: list[TokenChoice]


class Scores(BaseModel):
    """The scores of all tokens of a text."""

    tokens: list[ScoredToken]
    warnings: list[str]  # warnings about unknown characters


class PromptRequest(ModelRequest):
    """A prompt: a text, and the ids of tokens already generated after it, so that they are not tokenized again."""

    model: Name | None = None
    text: Text = ""
    tokens: Annotated[list[TokenId], Field(max_length=100_000, fail_fast=True, default_factory=list)]
    settings: Annotated[
        dict[str, Any], Field(default_factory=dict)
    ]  # changes to the model's decoding settings; null disables a setting


@router.post("/next")
async def next_token(body: PromptRequest, registry: Registry, limits: Limits) -> NextTokenDistribution:
    """Return the next token's probabilities with and without decoding settings. Logits of recent texts are cached."""
    worker = registry.get(body.model, "writer")
    check_texts([body.text], limits)
    request = await _request(worker, body, limits)
    return await worker.run(lambda: _next_distribution(worker, request))


@router.post("/score", response_model=Scores)
async def score(body: PromptRequest, registry: Registry, limits: Limits) -> Response:
    """Return the probability of each token given the tokens before it. Long texts get fewer alternatives.

    A long text is scored in parts. Requests of other clients can run between two parts.
    """
    worker = registry.get(body.model, "writer")
    check_texts([body.text], limits)
    tokenizer = worker.generator.tokenizer
    k = min(N_LIKELY, max(1, MAX_ALTERNATIVES // max(1, len(body.text))))
    scores = await worker.run_in_steps(lambda: worker.inspector.token_scores_in_steps(body.text, k=k))

    def answer() -> Scores:
        tokens = [_scored(tokenizer, scores, place) for place in range(len(scores.tokens))]
        return Scores(tokens=tokens, warnings=unknown_warnings(tokenizer, body.text))

    return await as_json(answer)


@router.post("/write", response_class=StreamingResponse)
async def write(body: PromptRequest, registry: Registry, limits: Limits) -> StreamingResponse:
    """Continue a text. The events are `token` (a WrittenToken), then `done` or `error`."""
    worker = registry.get(body.model, "writer")
    check_texts([body.text], limits)
    updates = worker.write([await _request(worker, body, limits)])
    first = await anext(updates, None)  # an error before the first token is sent as an ordinary error response
    return StreamingResponse(_events(worker, first, updates), media_type="text/event-stream")


async def _request(worker: ModelWorker, body: PromptRequest, limits: ServingSettings) -> Request:
    """Return the request for a completion. Raises RequestTooLarge or UsageError if it cannot be fulfilled."""
    settings = decoding_settings(worker.generator.defaults, body.settings, "settings")
    if settings.max_new_tokens is None:
        settings = settings.model_copy(update={"max_new_tokens": min(MAX_NEW_TOKENS, limits.max_new_tokens)})
    elif settings.max_new_tokens > limits.max_new_tokens:
        raise RequestTooLarge(
            f"max_new_tokens is {settings.max_new_tokens}, but this server allows at most {limits.max_new_tokens}. "
            "Ask for fewer"
        )

    def prepare(check: Callable[[], None]) -> Request:
        tokens = _tokens(worker.generator.tokenizer, body)
        return worker.generator.requests(tokens, settings, n_likely=N_LIKELY, check=check)[0]

    return await (worker.build(prepare) if is_constrained(settings) else asyncio.to_thread(prepare, do_nothing))


async def _events(
    worker: ModelWorker, first: tuple[int, TokenUpdate] | None, rest: AsyncGenerator[tuple[int, TokenUpdate], None]
) -> AsyncIterator[str]:
    start, n, tokenizer = perf_counter(), 0, worker.generator.tokenizer
    try:
        async with aclosing(rest):
            written = first
            while written is not None:
                n += 1
                yield event("token", _written(tokenizer, written[1]).model_dump(exclude_none=True))
                written = await anext(rest, None)
        yield event("done", {"n": n, "seconds": perf_counter() - start})
    except (PenwrightError, TimeoutError) as error:
        yield event("error", {"message": status_and_message(error)[1]})


def event(name: str, data: Mapping[str, Any]) -> str:
    """Return a server-sent event with this content."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _written(tokenizer: Tokenizer, update: TokenUpdate) -> WrittenToken:
    assert update.candidates is not None
    return WrittenToken(
        id=update.token,
        text=readable(tokenizer, update.token),
        shown=update.text,
        log_prob=update.log_prob,
        rank=update.candidates.rank,
        entropy=update.candidates.entropy,
        likeliest=[
            _choice(tokenizer, each.token, exp(each.log_prob), each.draw_probability)
            for each in update.candidates.likely
        ],
        finish=update.finish,
    )


def _scored(tokenizer: Tokenizer, scores: TokenScores, place: int) -> ScoredToken:
    token, others = scores.tokens[place], scores.alternatives
    pairs = zip(others.ids[place].tolist(), others.probabilities[place].tolist(), strict=True)
    return ScoredToken(
        id=token.id,
        text=token.text,
        start=token.start,
        end=token.end,
        log_prob=float(scores.log_probs[place]),
        rank=int(scores.ranks[place]),
        entropy=float(scores.entropies[place]),
        likeliest=[_choice(tokenizer, *pair) for pair in pairs],
    )


def _tokens(tokenizer: Tokenizer, body: PromptRequest) -> list[int]:
    """Return all tokens of the prompt. Raises UsageError for unknown token ids."""
    check_tokens(body.tokens, range(tokenizer.vocab_size))
    return [*tokenizer.encode(body.text), *body.tokens]


def _next_distribution(worker: ModelWorker, request: Request) -> NextTokenDistribution:
    generator, sampling = worker.generator, request.plan.sampling
    tokenizer, context = generator.tokenizer, generator.model.settings.context_length
    seen = in_view(request.prompt_tokens, context)  # the model sees only the tokens that fit in its context
    logits = worker.logits(tuple(seen))
    completion = RunningCompletion(request, tokenizer, logits[None])
    possible = logits[None].clone()
    request.plan.utf8_rules.forbid(possible, np.array([completion.situation]))
    processed = sampling.process(completion.possible(possible), completion.history)[0]
    draw_probabilities = sampling.probabilities(processed)
    probabilities = logits.softmax(-1)
    best = probabilities.argsort(descending=True, stable=True)[:N_LIKELY]
    choices = zip(best.tolist(), probabilities[best].tolist(), draw_probabilities[best].tolist(), strict=True)
    return NextTokenDistribution(
        likeliest=[_choice(tokenizer, *each) for each in choices],
        entropy=float(torch.special.entr(probabilities).sum()),
        n_kept=int((draw_probabilities > 0).sum()),
    )


def _choice(tokenizer: Tokenizer, token: int, probability: float, chance: float | None = None) -> TokenChoice:
    text, shown = readable(tokenizer, token), TextStream(tokenizer).push(token)
    return TokenChoice(
        id=token, text=text, shown=None if shown == text else shown, probability=probability, chance=chance
    )
