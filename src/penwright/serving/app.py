"""The FastAPI application: the routes, the middleware and the page."""

from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from penwright.serving import (
    calibration,
    chat,
    classify_route,
    comparison,
    health,
    inspect,
    libretranslate,
    models,
    openai,
    runs,
    translation,
    writing,
)
from penwright.serving.errors import explain_errors
from penwright.serving.metrics import Metrics
from penwright.serving.middleware import Middleware
from penwright.serving.model_worker import ModelRegistry
from penwright.serving.settings import ServingSettings
from penwright.views.export import MODULES, STYLE

ROUTES = (
    health,
    models,
    openai,
    chat,
    libretranslate,
    classify_route,
    calibration,
    writing,
    translation,
    inspect,
    comparison,
    runs,
)
PAGE = Path(__file__).parent / "page"


def create_app(shelf: ModelRegistry, settings: ServingSettings) -> FastAPI:
    """Return the application that serves these models."""
    app = FastAPI(title="Penwright", version=version("penwright"), docs_url=None, redoc_url=None)
    app.state.shelf, app.state.settings, app.state.metrics = shelf, settings, Metrics(shelf)
    app.add_middleware(Middleware, settings=settings, metrics=app.state.metrics)
    for module in ROUTES:
        app.include_router(module.router)
    explain_errors(app)
    app.add_api_route("/views/style.css", _style, include_in_schema=False)
    app.mount("/views", StaticFiles(directory=MODULES))
    page = StaticFiles(directory=PAGE, html=True)

    async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a file of the page for a path without a route. Raise 404 even if a mount would answer 405."""
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(404)
        await page(scope, receive, send)

    app.router.default = elsewhere
    return app


async def _style() -> FileResponse:
    return FileResponse(STYLE)
