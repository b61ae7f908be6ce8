"""The route of OpenAI's chat completions API: a chat template turns a conversation into tokens to complete."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, BaseModel, Field

from penwright.decoding.requests import MAX_NEW_TOKENS
from penwright.errors import UsageError, do_nothing
from penwright.generation.generator import Generator
from penwright.serving.checks import Check
from penwright.serving.completion_fields import (
    MAX_LOGPROBS,
    CompletionChoice,
    CompletionRequest,
    Finish,
    LogProbs,
    SamplingRequest,
    Usage,
)
from penwright.serving.completions import CompletionJob
from penwright.serving.errors import ERROR_RESPONSES, ContextExceeded
from penwright.serving.fields import MAX_INT, Limits, Name, Registry, Text, as_json, check_lengths
from penwright.serving.model_registry import ModelRegistry, UnknownModel
from penwright.serving.model_worker import ModelWorker
from penwright.serving.openai import events, sent
from penwright.serving.settings import ServingSettings
from penwright.tokenizers.chat_template import Message

MOST_MESSAGES = 1000
FEW_MESSAGES = 20  # a conversation of so few messages does not wait until patterns of other requests are compiled
router = APIRouter(prefix="/v1", responses=ERROR_RESPONSES)


class ContentPart(BaseModel):
    """A part of the content of a chat message."""

    type: Literal["text"]  # images and audio are not supported
    text: Text


class ChatMessage(BaseModel):
    """A message of a conversation."""

    role: Annotated[Text, Field(max_length=100)]
    content: Text | Annotated[list[ContentPart], Field(max_length=MOST_MESSAGES)] | None = None

    @property
    def as_message(self) -> Message:
        """The message with its parts joined. `developer`, OpenAI's newer role name, is replaced by `system`."""
        parts = self.content if isinstance(self.content, list) else ()
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in parts)
        return Message({"developer": "system"}.get(self.role, self.role), text)


def _require_text(kind: str) -> str:
    if kind != "text":
        raise ValueError(
            f"'{kind[:40]}' is not supported, because answers are plain text. To constrain a text, send a regular "
            "expression to POST /write (settings.pattern)"
        )
    return kind


class ResponseFormat(BaseModel):
    """The format of an answer, which is always text."""

    type: Annotated[Text, AfterValidator(_require_text)]


class ChatRequest(SamplingRequest):
    """A request for answers to a conversation. Unknown fields, e.g. `user`, are ignored.

    `top_k`, `min_p` and `repetition_penalty` are not part of OpenAI's API.
    """

    model: Name | None = None  # name of a model; None for the first chat model
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = (
        None  # maximum number of new tokens; None for the run's setting
    )
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None  # newer name for max_tokens
    n: Annotated[int, Field(ge=1, le=MAX_INT)] = 1  # number of answers
    logprobs: bool = False  # whether to return the log-probability of each token
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0  # number of alternatives per token
    tools: list[Any] | None = None  # not supported
    response_format: ResponseFormat | None = None  # only {"type": "text"} is supported

    def as_completion(self, tokens: list[int], max_tokens: int) -> CompletionRequest:
        """Return a request to complete these tokens, with the same options."""
        same = self.model_dump(
            include=set(CompletionRequest.model_fields) - {"max_tokens", "logprobs", "stream_options"}
        )
        logprobs = self.top_logprobs if self.logprobs else None
        limit = self.max_completion_tokens or self.max_tokens or max_tokens
        return CompletionRequest(prompt=tokens, max_tokens=limit, logprobs=logprobs, **same)


class TokenLogProb(BaseModel):
    """A token with its log-probability."""

    token: str
    logprob: float | None
    bytes: list[int] | None  # bytes of the token; None if they are only part of a character


class ChatTokenLogProb(TokenLogProb):
    """A token of an answer, with its most likely alternatives."""

    top_logprobs: list[TokenLogProb]


class ChatLogProbs(BaseModel):
    """The log-probabilities of the tokens of an answer."""

    content: list[ChatTokenLogProb]

    @classmethod
    def of(cls, log_probs: LogProbs | None, k: int) -> "ChatLogProbs | None":
        """Convert the log-probabilities of a completion to the form of the API, with at most `k` alternatives each.

        A completion also lists the chosen token, if it is not among the `k` most likely ones.
        """
        if log_probs is None:
            return None
        tops = log_probs.top_logprobs or [None] * len(log_probs.tokens)
        return cls(
            content=[
                ChatTokenLogProb(
                    **_scored(token, value),
                    top_logprobs=[TokenLogProb(**_scored(*each)) for each in islice((top or {}).items(), k)],
                )
                for token, value, top in zip(log_probs.tokens, log_probs.token_logprobs, tops, strict=True)
            ]
        )


def _scored(token: str, log_prob: float | None) -> dict[str, Any]:
    return {"token": token, "logprob": log_prob, "bytes": None if "\\x" in token else list(token.encode())}


class AnswerMessage(BaseModel):
    """An answer, or a chunk of a streamed answer."""

    role: Literal["assistant"] | None = None
    content: str


class ChatChoice(BaseModel):
    """One of the answers to a conversation."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogProbs | None = None
    finish_reason: Finish = None


class ChatDelta(BaseModel):
    """A streamed chunk of one of the answers."""

    index: int
    delta: AnswerMessage
    logprobs: ChatLogProbs | None = None
    finish_reason: Finish = None


class ChatAnswer(BaseModel):
    """The answers to a conversation."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None


class ChatChunk(BaseModel):
    """An event of a stream, with chunks of the answers."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatDelta]
    usage: Usage | None = None


@router.post("/chat/completions", response_model=ChatAnswer)
async def chat_completions(body: ChatRequest, registry: Registry, limits: Limits) -> Response:
    """Return n answers to a conversation. If `stream` is true, send events, with [DONE] as the last."""
    worker = _model(body, registry)
    make, is_quick = partial(_job, body, worker, limits), len(body.messages) <= FEW_MESSAGES
    work = await (asyncio.to_thread(make, do_nothing) if is_quick else worker.build(make))
    await work.prepare()
    pieces = work.stream()
    if body.stream:
        first = await anext(pieces)  # an error before the first event is sent as an ordinary error response
        return StreamingResponse(events(_chunks(work, body, first, pieces)), media_type="text/event-stream")
    async with aclosing(pieces):
        async for _ in pieces:
            pass
    return await as_json(lambda: _answer(work))


def _model(body: ChatRequest, registry: ModelRegistry) -> ModelWorker:
    """Return the requested model or, if none is named, the first chat model."""
    if body.model is not None:
        return registry.get(body.model)
    answering = (each for each in registry if isinstance(each.application, Generator) and each.application.template)
    worker = next(answering, None)
    if worker is None:
        raise UnknownModel("no model on this server is a chat model. To continue a text, use POST /v1/completions")
    return registry.get(worker.name)  # marks the model as in use


def _job(body: ChatRequest, worker: ModelWorker, limits: ServingSettings, check: Check) -> CompletionJob:
    """Convert the messages to tokens, and return a request to complete them."""
    if body.tools:
        raise UsageError("tools are not supported. Leave them out")
    messages = [each.as_message for each in body.messages]
    check_lengths(["".join(each.content for each in messages)], limits)
    generator = worker.generator
    default = min(generator.defaults.max_new_tokens or MAX_NEW_TOKENS, limits.max_new_tokens)
    n_new = body.max_completion_tokens or body.max_tokens or default
    tokens, most = generator.chat_tokens(messages, n_new, check), generator.model.settings.context_length
    if len(tokens) > most:
        raise ContextExceeded(f"the messages have {len(tokens):,} tokens, and the model reads at most {most:,}")
    work = CompletionJob(body.as_completion(tokens, default), worker, limits)
    work.id = f"chat{work.id}"
    return work


def _answer(work: CompletionJob) -> ChatAnswer:
    whole = work.answer([choice.whole() for choice in work.choices], with_usage=True)
    choices = [
        ChatChoice(
            index=each.index,
            message=AnswerMessage(role="assistant", content=each.text.strip(" ")),
            logprobs=ChatLogProbs.of(each.logprobs, work.body.logprobs or 0),
            finish_reason=each.finish_reason,
        )
        for each in whole.choices
    ]
    return ChatAnswer(id=whole.id, created=whole.created, model=whole.model, choices=choices, usage=whole.usage)


async def _chunks(
    work: CompletionJob, body: ChatRequest, first: CompletionChoice, rest: AsyncGenerator[CompletionChoice, None]
) -> AsyncIterator[str]:
    """Yield the events of a stream: the answers in chunks, then the token counts if they were requested."""
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
            scores = ChatLogProbs.of(each.logprobs, work.body.logprobs or 0)
            deltas.append(ChatDelta(index=each.index, delta=delta, logprobs=scores, finish_reason=each.finish_reason))
        return sent(ChatChunk(id=whole.id, created=whole.created, model=whole.model, choices=deltas, usage=whole.usage))

    async with aclosing(rest):
        yield chunk(first)
        async for piece in rest:
            yield chunk(piece)
    if body.stream_options and body.stream_options.include_usage:
        yield chunk(with_usage=True)
