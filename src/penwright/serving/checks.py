"""Checks that end the work of a request if its client has disconnected or its time is over."""

from collections.abc import Callable
from threading import Event
from time import monotonic, sleep

from penwright.errors import PenwrightError, UsageError

Check = Callable[[], None]  # function that raises an error if the work should stop
WORK_SECONDS, REST_SECONDS = 0.001, 0.003  # while compiling constraints: seconds to work, then seconds to sleep


class ClientsDisconnected(PenwrightError):
    """All clients that waited for a result have disconnected."""


def require_client(disconnected: Event) -> None:
    """Raise ClientsDisconnected if `disconnected` is set."""
    if disconnected.is_set():
        raise ClientsDisconnected("all clients have disconnected")


def build_check(disconnected: Event, until: float) -> Check:
    """Return a check that raises ClientsDisconnected once `disconnected` is set, and UsageError after time `until`.

    The check sleeps now and then, so that the model's thread has the GIL most of the time.
    """
    began = monotonic()

    def check() -> None:
        nonlocal began
        require_client(disconnected)
        now = monotonic()
        if now > until:
            raise UsageError("preparing the request takes too long. Use fewer words or messages, or a simpler pattern")
        if now - began > WORK_SECONDS:
            sleep(REST_SECONDS)
            began = monotonic()

    return check
