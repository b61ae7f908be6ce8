"""The FastAPI application: the routes, the middleware and the page."""

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from penwright.serving import (
    chat,
    classification,
    comparison,
    inspect,
    libretranslate,
    metrics,
    models,
    openai,
    runs,
    translation,
    writing,
)
from penwright.serving.errors import add_error_handlers
from penwright.serving.metrics import Metrics
from penwright.serving.middleware import Middleware
from penwright.serving.model_registry import ModelRegistry
from penwright.serving.settings import ServingSettings
from penwright.views.export import MODULES, STYLE

if TYPE_CHECKING:
    from penwright.serving.studio import Studio

ROUTES = (
    metrics,
    models,
    openai,
    chat,
    libretranslate,
    classification,
    writing,
    translation,
    inspect,
    comparison,
    runs,
)
PAGE = Path(__file__).parent / "page"


def create_app(registry: ModelRegistry, settings: ServingSettings, studio: "Studio | None" = None) -> FastAPI:
    """Return the application that serves these models and, if there is a studio, trains new ones."""
    app = FastAPI(title="Penwright", version=version("penwright"), docs_url=None, redoc_url=None)
    app.state.registry, app.state.settings, app.state.metrics = registry, settings, Metrics(registry)
    app.add_middleware(Middleware, settings=settings, metrics=app.state.metrics)
    for module in ROUTES:
        app.include_router(module.router)
    app.state.studio = studio
    if studio is not None:
        app.include_router(studio.router)
    add_error_handlers(app)
    app.add_api_route("/views/style.css", _style, include_in_schema=False)
    app.mount("/views", _Files(directory=MODULES))
    app.router.default = _Files(directory=PAGE, html=True)  # serves the page's files at all other paths
    return app


class _Files(StaticFiles):
    """A static file server. Unlike Starlette's, it answers methods other than GET and HEAD with 404, not 405."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with a file."""
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(404)
        await super().__call__(scope, receive, send)


async def _style() -> FileResponse:
    return FileResponse(STYLE)
