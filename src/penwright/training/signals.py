"""Stop requests by signal: SIGINT, SIGTERM and SIGHUP."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
STOP_SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))  # Windows has no SIGHUP
ONE_REQUEST = 0.5  # signals within this many seconds count as one: service managers signal each process of a group


def treat_as_ctrl_c() -> None:
    """Make SIGTERM and SIGHUP act like Ctrl+C in this process, unless they are already handled or ignored."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.getsignal(signal.SIGINT))


@contextmanager
def stop_requests(on_request: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """Catch the first stop signal, and append its number to the yielded list. A second signal acts as usual.

    The first signal also calls `on_request`.

    A hang-up never counts as the second signal, because a closing terminal sends several hang-ups. Under `nohup`,
    hang-ups stay ignored.
    """
    received: list[int] = []
    first_at = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal first_at
        if not received:
            received.append(number)
            first_at = monotonic()
            on_request()
        elif number != getattr(signal, "SIGHUP", None) and monotonic() - first_at >= ONE_REQUEST:
            _restore(before)
            signal.raise_signal(number)

    before = {}
    try:
        for number in STOP_SIGNALS:
            if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, note)
    except ValueError:  # only the main thread may handle signals
        before = {}
    try:
        yield received
    finally:
        _restore(before)


def _restore(handlers: "dict[signal.Signals, signal._HANDLER]") -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
