"""The model server: the FastAPI application with all routes, its socket and its shutdown."""

import asyncio
import gc
import logging
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from penwright import __version__
from penwright.devices import give_back_memory
from penwright.errors import PenwrightError, UsageError
from penwright.run.folder import Run
from penwright.serving import (
    chat,
    classification,
    clusters,
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
from penwright.serving.connections import allowed_connections, protocol
from penwright.serving.errors import add_error_handlers
from penwright.serving.live import LiveModels
from penwright.serving.metrics import Metrics
from penwright.serving.middleware import Middleware
from penwright.serving.model_registry import ModelRegistry
from penwright.serving.model_worker import ModelWorker
from penwright.serving.runs import LIVE, state_of
from penwright.serving.settings import ServingSettings
from penwright.views.export import MODULES, STYLE

if TYPE_CHECKING:
    from penwright.serving.studio import Studio

IDLE_TICKS = 10  # idle time after which memory is returned to the system, in tenths of a second
BACKLOG = 256  # listen backlog: maximum number of connections that wait to be accepted, e.g. until `run` is called
OFTEN, WINDOW = 5, 60.0  # maximum number of messages of one kind to log per WINDOW seconds
ROUTES = (
    metrics,
    models,
    openai,
    chat,
    libretranslate,
    classification,
    clusters,
    writing,
    translation,
    inspect,
    comparison,
    runs,
)
PAGE = Path(__file__).parent / "page"


def create_app(registry: ModelRegistry, settings: ServingSettings, studio: "Studio | None" = None) -> FastAPI:
    """Return the application that serves these models and, if there is a studio, trains new ones."""
    app = FastAPI(title="Penwright", version=__version__, docs_url=None, redoc_url=None)
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


class Server:
    """A model server that binds its address when it is created."""

    def __init__(self, registry: ModelRegistry, settings: ServingSettings, studio: "Studio | None" = None):
        """Bind the address.

        Raises UsageError if other machines can connect to the address and there is no key. Raises PenwrightError if the
        address cannot be bound.
        """
        if not settings.is_local and settings.api_key is None:
            raise UsageError(
                f"anyone who can reach {settings.host} could use the models and read parts of their training text. "
                "Set --api-key, or listen on 127.0.0.1"
            )
        self._socket = _bind(settings.host, settings.port)
        self._settings = settings.model_copy(update={"port": self._socket.getsockname()[1]})
        self._registry, self._studio = registry, studio
        most = allowed_connections(settings.max_connections)
        config = uvicorn.Config(
            create_app(registry, self._settings, studio),
            http=protocol(settings.read_seconds, most),
            ws="none",
            backlog=min(BACKLOG, max(1, most // 2)),  # asyncio may accept a whole backlog before the limit is checked
            log_level="warning",
            lifespan="off",
            server_header=False,
            use_colors=False,  # no colours: their control sequences would be escaped on standard error
            timeout_graceful_shutdown=int(self._settings.drain_seconds) + 1,
        )
        for name in ("uvicorn.error", "asyncio"):
            logger = logging.getLogger(name)
            if not any(isinstance(each, RepeatedMessageFilter) for each in logger.filters):
                logger.addFilter(RepeatedMessageFilter())
        self._server = _Draining(config, registry, self._settings.drain_seconds)

    @property
    def address(self) -> str:
        """The URL to open in a browser."""
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"http://{host}:{self._settings.port}"

    def lines(self) -> Iterator[str]:
        """Yield a human-readable summary: the address, the models and the limits."""
        names = ", ".join(f"{each.name} ({each.kind})" for each in self._registry)
        yield f"{self.address}: {f'the studio in {self._studio.folder}' if self._studio else names}"
        given = self._settings
        yield (
            f"limits per request: {given.max_body_bytes:,} bytes, {given.max_texts} texts of {given.max_characters:,} "
            f"characters, n {given.max_n}, {given.max_new_tokens:,} new tokens, {given.deadline_seconds:g} s; "
            f"per model: {given.max_rows} completions at a time, {given.max_waiting} waiting texts"
        )

    def run(self, *, open_page: bool = False) -> None:
        """Serve until SIGTERM, SIGHUP or Ctrl+C. After the first two, running requests may finish."""
        gc.collect()
        gc.freeze()  # garbage collection must not scan all of PyTorch's objects, which would stall requests
        before = signal.signal(signal.SIGTERM, _exit)  # after its shutdown, uvicorn raises SIGTERM again
        hang_up = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has no SIGHUP
        if signal.getsignal(hang_up) not in (signal.SIG_IGN, _exit):  # nohup ignores it
            signal.signal(hang_up, lambda *_: self.stop())
        try:
            asyncio.run(self.serve(open_page=open_page))
        finally:
            signal.signal(signal.SIGTERM, before)

    async def serve(self, *, open_page: bool = False) -> None:
        """Serve until `stop` is called. In the main thread, SIGTERM or SIGINT also ends serving."""
        if open_page:
            webbrowser.open(self.address)
        tasks = [asyncio.create_task(LiveModels(self._registry, self._settings).watch())]
        if self._studio is not None:
            tasks.append(asyncio.create_task(self._studio.watch()))
        try:
            await self._server.serve([self._socket])
        finally:
            for task in tasks:
                task.cancel()
            self._registry.close()

    def stop(self) -> None:
        """Let running requests finish, then stop serving. Any thread may call this."""
        self._server.should_exit = True


class _Draining(uvicorn.Server):
    """A uvicorn server that gives running requests a few seconds to finish, then ends them with an error."""

    def __init__(self, config: uvicorn.Config, registry: ModelRegistry, seconds: float):
        super().__init__(config)
        self._registry, self._seconds = registry, seconds
        self._n_idle = self._n_seen = 0

    async def on_tick(self, counter: int) -> bool:
        """Return freed memory to the system when the server becomes idle. uvicorn calls this ten times a second."""
        self._n_idle = 0 if self.server_state.tasks else self._n_idle + 1
        if self._n_idle == IDLE_TICKS and self._n_seen != self.server_state.total_requests:
            self._n_seen = self.server_state.total_requests
            await asyncio.to_thread(give_back_memory)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for worker in self._registry:
            worker.stop()
            asyncio.get_running_loop().call_later(self._seconds, worker.abort)
        await super().shutdown(sockets)


def serve(folders: Sequence[str], settings: ServingSettings) -> Server:
    """Load runs, each given as FOLDER or NAME=FOLDER, and return a server for them."""
    return Server(ModelRegistry([_worker(*named_run(text), settings) for text in folders]), settings)


def _worker(folder: Path, name: str | None, settings: ServingSettings) -> ModelWorker:
    """Load a run. While it is training, do not compile its decoding steps: compiling would slow down the training."""
    return ModelWorker.load(folder, name, settings, compiles=state_of(Run(folder)) not in LIVE)


def named_run(text: str) -> tuple[Path, str | None]:
    """Parse FOLDER or NAME=FOLDER. Return the folder, and the name or None. Both may contain `=`.

    If the whole text is an existing folder, there is no name. Otherwise the name ends at the first `=` that is followed
    by an existing folder. If no folder exists, the name ends at the first `=`, unless the name would contain a slash.
    """
    if Path(text).exists():
        return Path(text), None
    places = [place for place, character in enumerate(text) if character == "=" and place]
    splits = [(text[:place], Path(text[place + 1 :])) for place in places]
    for name, folder in splits:
        if folder.exists() and folder != Path():
            return folder, name
    if not splits or "/" in splits[0][0]:
        return Path(text), None
    return splits[0][1], splits[0][0]


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(place[:2], family=family, backlog=BACKLOG)
        # without TCP_NODELAY, responses may end 40 ms late
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise PenwrightError(f"cannot listen on {host}:{port}: {error.strerror}. Choose a different --port") from None


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


class RepeatedMessageFilter(logging.Filter):
    """A log filter that drops frequent messages and reports how many it dropped."""

    def __init__(self, clock: Callable[[], float] = monotonic):
        super().__init__()
        self._clock = clock
        self._since: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        kind, now = str(record.msg)[:200], self._clock()
        if now - self._since.get(kind, -WINDOW) >= WINDOW:
            dropped = self._counts.get(kind, 0) - OFTEN
            self._since[kind], self._counts[kind] = now, 0
            if dropped > 0:
                record.msg = f"{record.msg} ({dropped:,} similar messages were not logged.)"
        self._counts[kind] += 1
        return self._counts[kind] <= OFTEN
