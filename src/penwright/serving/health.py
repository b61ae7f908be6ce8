"""Whether the server is ready, and what it has done."""

from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from penwright.serving.fields import TheShelf
from penwright.serving.model_worker import Stopping

router = APIRouter()


class Health(BaseModel):
    """That all is well."""

    status: Literal["ok"] = "ok"


@router.get("/health", responses={503: {"description": "The server is about to end"}})
async def health(shelf: TheShelf) -> Health:
    """Open to all, also where a key is asked for; 503 once the server is about to end."""
    if shelf.is_stopping:
        raise Stopping("the server is about to end")
    return Health()


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Requests, tokens, texts and what waits, in Prometheus' text format."""
    return Response(request.app.state.metrics.page(), media_type=CONTENT_TYPE_LATEST)
