"""The route of OpenAI's chat completions API: a chat template turns a conversation into tokens to complete."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from penwright.decoding.requests import MAX_NEW_TOKENS
from penwright.errors import UsageError
from penwright.generation.generator import Generator
from penwright.serving.chat_fields import (
    AnswerMessage,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatDelta,
    ChatLogProbs,
    ChatRequest,
)
from penwright.serving.completion_fields import CompletionChoice
from penwright.serving.completions import CompletionJob
from penwright.serving.errors import ERROR_RESPONSES
from penwright.serving.fields import Limits, Registry, as_json, check_lengths
from penwright.serving.model_registry import ModelRegistry, UnknownModel
from penwright.serving.model_worker import ModelWorker
from penwright.serving.openai import events, sent
from penwright.serving.settings import ServingSettings

router = APIRouter(prefix="/v1", responses=ERROR_RESPONSES)


@router.post("/chat/completions", response_model=ChatAnswer)
async def chat_completions(body: ChatRequest, registry: Registry, limits: Limits) -> Response:
    """Answer a conversation n times. If `stream` is true, send events, with [DONE] as the last."""
    work = await asyncio.to_thread(_job, body, _model(body, registry), limits)
    await work.prepare()
    pieces = work.stream()
    if body.stream:
        first = await anext(pieces)  # an error before the first event gets an ordinary error response
        return StreamingResponse(events(_chunks(work, body, first, pieces)), media_type="text/event-stream")
    async with aclosing(pieces):
        async for _ in pieces:
            pass
    return await as_json(lambda: _answer(work))


def _model(body: ChatRequest, registry: ModelRegistry) -> ModelWorker:
    """Return the requested model or, if none is named, the first model that was trained to answer."""
    if body.model is not None:
        return registry.get(body.model)
    answering = (each for each in registry if isinstance(each.application, Generator) and each.application.template)
    found = next(answering, None)
    if found is None:
        raise UnknownModel(
            "no model on this server was trained to answer. To continue a text, use POST /v1/completions"
        )
    return found


def _job(body: ChatRequest, served: ModelWorker, limits: ServingSettings) -> CompletionJob:
    """Convert the messages to tokens, and return a request to complete them."""
    if body.tools:
        raise UsageError("tools are not supported. Leave them out")
    messages = [each.as_message for each in body.messages]
    check_lengths(["".join(each.content for each in messages)], limits)
    generator = served.generator
    default = min(generator.defaults.max_new_tokens or MAX_NEW_TOKENS, limits.max_new_tokens)
    n_new = body.max_completion_tokens or body.max_tokens or default
    work = CompletionJob(body.as_completion(generator.chat_tokens(messages, n_new), default), served, limits)
    work.id = f"chat{work.id}"
    return work


def _answer(work: CompletionJob) -> ChatAnswer:
    whole = work.answer([choice.whole() for choice in work.choices], with_usage=True)
    choices = [
        ChatChoice(
            index=each.index,
            message=AnswerMessage(role="assistant", content=each.text.strip(" ")),
            logprobs=ChatLogProbs.of(each.logprobs),
            finish_reason=each.finish_reason,
        )
        for each in whole.choices
    ]
    return ChatAnswer(id=whole.id, created=whole.created, model=whole.model, choices=choices, usage=whole.usage)


async def _chunks(
    work: CompletionJob, body: ChatRequest, first: CompletionChoice, rest: AsyncGenerator[CompletionChoice, None]
) -> AsyncIterator[str]:
    """Yield the events of a stream: the answers in pieces, then the token counts if they were requested."""
    begun, has_text = set[int](), set[int]()

    def chunk(*pieces: CompletionChoice, with_usage: bool = False) -> str:
        whole = work.answer(pieces, with_usage=with_usage)
        deltas = []
        for each in pieces:
            role = None if each.index in begun else "assistant"
            begun.add(each.index)
            content = each.text if each.index in has_text else each.text.lstrip(" ")  # strip leading spaces
            if content:
                has_text.add(each.index)
            delta = AnswerMessage.model_validate({"role": role, "content": content})
            scores = ChatLogProbs.of(each.logprobs)
            deltas.append(ChatDelta(index=each.index, delta=delta, logprobs=scores, finish_reason=each.finish_reason))
        return sent(ChatChunk(id=whole.id, created=whole.created, model=whole.model, choices=deltas, usage=whole.usage))

    async with aclosing(rest):
        yield chunk(first)
        async for piece in rest:
            yield chunk(piece)
    if body.stream_options and body.stream_options.include_usage:
        yield chunk(with_usage=True)
