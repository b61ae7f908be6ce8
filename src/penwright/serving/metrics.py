"""Routes for the health and the metrics of a server, and the registry of metrics for Prometheus."""

from collections.abc import Iterable, Iterator
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel

from penwright.serving.fields import Registry
from penwright.serving.model_registry import ModelRegistry
from penwright.serving.model_worker import ModelWorker, Stopping

router = APIRouter()


class Health(BaseModel):
    """The status of a server that is ready."""

    status: Literal["ok"] = "ok"


@router.get("/health", responses={503: {"description": "The server is shutting down"}})
async def health(registry: Registry) -> Health:
    """Return `ok`, or 503 while the server shuts down. This route needs no key."""
    if registry.is_stopping:
        raise Stopping("the server is shutting down")
    return Health()


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Return the counts of requests, tokens and texts, and the queue lengths, in Prometheus' text format."""
    return Response(request.app.state.metrics.page(), media_type=CONTENT_TYPE_LATEST)


class Metrics:
    """A registry of metrics that counts requests and reads all other values from the models."""

    def __init__(self, registry: ModelRegistry):
        self._collected = CollectorRegistry()
        self._collected.register(_Models(registry))
        labels, collected = ["route", "status"], self._collected
        self._requests = Counter("penwright_requests", "Answered requests", labels, registry=collected)
        self._seconds = Histogram("penwright_request_seconds", "Duration of requests", ["route"], registry=collected)

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a finished request. Status 499 means that the client disconnected before the response."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def page(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._collected)


class _Models(Collector):
    def __init__(self, registry: ModelRegistry):
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        inside = GaugeMetricFamily("penwright_texts_inside", "Texts queued or in progress", labels=["model"])
        written = GaugeMetricFamily("penwright_rows", "Completions in progress", labels=["model"])
        tokens = CounterMetricFamily("penwright_tokens_written", "Tokens generated for completions", labels=["model"])
        texts = CounterMetricFamily("penwright_texts", "Texts translated or classified", labels=["model"])
        left = CounterMetricFamily("penwright_texts_given_up", "Texts whose client has disconnected", labels=["model"])
        families: tuple[GaugeMetricFamily | CounterMetricFamily, ...] = (written, tokens, texts, left)
        for worker in self._registry:
            inside.add_metric([worker.name], worker.n_inside)
            for family, value in zip(families, _counts(worker), strict=True):
                family.add_metric([worker.name], value)
        return [inside, *families]


def _counts(worker: ModelWorker) -> Iterator[int]:
    if worker.kind == "writer":
        completion_worker = worker.completion_worker
        yield from (completion_worker.batch.n_rows, completion_worker.n_tokens, 0, completion_worker.n_abandoned)
    else:
        yield from (0, 0, worker.batcher.n_texts, worker.batcher.n_abandoned)
