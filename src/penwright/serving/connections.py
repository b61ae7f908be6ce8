"""Connection limits: slow senders, slow readers and idle connections are closed before they exhaust the server.

uvicorn has no such limits: its only timeout applies between two requests, and beyond its `limit_concurrency`,
it answers every client with 503.
"""

import asyncio
from time import monotonic
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

try:
    import resource
except ImportError:  # the module `resource` does not exist on Windows
    resource = None  # type: ignore[assignment]  # Windows has no such module

SLOWEST = 1000  # minimum speed at which a client must read its response, in bytes per second


def protocol(read_seconds: float, most: int) -> type[H11Protocol]:
    """Return a protocol class that keeps at most `most` connections open."""

    class Connection(_Connection):
        """A connection with the limits of this server."""

    Connection.read_seconds, Connection.most = read_seconds, most
    return Connection


def allowed_connections(wanted: int) -> int:
    """Return `wanted`, limited to half of the file descriptors that this process may open."""
    if resource is None:
        return wanted
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if limit == resource.RLIM_INFINITY else max(1, min(wanted, limit // 2))


class _Connection(H11Protocol):
    """A connection that is closed if its client sends a request or reads a response too slowly."""

    read_seconds: float
    most: int

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._idle_since = monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        """Accept the connection. If there are too many, close the one that has been idle longest."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` is called as soon as the client falls behind
        self._wait_for_request()
        if len(self.connections) > self.most:
            mine = [each for each in self.connections if isinstance(each, _Connection)]
            open_ones = [each for each in mine if not each.transport.is_closing()]
            if len(open_ones) > self.most:
                idle = [each for each in open_ones if each.is_idle]
                min(idle, key=lambda each: each._idle_since)._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        _stop(self._read_timer, self._write_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes. They do not extend the time limit for headers. The middleware limits bodies."""
        was_waiting = self.conn.their_state is h11.IDLE
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            _stop(self._read_timer)
            self._read_timer = None
        elif not was_waiting or self._read_timer is None:
            self._wait_for_request()

    def on_response_complete(self) -> None:
        """Record that the connection has become idle."""
        super().on_response_complete()
        self._idle_since = monotonic()

    def pause_writing(self) -> None:
        """Pause writing, and start a timer that closes the connection if the client does not catch up."""
        super().pause_writing()
        self._watch_progress()

    def resume_writing(self) -> None:
        """Resume writing once the client has caught up."""
        _stop(self._write_timer)
        super().resume_writing()

    @property
    def is_idle(self) -> bool:
        """True if no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_request(self) -> None:
        _stop(self._read_timer)
        self._read_timer = self.loop.call_later(self.read_seconds, self._close)

    def _watch_progress(self) -> None:
        before = self.transport.get_write_buffer_size()

        def check() -> None:
            if before - self.transport.get_write_buffer_size() < min(before, SLOWEST * self.read_seconds):
                self.transport.abort()
            else:
                self._watch_progress()

        self._write_timer = self.loop.call_later(self.read_seconds, check)

    def _close(self) -> None:
        """Close the connection. Answer 408 first if part of a request has arrived."""
        if self.is_idle and self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._send_timeout()
        self.transport.close()

    def _send_timeout(self) -> None:
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        for event in (h11.Response(status_code=408, headers=headers, reason=b"Request Timeout"), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")


def _stop(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()
