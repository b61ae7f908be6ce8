"""The routes of OpenAI's completions API, for clients that already use it."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Literal

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from penwright.errors import PenwrightError
from penwright.serving.completion_fields import CompletionAnswer, CompletionChoice, CompletionRequest
from penwright.serving.completions import CompletionJob
from penwright.serving.errors import ERROR_RESPONSES, ErrorDetail, ErrorResponse, status_and_message
from penwright.serving.fields import Limits, Registry, as_json
from penwright.serving.model_worker import ModelWorker

router = APIRouter(prefix="/v1", responses=ERROR_RESPONSES)


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
    return ModelList(data=[_card(served) for served in registry])


@router.get("/models/{name}")
async def model(name: str, registry: Registry) -> ModelEntry:
    """Return one served model."""
    return _card(registry.get(name))


@router.post("/completions", response_model=CompletionAnswer)
async def completions(body: CompletionRequest, registry: Registry, limits: Limits) -> Response:
    """Complete one or more prompts n times each. If `stream` is true, send events, with [DONE] as the last."""
    work = CompletionJob(body, registry.get(body.model, "writer"), limits)
    await work.prepare()
    pieces = work.stream()
    if body.stream:
        first = await anext(pieces)  # an error before the first event gets an ordinary error response
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


def _card(served: ModelWorker) -> ModelEntry:
    return ModelEntry(id=served.name, created=served.created)
