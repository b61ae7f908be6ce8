"""All routes together."""

from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from penwright.errors import PenwrightError
from penwright.serving import (
    classify,
    classifying,
    health,
    inspect,
    libretranslate,
    models,
    openai,
    runs,
    translating,
    writing,
)
from penwright.serving.served import Shelf, UnknownModel
from penwright.serving.settings import ServingSettings
from penwright.views.export import MODULES, STYLE

ROUTES = (health, models, openai, libretranslate, classify, classifying, writing, translating, inspect, runs)
PAGE = Path(__file__).parent / "page"


def create_app(shelf: Shelf, settings: ServingSettings) -> FastAPI:
    """The server for these models."""
    app = FastAPI(title="Penwright", version=version("penwright"), docs_url=None, redoc_url=None)
    app.state.shelf, app.state.settings = shelf, settings
    for module in ROUTES:
        app.include_router(module.router)
    app.add_exception_handler(PenwrightError, _refused)
    app.add_api_route("/views/style.css", _style, include_in_schema=False)
    app.mount("/views", StaticFiles(directory=MODULES))
    app.mount("/", StaticFiles(directory=PAGE, html=True))
    return app


async def _style() -> FileResponse:
    return FileResponse(STYLE)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    status = 404 if isinstance(error, UnknownModel) else 400
    return JSONResponse({"error": {"message": str(error), "type": "invalid_request_error"}}, status)
