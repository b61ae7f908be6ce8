"""Clients that send slowly, read slowly or stay silent; and keys, which are checked before the body is read."""

import logging
import socket
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic

import pytest

from penwright.serving.connections import allowed_connections
from penwright.serving.server import OFTEN, WINDOW, RepeatedMessageFilter

from .conftest import RunningServer, StartServer, eventually
from .test_access import KEY, ask


def connect(address: str, content: bytes = b"") -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(content)
    return connection


def read_until_closed(connection: socket.socket) -> bytes:
    """Return all that the server sends until it closes the connection."""
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


def request_head(address: str, n_bytes: int, *lines: str) -> bytes:
    host = address.removeprefix("http://")
    given = [f"POST /classify HTTP/1.1\r\nHost: {host}\r\nContent-Length: {n_bytes}", *lines]
    return ("\r\n".join(given) + "\r\n\r\n").encode()


@pytest.fixture(scope="module")
def impatient_server(start_server: StartServer) -> RunningServer:
    return start_server(read_seconds=0.5, max_connections=8)


@pytest.mark.parametrize("begin", [b"", b"GET /health HTTP/1.1\r\nHost: ", b"GET"])
def test_incomplete_request_head_times_out(impatient_server: RunningServer, begin: bytes) -> None:
    with closing(connect(impatient_server.address, begin)) as connection:
        found = read_until_closed(connection)
    assert found.startswith(b"HTTP/1.1 408") if begin else found == b""


def test_request_head_sent_byte_by_byte_times_out(impatient_server: RunningServer) -> None:
    until = monotonic() + 60
    with closing(connect(impatient_server.address)) as connection, pytest.raises(OSError):
        while monotonic() < until:
            connection.sendall(b"X")
            connection.settimeout(0.1)
            try:
                if not connection.recv(1000):
                    raise ConnectionResetError
            except TimeoutError:
                continue


@pytest.mark.parametrize("again", [False, True])
def test_incomplete_body_times_out_naming_the_limit(impatient_server: RunningServer, again: bool) -> None:
    body = b'{"texts": "a"}'
    whole = request_head(impatient_server.address, len(body)) + body if again else b""
    with closing(
        connect(impatient_server.address, whole + request_head(impatient_server.address, 100) + b"{")
    ) as connection:
        found = read_until_closed(connection)
    assert b"HTTP/1.1 408" in found and b"read_seconds" in found
    assert found.count(b"HTTP/1.1 200") == again


def test_idle_connections_do_not_block_new_ones(impatient_server: RunningServer) -> None:
    with ExitStack() as stack:
        for _ in range(20):  # more than twice max_connections
            stack.enter_context(closing(connect(impatient_server.address)))
        assert ask(impatient_server.address, "/health").status == 200


def test_connection_limit_leaves_file_descriptors_free() -> None:
    resource = pytest.importorskip("resource")
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert allowed_connections(1) == 1
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, limit), most))
        assert allowed_connections(10**6) <= 128
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def test_client_that_does_not_read_is_disconnected(impatient_server: RunningServer) -> None:
    host = impatient_server.address.removeprefix("http://")
    request = f"GET /openapi.json HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    with closing(connect(impatient_server.address, request * 400)) as connection:
        assert eventually(lambda: is_served(connection), 20)
        assert eventually(lambda: not is_served(connection), 20)


def is_served(connection: socket.socket) -> bool:
    """Return whether a process still holds the server's end of this connection."""
    port = f":{connection.getsockname()[1]:04X}"
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return any(remote.endswith(port) and inode != "0" for _, _, remote, *_, inode in (x.split()[:10] for x in lines))


@pytest.fixture(scope="module")
def key_protected(start_server: StartServer) -> RunningServer:
    return start_server(api_key=KEY, read_seconds=120)


@pytest.mark.parametrize("lines", [(), ("X-API-Key: wrong",), ("Expect: 100-continue",)])
def test_missing_key_is_refused_without_waiting_for_the_body(
    key_protected: RunningServer, lines: tuple[str, ...]
) -> None:
    start = monotonic()
    with closing(connect(key_protected.address, request_head(key_protected.address, 1000, *lines))) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")
    assert monotonic() < start + 60  # half of read_seconds


def test_oversized_content_length_is_refused_before_the_body(key_protected: RunningServer) -> None:
    lines = (f"X-API-Key: {KEY}",)
    with closing(connect(key_protected.address, request_head(key_protected.address, 10**10, *lines))) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")


def test_large_body_without_key_still_gets_401(key_protected: RunningServer) -> None:
    assert ask(key_protected.address, "/classify", "POST", b"x" * 3_000_000).status == 401


def test_repeated_log_messages_are_rate_limited_and_counted() -> None:
    now = [0.0]
    rate_limit = RepeatedMessageFilter(lambda: now[0])

    def logged(text: str) -> str | None:
        record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, text, None, None)
        return record.getMessage() if rate_limit.filter(record) else None

    assert [logged("no HTTP") for _ in range(1000)].count("no HTTP") == OFTEN
    assert logged("another") == "another"
    now[0] = WINDOW
    again = logged("no HTTP")
    assert again is not None and f"{1000 - OFTEN} similar" in again
