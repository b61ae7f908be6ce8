"""Clients that send slowly, read slowly, or say nothing; and keys that are looked at before a body is."""

import logging
import os
import socket
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic

import pytest

from penwright.serving.connections import OFTEN, WINDOW, RateLimitFilter, allowed_connections

from .conftest import Running, Serving, eventually
from .test_gate import KEY, ask


def connect(address: str, content: bytes = b"") -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=15)
    connection.sendall(content)
    return connection


def said(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


def head(address: str, n_bytes: int, *lines: str) -> bytes:
    host = address.removeprefix("http://")
    given = [f"POST /classify HTTP/1.1\r\nHost: {host}\r\nContent-Length: {n_bytes}", *lines]
    return ("\r\n".join(given) + "\r\n\r\n").encode()


@pytest.fixture(scope="module")
def hasty(serving: Serving) -> Running:
    return serving(read_seconds=0.5, max_connections=8)


@pytest.mark.parametrize("begin", [b"", b"GET /health HTTP/1.1\r\nHost: ", b"GET"])
def test_a_head_that_does_not_come_ends_the_connection(hasty: Running, begin: bytes) -> None:
    with closing(connect(hasty.address, begin)) as connection:
        found = said(connection)
    assert found.startswith(b"HTTP/1.1 408") if begin else found == b""


def test_a_head_that_drips_is_not_waited_for(hasty: Running) -> None:
    start = monotonic()
    with closing(connect(hasty.address)) as connection, pytest.raises(OSError):
        while monotonic() < start + 10:
            connection.sendall(b"X")
            connection.settimeout(0.1)
            try:
                if not connection.recv(1000):
                    raise ConnectionResetError
            except TimeoutError:
                continue
    assert monotonic() < start + 8


@pytest.mark.parametrize("again", [False, True])
def test_a_body_that_does_not_come_is_refused_with_the_limit(hasty: Running, again: bool) -> None:
    body = b'{"texts": "a"}'
    whole = head(hasty.address, len(body)) + body if again else b""
    with closing(connect(hasty.address, whole + head(hasty.address, 100) + b"{")) as connection:
        found = said(connection)
    assert b"HTTP/1.1 408" in found and b"read_seconds" in found
    assert found.count(b"HTTP/1.1 200") == again


def test_connections_that_say_nothing_give_way_to_others(hasty: Running) -> None:
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(closing(connect(hasty.address)))
        assert ask(hasty.address, "/health").status == 200


def test_connections_leave_file_descriptors_for_other_files() -> None:
    resource = pytest.importorskip("resource")
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert allowed_connections(1) == 1
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, limit), most))
        assert allowed_connections(10**6) <= 128
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def test_whoever_does_not_read_is_left(hasty: Running) -> None:
    host = hasty.address.removeprefix("http://")
    request = f"GET /openapi.json HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    n_before = open_files()
    with closing(connect(hasty.address, request * 400)):
        assert eventually(lambda: open_files() <= n_before + 1, 20)  # this end is still open


def open_files() -> int:
    return len(list(Path(f"/proc/{os.getpid()}/fd").iterdir()))


@pytest.fixture(scope="module")
def locked(serving: Serving) -> Running:
    return serving(api_key=KEY, read_seconds=5)


@pytest.mark.parametrize("lines", [(), ("X-API-Key: wrong",), ("Expect: 100-continue",)])
def test_without_the_key_no_body_is_waited_for(locked: Running, lines: tuple[str, ...]) -> None:
    start = monotonic()
    with closing(connect(locked.address, head(locked.address, 1000, *lines))) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")
    assert monotonic() < start + 3


def test_too_much_is_refused_before_it_is_sent(locked: Running) -> None:
    lines = (f"X-API-Key: {KEY}",)
    with closing(connect(locked.address, head(locked.address, 10**10, *lines))) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")


def test_whoever_sends_a_large_body_without_the_key_still_hears_why(locked: Running) -> None:
    assert ask(locked.address, "/classify", "POST", b"x" * 3_000_000).status == 401


def test_what_is_logged_again_and_again_is_counted() -> None:
    now = [0.0]
    seldom = RateLimitFilter(lambda: now[0])

    def logged(text: str) -> str | None:
        record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, text, None, None)
        return record.getMessage() if seldom.filter(record) else None

    assert [logged("no HTTP") for _ in range(1000)].count("no HTTP") == OFTEN
    assert logged("another") == "another"
    now[0] = WINDOW
    again = logged("no HTTP")
    assert again is not None and f"{1000 - OFTEN} similar" in again
