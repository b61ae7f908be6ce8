"""The middleware around all routes: it checks the origin, the key and the size of each request.

It also cancels the work of a request when its client disconnects.
"""

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

from penwright.serving.errors import LIBRETRANSLATE, error_response
from penwright.serving.fields import kind_of, problem_of_json, read_fields
from penwright.serving.metrics import Metrics
from penwright.serving.model_registry import holding_models
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
# After a rejection, the rest of the body is read and discarded: for at most LINGER_SECONDS, and at most LINGER_BODIES
# times max_body_bytes.
LINGER_SECONDS, LINGER_BODIES = 2.0, 16


class _Rejected(Exception):
    """The request fails a check of the middleware."""

    def __init__(self, status: int, message: str):
        self.status, self.message = status, message


class _Disconnected(Exception):
    """The client closed the connection."""


class _Body:
    """The body of a request, which is read in parts."""

    def __init__(self, receive: Receive):
        self._receive, self.is_whole = receive, False

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the rest of the body. Raises _Disconnected if the client disconnects before the end."""
        while not self.is_whole:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _Disconnected
            self.is_whole = not message.get("more_body", False)
            yield message.get("body", b"")


class Middleware:
    """An ASGI middleware that checks requests before the application sees them."""

    def __init__(self, app: ASGIApp, settings: ServingSettings, metrics: Metrics):
        self._app, self._settings, self._metrics = app, settings, metrics
        self._hosts = set(_hosts(settings))
        self._keys = _encodings(settings.api_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on, or answer with an error."""
        if scope["type"] != "http":
            return
        start, answer, incoming = perf_counter(), _Answer(send), _Body(receive)
        headers = Headers(scope=scope)
        try:
            self._check_origin(scope, headers)
            body = await self._checked_body(scope, headers, incoming)
            _check_json(scope, headers, body)
            await _run_while_connected(self._app, scope, body, receive, answer)
        except _Disconnected:
            pass
        except _Rejected as error:
            await self._reject(error_response(scope["path"], error.status, error.message), incoming, answer)
        except Exception:
            if not answer.has_begun:
                message = "internal server error. See the server's log"
                await error_response(scope["path"], 500, message)(scope, receive, answer)
            raise
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.count(route, answer.status, perf_counter() - start)

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Reject requests from pages of other sites, even if their host resolves to this machine (DNS rebinding).

        Browsers send no Origin with images and links, but Sec-Fetch-Site. Other sites may only link to the page.
        """
        host = headers.get("host", "")
        if self._hosts and host.lower() not in self._hosts:
            raise _Rejected(403, "this server does not accept that host name. Use the address that it printed")
        origin = headers.get("origin")
        is_foreign = headers.get("sec-fetch-site") in {"cross-site", "same-site"}
        opens_page = scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
        if (origin is not None and _netloc(origin) != host.lower()) or (is_foreign and not opens_page):
            raise _Rejected(403, "this server refuses requests from pages of other sites")

    async def _checked_body(self, scope: Scope, headers: Headers, incoming: _Body) -> bytes:
        """Check the key, then read and return the body. LibreTranslate clients may send the key in the body."""
        is_admitted = not self._keys or scope["path"] == OPEN
        shown = list(_keys(scope, headers))
        if not is_admitted and (shown or scope["path"] not in LIBRETRANSLATE):
            self._check_key(shown)
            is_admitted = True
        body = await self._body(headers, incoming)
        if not is_admitted:
            self._check_key([await _key_in_body(headers, body)])
        return body

    def _check_key(self, shown: list[bytes]) -> None:
        if not any(compare_digest(given, own) for key in shown for given in (key, key.strip()) for own in self._keys):
            raise _Rejected(
                401, "this server requires its API key. Send it as a bearer token, or as a password with any user name"
            )

    async def _body(self, headers: Headers, incoming: _Body) -> bytes:
        limit, body = self._settings.max_body_bytes, bytearray()
        too_large = _Rejected(413, f"the request is larger than {limit:,} bytes (max_body_bytes). Send a smaller one")
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
            raise _Rejected(408, f"the request did not arrive within {seconds} s (read_seconds)") from None
        return bytes(body)

    async def _reject(self, response: Response, incoming: _Body, answer: "_Answer") -> None:
        """Send the error, then drain part of the body: closing the connection at once would lose the response."""
        if not incoming.is_whole:
            response.headers["Connection"] = "close"
        start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        await answer(start)
        await answer({"type": "http.response.body", "body": bytes(response.body), "more_body": True})
        n_left = LINGER_BODIES * self._settings.max_body_bytes
        with suppress(TimeoutError, _Disconnected):
            async with asyncio.timeout(LINGER_SECONDS):
                async for part in incoming.parts():
                    n_left -= len(part)
                    if n_left < 0:
                        break
        await answer({"type": "http.response.body", "body": b""})


class _Answer:
    """A wrapper of ASGI's `send` that adds the security headers to a response and records its status."""

    def __init__(self, send: Send):
        self._send, self.status = send, 499  # 499: the client disconnected before the response
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


async def _run_while_connected(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, answer: _Answer) -> None:
    """Run the app, and cancel it if the client disconnects."""
    disconnected = asyncio.ensure_future(_disconnected(receive))
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await asyncio.shield(disconnected)

    work = asyncio.ensure_future(_run(app, scope, replay, answer))
    try:
        await asyncio.wait({work, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if disconnected.done() and not answer.is_whole:
            work.cancel()
        with suppress(asyncio.CancelledError):
            await work
    finally:
        work.cancel()
        disconnected.cancel()


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Callable[[Message], Awaitable[None]]) -> None:
    with holding_models():  # until the whole response is sent
        await app(scope, receive, send)


async def _disconnected(receive: Receive) -> Message:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return message


def _hosts(settings: ServingSettings) -> Iterator[str]:
    """Yield the allowed Host headers; none if the server listens on all addresses, since it then requires a key."""
    if settings.host in {"0.0.0.0", "::"}:
        return
    own = f"[{settings.host}]" if ":" in settings.host else settings.host
    for name in {own, *LOCAL} if is_loopback(settings.host) else {own}:
        yield f"{name}:{settings.port}".lower()
        if settings.port == 80:
            yield name.lower()


def _netloc(origin: str) -> str | None:
    """Return the host and port of an origin, or None if the origin is not valid."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _encodings(key: str | None) -> list[bytes]:
    """Return all encodings of a key that clients may send: HTTP defines no encoding for headers."""
    if key is None:
        return []
    encodings = [key.encode("utf-8", "surrogateescape")]
    with suppress(UnicodeEncodeError):
        encodings.append(key.encode("latin-1"))
    return list(dict.fromkeys(each for whole in encodings for each in (whole, whole.strip())))


def _keys(scope: Scope, headers: Headers) -> Iterator[bytes]:
    """Yield the API keys, as bytes, from each header and query field in which a client may send one."""
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


async def _key_in_body(headers: Headers, body: bytes) -> bytes:
    """Return the field `api_key` of a form or a JSON body, or b"" if there is none."""
    try:
        fields = await read_fields(headers.get("content-type", ""), body)
    except (ValueError, RecursionError):
        return b""
    return str(fields.get("api_key", "")).encode("utf-8", "replace")


def _check_json(scope: Scope, headers: Headers, body: bytes) -> None:
    """Refuse JSON that is not valid Unicode. Set the content type of JSON to application/json."""
    if not body:
        return
    kind = kind_of(headers.get("content-type", ""), body)
    if kind != "application/json" and scope["path"] in LIBRETRANSLATE:
        return
    problem = problem_of_json(body)
    if problem is not None:
        raise _Rejected(400, problem)
    MutableHeaders(scope=scope)["content-type"] = "application/json"
