"""The gate that every request passes: it checks who asks and how much, and ends work that nobody waits for."""

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from hmac import compare_digest
from time import perf_counter
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penwright.serving.errors import LIBRETRANSLATE, refusal
from penwright.serving.metrics import Metrics
from penwright.serving.request_bodies import kind_of, problem_of_json, read_fields
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
LINGER_SECONDS, LINGER_BODIES = 2.0, 16  # how much of a refused body is read and dropped, so that its sender hears why


class _Refused(Exception):
    def __init__(self, status: int, message: str):
        self.status, self.message = status, message


class _Gone(Exception):
    """The client has closed the connection."""


class _Incoming:
    """The body of a request, part by part."""

    def __init__(self, receive: Receive):
        self._receive, self.is_whole = receive, False

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield what has not been read yet; raises _Gone where the client leaves before the end."""
        while not self.is_whole:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            self.is_whole = not message.get("more_body", False)
            yield message.get("body", b"")


class Middleware:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, settings: ServingSettings, metrics: Metrics):
        self._app, self._settings, self._metrics = app, settings, metrics
        self._hosts = set(_hosts(settings))
        self._keys = _spellings(settings.api_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        start, answer, incoming = perf_counter(), _Answer(send), _Incoming(receive)
        headers = Headers(scope=scope)
        try:
            self._check_place(headers)
            body = await self._admitted(scope, headers, incoming)
            _check_json(scope, headers, body)
            await _while_wanted(self._app, scope, body, receive, answer)
        except _Gone:
            pass
        except _Refused as refused:
            await self._refuse(refusal(scope["path"], refused.status, refused.message), incoming, answer)
        except Exception:
            if not answer.has_begun:
                message = "the server failed; its log says more"
                await refusal(scope["path"], 500, message)(scope, receive, answer)
            raise
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.count(route, answer.status, perf_counter() - start)

    def _check_place(self, headers: Headers) -> None:
        """Refuse pages of other places, also those that reach this machine under a name of their own."""
        host = headers.get("host", "")
        if self._hosts and host.lower() not in self._hosts:
            raise _Refused(403, "this server is not known by that name: open it at the address that it printed")
        origin = headers.get("origin")
        if origin is not None and _place(origin) != host.lower():
            raise _Refused(403, "pages of other places may not use this server")

    async def _admitted(self, scope: Scope, headers: Headers, incoming: _Incoming) -> bytes:
        """Return the body, which is read only after the key was seen; LibreTranslate's clients send theirs in it."""
        is_admitted = not self._keys or scope["path"] == OPEN
        shown = list(_keys(scope, headers))
        if not is_admitted and (shown or scope["path"] not in LIBRETRANSLATE):
            self._check_key(shown)
            is_admitted = True
        body = await self._body(headers, incoming)
        if not is_admitted:
            self._check_key([await _key_in(headers, body)])
        return body

    def _check_key(self, shown: list[bytes]) -> None:
        if not any(compare_digest(given, own) for key in shown for given in (key, key.strip()) for own in self._keys):
            raise _Refused(401, "this server needs its key: as a bearer token, or as the password of any user")

    async def _body(self, headers: Headers, incoming: _Incoming) -> bytes:
        limit, body = self._settings.max_body_bytes, bytearray()
        too_large = _Refused(413, f"a request may have {limit:,} bytes (max_body_bytes)")
        with suppress(ValueError):
            if int(headers.get("content-length", "0")) > limit:
                raise too_large
        try:
            async with asyncio.timeout(self._settings.read_seconds):
                async for part in incoming.parts():
                    body += part
                    if len(body) > limit:
                        raise too_large
        except TimeoutError:
            seconds = f"{self._settings.read_seconds:g}"
            raise _Refused(408, f"the request did not arrive within {seconds} s (read_seconds)") from None
        return bytes(body)

    async def _refuse(self, response: Response, incoming: _Incoming, answer: "_Answer") -> None:
        """Say why, and drop some of what still comes: closed at once, the connection would lose the answer."""
        if not incoming.is_whole:
            response.headers["Connection"] = "close"
        start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        await answer(start)
        await answer({"type": "http.response.body", "body": bytes(response.body), "more_body": True})
        n_left = LINGER_BODIES * self._settings.max_body_bytes
        with suppress(TimeoutError, _Gone):
            async with asyncio.timeout(LINGER_SECONDS):
                async for part in incoming.parts():
                    n_left -= len(part)
                    if n_left < 0:
                        break
        await answer({"type": "http.response.body", "body": b""})


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
    """Yield what the Host header may be; nothing where a server listens at every address, which takes a key."""
    if settings.host in {"0.0.0.0", "::"}:
        return
    own = f"[{settings.host}]" if ":" in settings.host else settings.host
    for name in {own, *LOCAL} if is_loopback(settings.host) else {own}:
        yield f"{name}:{settings.port}".lower()
        if settings.port == 80:
            yield name.lower()


def _place(origin: str) -> str | None:
    """Return the host and port of an origin; None where it has none."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _spellings(key: str | None) -> list[bytes]:
    """Return the bytes that a client may send for a key: a header has no encoding of its own."""
    if key is None:
        return []
    found = [key.encode("utf-8", "surrogateescape")]
    with suppress(UnicodeEncodeError):
        found.append(key.encode("latin-1"))
    return list(dict.fromkeys(each for whole in found for each in (whole, whole.strip())))


def _keys(scope: Scope, headers: Headers) -> Iterator[bytes]:
    """Yield the keys in the head of a request, as bytes, wherever a client may put one."""
    scheme, _, value = headers.get("authorization", "").encode("latin-1").strip().partition(b" ")
    if scheme.lower() == b"bearer":
        yield value
    if scheme.lower() == b"basic":
        with suppress(binascii.Error, ValueError):
            yield base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    if "x-api-key" in headers:
        yield headers["x-api-key"].encode("latin-1")
    if scope["path"] in LIBRETRANSLATE:
        with suppress(ValueError):
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=100)
            yield from (key.encode("utf-8", "replace") for key in query.get("api_key", [])[:1])


async def _key_in(headers: Headers, body: bytes) -> bytes:
    """Return the field `api_key` of a form or of JSON."""
    try:
        fields = await read_fields(headers.get("content-type", ""), body)
    except (ValueError, RecursionError):
        return b""
    return str(fields.get("api_key", "")).encode("utf-8", "replace")


def _check_json(scope: Scope, headers: Headers, body: bytes) -> None:
    """Refuse JSON that is no text, and have it read as JSON whatever its sender calls it."""
    if not body:
        return
    kind = kind_of(headers.get("content-type", ""), body)
    if kind != "application/json" and scope["path"] in LIBRETRANSLATE:
        return
    problem = problem_of_json(body)
    if problem is not None:
        raise _Refused(400, problem)
    MutableHeaders(scope=scope)["content-type"] = "application/json"
