"""The routes of OpenAI's completions and embeddings APIs, for clients that already use them."""

from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import aclosing
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from penwright.errors import PenwrightError, UsageError
from penwright.serving.completion_fields import CompletionAnswer, CompletionChoice, CompletionRequest
from penwright.serving.completions import CompletionJob
from penwright.serving.errors import ERROR_RESPONSES, ErrorDetail, ErrorResponse, status_and_message
from penwright.serving.fields import MAX_ENTRIES, Limits, Name, Registry, Text, as_json, check_texts
from penwright.serving.model_worker import ModelWorker

router = APIRouter(prefix="/v1", responses=ERROR_RESPONSES)
STEP_CHARACTERS = 20_000  # approximate number of characters to embed before other requests get a turn


class ModelEntry(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "penwright"


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


@router.get("/models")
async def models(registry: Registry) -> ModelList:
    """List the served models. The default model comes first."""
    return ModelList(data=[_card(worker) for worker in registry])


@router.get("/models/{name:path}")
async def model(name: str, registry: Registry) -> ModelEntry:
    """Return one served model."""
    return _card(registry.get(name))


@router.post("/completions", response_model=CompletionAnswer)
async def completions(body: CompletionRequest, registry: Registry, limits: Limits) -> Response:
    """Return n completions of each prompt. If `stream` is true, send events, with [DONE] as the last."""
    work = CompletionJob(body, registry.get(body.model, "writer"), limits)
    await work.prepare()
    pieces = work.stream()
    if body.stream:
        first = await anext(pieces)  # an error before the first event is sent as an ordinary error response
        return StreamingResponse(events(_pieces(work, first, pieces)), media_type="text/event-stream")
    async with aclosing(pieces):
        async for _ in pieces:
            pass
    return await as_json(lambda: work.answer([choice.whole() for choice in work.choices], with_usage=True))


async def _pieces(
    work: CompletionJob, first: CompletionChoice, rest: AsyncGenerator[CompletionChoice, None]
) -> AsyncIterator[str]:
    async with aclosing(rest):
        yield sent(work.answer([first], with_usage=False))
        async for choice in rest:
            yield sent(work.answer([choice], with_usage=False))
    if work.body.stream_options and work.body.stream_options.include_usage:
        yield sent(work.answer([], with_usage=True))


async def events(stream: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield the events of a stream, then [DONE]. An error becomes the last event."""
    try:
        async for event in stream:
            yield event
        yield "data: [DONE]\n\n"
    except (PenwrightError, TimeoutError) as error:
        status, message = status_and_message(error)
        yield sent(ErrorResponse(error=ErrorDetail(message=message, type="server_error", code=str(status))))


def sent(data: BaseModel) -> str:
    """Return an event with this content."""
    return f"data: {data.model_dump_json()}\n\n"


def _card(worker: ModelWorker) -> ModelEntry:
    return ModelEntry(id=worker.name, created=worker.created)


class EmbeddingRequest(BaseModel):
    """A request for the vectors of one or more texts. Unknown fields, e.g. `user`, are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    input: (
        Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_ENTRIES)]
    )  # texts to embed; token ids are not supported
    model: Name | None = None  # name of a model; None for the first one that is not a translator
    encoding_format: Literal["float", "base64"] = "float"  # "base64" encodes little-endian float32 values
    dimensions: int | None = None  # must equal the model's width, if present


class EmbeddingEntry(BaseModel):
    """The unit vector of a text."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """The number of input tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(BaseModel):
    """The vectors, in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[EmbeddingEntry]
    model: str
    usage: EmbeddingUsage


@router.post("/embeddings", response_model=EmbeddingAnswer)
async def embeddings(body: EmbeddingRequest, registry: Registry, limits: Limits) -> Response:
    """Return a vector of length 1 for each text. The dot product of two vectors is their cosine similarity."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    check_texts(texts, limits)
    worker = registry.embedder(body.model)
    width = worker.application.model.settings.d_model
    if body.dimensions not in (None, width):
        raise UsageError(
            f"dimensions is {body.dimensions}, but the vectors of {worker.name} have {width}. Omit the field"
        )
    vectors, n_tokens = await worker.run_in_steps(lambda: _embed(worker, texts))

    def answer() -> EmbeddingAnswer:
        rows = [
            b64encode(row.astype("<f4").tobytes()).decode() if body.encoding_format == "base64" else row.tolist()
            for row in vectors
        ]
        data = [EmbeddingEntry(index=index, embedding=row) for index, row in enumerate(rows)]
        usage = EmbeddingUsage(prompt_tokens=n_tokens, total_tokens=n_tokens)
        return EmbeddingAnswer(data=data, model=worker.name, usage=usage)

    return await as_json(answer)


def _embed(worker: ModelWorker, texts: Sequence[str]) -> Generator[None, None, tuple[NDArray[np.float32], int]]:
    """Embed the texts, and count their tokens. Yield after each batch of texts."""
    embedder, found, n_tokens, size = worker.application, [], 0, 0
    assert embedder.kind != "translator"
    part: list[str] = []
    for number, text in enumerate(texts, 1):
        part.append(text)
        size += len(text)
        if size >= STEP_CHARACTERS or number == len(texts):
            n_tokens += sum(len(embedder.tokenizer.encode(each)) for each in part)
            found.append(embedder.embed(part).numpy())
            part, size = [], 0
            yield
    return np.concatenate(found), n_tokens
