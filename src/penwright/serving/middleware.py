"""The gate that every request comes through: who may ask, and how much; and the end of work that nobody waits for."""

import asyncio
import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from hmac import compare_digest
from time import perf_counter
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penwright.serving.errors import LIBRETRANSLATE, refusal
from penwright.serving.metrics import Metrics
from penwright.serving.settings import ServingSettings, is_loopback

LOCAL = ("localhost", "127.0.0.1", "[::1]")
OPEN = "/health"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MUCH = 16  # times the largest body: so much is read of a larger one, so that its sender hears why it is refused


class _Refused(Exception):
    def __init__(self, status: int, message: str):
        self.status, self.message = status, message


class Middleware:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, settings: ServingSettings, metrics: Metrics):
        self._app, self._settings, self._metrics = app, settings, metrics
        self._hosts = set(_hosts(settings))
        self._key = None if settings.api_key is None else settings.api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        start, answer = perf_counter(), _Answer(send)
        headers = Headers(scope=scope)
        try:
            self._check_place(headers)
            body = await self._body(headers, receive)
            self._check_key(scope, headers, body)
            await _while_wanted(self._app, scope, body, receive, answer)
        except _Refused as refused:
            await refusal(scope["path"], refused.status, refused.message)(scope, receive, answer)
        except Exception:
            if not answer.has_begun:
                message = "this server failed: what happened stands in its log"
                await refusal(scope["path"], 500, message)(scope, receive, answer)
            raise
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.count(route, answer.status, perf_counter() - start)

    def _check_place(self, headers: Headers) -> None:
        """A page of elsewhere must not reach this server, be it by a name of its own for this machine."""
        host = headers.get("host", "")
        if self._hosts and host.lower() not in self._hosts:
            raise _Refused(403, "this server is not known by that name: open it at the address that it printed")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise _Refused(403, "pages of other places may not ask this server")

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        limit, body, n_read = self._settings.max_body_bytes, bytearray(), 0
        with suppress(ValueError):
            n_read = limit * MUCH * (int(headers.get("content-length", "0")) > limit * MUCH)
        while n_read < limit * MUCH:
            message = await receive()
            part = message.get("body", b"")
            n_read += len(part)
            if n_read <= limit:
                body += part
            if not message.get("more_body", False):
                break
        if n_read > limit:
            raise _Refused(413, f"a request may have {limit:,} bytes (max_body_bytes)")
        return bytes(body)

    def _check_key(self, scope: Scope, headers: Headers, body: bytes) -> None:
        if self._key is None or scope["path"] == OPEN:
            return
        if not any(compare_digest(key, self._key) for key in _keys(scope, headers, body)):
            raise _Refused(401, "this server wants its key: as a bearer token, or as the password of any user")


class _Answer:
    """Sends an answer on, with the usual headers."""

    def __init__(self, send: Send):
        self._send, self.status = send, 499  # 499: the client left before there was one
        self.has_begun = self.is_whole = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.has_begun = message["status"], True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        elif message["type"] == "http.response.body":
            self.is_whole = not message.get("more_body", False)
        await self._send(message)


async def _while_wanted(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, answer: _Answer) -> None:
    """Run the app for as long as the client is there."""
    gone = asyncio.ensure_future(_disconnected(receive))
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await asyncio.shield(gone)

    work = asyncio.ensure_future(_run(app, scope, replay, answer))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not answer.is_whole:
            work.cancel()
        with suppress(asyncio.CancelledError):
            await work
    finally:
        work.cancel()
        gone.cancel()


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Callable[[Message], Awaitable[None]]) -> None:
    await app(scope, receive, send)


async def _disconnected(receive: Receive) -> Message:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return message


def _hosts(settings: ServingSettings) -> Iterator[str]:
    """What the Host header may be; nothing where a server listens at every address, which takes a key."""
    if settings.host in {"0.0.0.0", "::"}:
        return
    own = f"[{settings.host}]" if ":" in settings.host else settings.host
    for name in {own, *LOCAL} if is_loopback(settings.host) else {own}:
        yield f"{name}:{settings.port}".lower()
        if settings.port == 80:
            yield name.lower()


def _keys(scope: Scope, headers: Headers, body: bytes) -> Iterator[bytes]:
    """The keys that a request shows, wherever a client of ours may put one."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield value.strip().encode()
    if scheme.lower() == "basic":
        with suppress(binascii.Error, ValueError):
            yield base64.b64decode(value, validate=True).partition(b":")[2]
    yield headers.get("x-api-key", "").encode()
    if scope["path"] in LIBRETRANSLATE:
        yield str(_api_key(headers.get("content-type", ""), body)).encode("utf-8", "replace")


def _api_key(content_type: str, body: bytes) -> Any:
    """The field of this name, of a form or of JSON."""
    try:
        if "json" in content_type:
            return json.loads(body).get("api_key", "")
        return parse_qs(body.decode()).get("api_key", [""])[0]
    except (ValueError, AttributeError, RecursionError):
        return ""
