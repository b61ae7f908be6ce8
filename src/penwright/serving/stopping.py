"""Work that ends when nobody waits for it any more."""

import asyncio
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from fastapi import Request

from penwright.decoding.beam import Extension, Watch
from penwright.errors import PenwrightError
from penwright.serving.served import Served

T = TypeVar("T")
POLL = 0.05  # seconds


class Abandoned(PenwrightError):
    """The client has gone away."""


async def while_connected(request: Request, served: Served, function: Callable[[Watch], T]) -> T:
    """What a function returns that searches with beams, and gives the watch to the search.

    When the client goes away, or the request is cancelled, the search ends within a step, and the model is free.
    """
    gone = Event()

    def watch(source: int, extension: Extension) -> None:
        if gone.is_set():
            raise Abandoned("the client has gone away")

    work = asyncio.ensure_future(served.run(lambda: function(watch)))
    try:
        while not work.done():
            await asyncio.wait({work}, timeout=POLL)
            if not work.done() and await request.is_disconnected():
                gone.set()
        return work.result()
    finally:
        gone.set()
