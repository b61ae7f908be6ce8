"""Connections that give way: slow senders, slow readers and idle connections are closed before they use up the server.

uvicorn limits none of these: it has a timeout between two requests only, and its `limit_concurrency` answers everybody
with 503.
"""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

SLOWEST = 1000  # bytes a second that a client must take of its answer
OFTEN, WINDOW = 5, 60.0  # how many messages of one kind are logged in so many seconds


def protocol(read_seconds: float, most: int) -> type[H11Protocol]:
    """Return the protocol class of a server that has `most` connections at a time."""

    class Connection(_Connection):
        """A connection with the limits of one server."""

    Connection.read_seconds, Connection.most = read_seconds, most
    return Connection


def affordable(wanted: int) -> int:
    """Return how many of `wanted` connections the process has file descriptors for; half of them are for files."""
    if resource is None:
        return wanted
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if limit == resource.RLIM_INFINITY else max(1, min(wanted, limit // 2))


class _Connection(H11Protocol):
    """A connection whose client must send each request, and take each answer, in time."""

    read_seconds: float
    most: int

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._idle_since = monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection; close the one that has been idle longest where there are too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that `pause_writing` is called as soon as the client is behind
        self._wait_for_request()
        if len(self.connections) > self.most:
            mine = [each for each in self.connections if isinstance(each, _Connection)]
            open_ones = [each for each in mine if not each.transport.is_closing()]
            if len(open_ones) > self.most:
                idle = [each for each in open_ones if each.is_idle]
                min(idle, key=lambda each: each._idle_since)._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        _stop(self._reading, self._writing)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on. The head of a request has a deadline that more bytes do not move; the gate sets that of its body."""
        was_waiting = self.conn.their_state is h11.IDLE
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            _stop(self._reading)
            self._reading = None
        elif not was_waiting or self._reading is None:
            self._wait_for_request()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._idle_since = monotonic()

    def pause_writing(self) -> None:
        """Note that the client is behind, and give it time to catch up."""
        super().pause_writing()
        self._expect_progress()

    def resume_writing(self) -> None:
        """Note that the client has caught up."""
        _stop(self._writing)
        super().resume_writing()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_request(self) -> None:
        _stop(self._reading)
        self._reading = self.loop.call_later(self.read_seconds, self._close)

    def _expect_progress(self) -> None:
        before = self.transport.get_write_buffer_size()

        def check() -> None:
            if before - self.transport.get_write_buffer_size() < min(before, SLOWEST * self.read_seconds):
                self.transport.abort()
            else:
                self._expect_progress()

        self._writing = self.loop.call_later(self.read_seconds, check)

    def _close(self) -> None:
        """Close, after saying why where a part of a request has come."""
        if self.is_idle and self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._say_too_slow()
        self.transport.close()

    def _say_too_slow(self) -> None:
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        for event in (h11.Response(status_code=408, headers=headers, reason=b"Request Timeout"), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")


def _stop(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()


class SeldomSaid(logging.Filter):
    """Drop what was logged often in the last minute, and add up how often that was."""

    def __init__(self, clock: Callable[[], float] = monotonic):
        super().__init__()
        self._clock = clock
        self._since: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be logged."""
        kind, now = str(record.msg)[:200], self._clock()
        if now - self._since.get(kind, -WINDOW) >= WINDOW:
            dropped = self._counts.get(kind, 0) - OFTEN
            self._since[kind], self._counts[kind] = now, 0
            if dropped > 0:
                record.msg = f"{record.msg} ({dropped:,} more like it were not logged.)"
        self._counts[kind] += 1
        return self._counts[kind] <= OFTEN
