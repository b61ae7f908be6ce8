"""A server from its beginning to its end: a socket, the routes, signals."""

import asyncio
import gc
import logging
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from penwright.devices import give_back_memory
from penwright.errors import PenwrightError, UsageError
from penwright.serving.app import create_app
from penwright.serving.connections import SeldomSaid, affordable, protocol
from penwright.serving.model_worker import ModelRegistry, ModelWorker
from penwright.serving.settings import ServingSettings

IDLE_TICKS = 10  # tenths of a second
BACKLOG = 256  # connections that may wait to be taken, also before all is ready


class Server:
    """Models at an address, which is taken as soon as this is made."""

    def __init__(self, shelf: ModelRegistry, settings: ServingSettings):
        """Take the address.

        Raises UsageError for an address that others could reach without a key, PenwrightError where it is taken.
        """
        if not settings.is_local and settings.api_key is None:
            raise UsageError(
                f"anybody who reaches {settings.host} could use the models and read parts of what they learned from. "
                "Give an --api-key, or listen at 127.0.0.1"
            )
        self._socket = _bind(settings.host, settings.port)
        self._settings = settings.model_copy(update={"port": self._socket.getsockname()[1]})
        self._shelf = shelf
        most = affordable(settings.max_connections)
        config = uvicorn.Config(
            create_app(shelf, self._settings),
            http=protocol(settings.read_seconds, most),
            ws="none",
            backlog=min(BACKLOG, max(1, most // 2)),  # connections that asyncio takes before any of them is looked at
            log_level="warning",
            lifespan="off",
            server_header=False,
            use_colors=False,  # standard error shows escape sequences instead of sending them
            timeout_graceful_shutdown=int(self._settings.drain_seconds) + 1,
        )
        for name in ("uvicorn.error", "asyncio"):
            logger = logging.getLogger(name)
            if not any(isinstance(each, SeldomSaid) for each in logger.filters):
                logger.addFilter(SeldomSaid())
        self._server = _Draining(config, shelf, self._settings.drain_seconds)

    @property
    def address(self) -> str:
        """To open in a browser."""
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"http://{host}:{self._settings.port}"

    def lines(self) -> Iterator[str]:
        """For people: where, what, and how much."""
        yield f"{self.address}: {', '.join(f'{each.name} ({each.kind})' for each in self._shelf)}"
        given = self._settings
        yield (
            f"a request: at most {given.max_body_bytes:,} bytes, {given.max_texts} texts of {given.max_characters:,} "
            f"characters, n {given.max_n}, {given.max_new_tokens:,} new tokens, {given.deadline_seconds:g} s; "
            f"{given.max_rows} texts written at a time, {given.max_waiting} waiting"
        )

    def run(self, *, open_page: bool = False) -> None:
        """Serve until SIGTERM, after which what is under way comes to its end, or until Ctrl+C."""
        gc.collect()
        gc.freeze()  # else collections look through all of torch, a quarter of a second for a list of 100,000 lists
        before = signal.signal(signal.SIGTERM, _ended)  # uvicorn raises it again when it is done
        try:
            asyncio.run(self.serve(open_page=open_page))
        finally:
            signal.signal(signal.SIGTERM, before)

    async def serve(self, *, open_page: bool = False) -> None:
        """Until `stop`, or a signal if this is the main thread."""
        if open_page:
            webbrowser.open(self.address)
        try:
            await self._server.serve([self._socket])
        finally:
            self._shelf.close()

    def stop(self) -> None:
        """Let what is under way come to its end, then serve no more. For any thread."""
        self._server.should_exit = True


class _Draining(uvicorn.Server):
    """Lets what is under way come to its end, for some seconds; then whoever still waits is told."""

    def __init__(self, config: uvicorn.Config, shelf: ModelRegistry, seconds: float):
        super().__init__(config)
        self._shelf, self._seconds = shelf, seconds
        self._n_idle = self._n_seen = 0

    async def on_tick(self, counter: int) -> bool:
        """Give memory back once nothing was asked for a while; uvicorn calls this ten times a second."""
        self._n_idle = 0 if self.server_state.tasks else self._n_idle + 1
        if self._n_idle == IDLE_TICKS and self._n_seen != self.server_state.total_requests:
            self._n_seen = self.server_state.total_requests
            await asyncio.to_thread(give_back_memory)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for served in self._shelf:
            served.stop()
            asyncio.get_running_loop().call_later(self._seconds, served.cut)
        await super().shutdown(sockets)


def serve(folders: Sequence[str], settings: ServingSettings) -> Server:
    """Load runs, each FOLDER or NAME=FOLDER, for a server."""
    return Server(ModelRegistry([ModelWorker.load(*named_run(text), settings) for text in folders]), settings)


def named_run(text: str) -> tuple[Path, str | None]:
    """Return the folder and the name, if any, that FOLDER or NAME=FOLDER gives; both may contain `=`.

    An existing folder is taken as it is, then the first `=` after which one follows. Where none exists, a name has
    no slash.
    """
    if Path(text).exists():
        return Path(text), None
    places = [place for place, character in enumerate(text) if character == "=" and place]
    cuts = [(text[:place], Path(text[place + 1 :])) for place in places]
    for name, folder in cuts:
        if folder.exists() and folder != Path():
            return folder, name
    if not cuts or "/" in cuts[0][0]:
        return Path(text), None
    return cuts[0][1], cuts[0][0]


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(place[:2], family=family, backlog=BACKLOG)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else an answer may wait 40 ms for its end
        return listening
    except OSError as error:
        raise PenwrightError(f"{host}:{port} cannot be listened at: {error.strerror}. Choose another --port") from None


def _ended(number: int, frame: FrameType | None) -> None:
    sys.exit(0)
