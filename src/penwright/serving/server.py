"""A server from its beginning to its end: a socket, the routes, signals."""

import asyncio
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from penwright.errors import PenwrightError, UsageError
from penwright.serving.app import create_app
from penwright.serving.model_worker import ModelRegistry, ModelWorker
from penwright.serving.settings import ServingSettings

BACKLOG = 256  # connections that may wait to be taken, also before all is ready


class Server:
    """Models at an address, which is taken as soon as this is made."""

    def __init__(self, shelf: ModelRegistry, settings: ServingSettings):
        """Raises UsageError for an address that others could reach without a key, PenwrightError where it is taken."""
        if not settings.is_local and settings.api_key is None:
            raise UsageError(
                f"whoever reaches {settings.host} could use the models and read what they learned from: "
                "give an --api-key, or listen at 127.0.0.1"
            )
        self._socket = _bind(settings.host, settings.port)
        self._settings = settings.model_copy(update={"port": self._socket.getsockname()[1]})
        self._shelf = shelf
        config = uvicorn.Config(
            create_app(shelf, self._settings),
            log_level="warning",
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=int(self._settings.drain_seconds) + 1,
        )
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for served in self._shelf:
            served.stop()
            asyncio.get_running_loop().call_later(self._seconds, served.cut)
        await super().shutdown(sockets)


def serve(folders: Sequence[str], settings: ServingSettings) -> Server:
    """Load runs, each FOLDER or NAME=FOLDER, for a server."""
    parts = [text.rpartition("=") for text in folders]
    return Server(
        ModelRegistry([ModelWorker.load(Path(folder), name or None, settings) for name, _, folder in parts]), settings
    )


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
