"""The routes for health checks and metrics."""

from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from penwright.serving.fields import Registry
from penwright.serving.model_worker import Stopping

router = APIRouter()


class Health(BaseModel):
    """The status of a server that is ready."""

    status: Literal["ok"] = "ok"


@router.get("/health", responses={503: {"description": "The server is shutting down"}})
async def health(shelf: Registry) -> Health:
    """Return `ok`, or 503 while the server shuts down. This route needs no key."""
    if shelf.is_stopping:
        raise Stopping("the server is shutting down")
    return Health()


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Return counts of requests, tokens and texts, and the queue lengths, in Prometheus' text format."""
    return Response(request.app.state.metrics.page(), media_type=CONTENT_TYPE_LATEST)
