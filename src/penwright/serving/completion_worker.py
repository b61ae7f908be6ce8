"""A pool of completions that is stepped in a model's thread, for readers in the thread of the server."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor
from contextlib import suppress

from penwright.decoding.continuous_batching import Pool
from penwright.decoding.requests import News, Request

Mail = asyncio.Queue[tuple[Request, News | Exception]]


class CompletionWorker:
    """Steps a pool for as long as there is anything to write; between two steps, other work has its turn."""

    def __init__(self, pool: Pool, worker: Executor):
        self.pool, self._worker = pool, worker
        self._going = False  # of the worker's thread
        self._readers: dict[Request, Mail] = {}  # of the server's thread, as all that follows
        self.n_tokens = 0  # that were written so far
        self.n_left = 0  # completions that were given up before their end

    async def write(self, requests: Sequence[Request], until: float) -> AsyncGenerator[tuple[int, News], None]:
        """The news of each request, by its number, until all have come to their end.

        Closing it, or cancelling who waits for it, ends the work at the next step. Raises TimeoutError when the loop's
        time is past `until`, and what the pool raises.
        """
        loop, mail = asyncio.get_running_loop(), Mail()
        numbers = {request: number for number, request in enumerate(requests)}
        unfinished = set(requests)
        self._readers.update(dict.fromkeys(requests, mail))
        self._worker.submit(self._join, requests, loop)
        try:
            while unfinished:
                async with asyncio.timeout_at(until):
                    request, news = await mail.get()
                if isinstance(news, Exception):
                    raise news
                if news.finish is not None:
                    unfinished.remove(request)
                yield numbers[request], news
        finally:
            self.n_left += len(unfinished)
            for request in requests:
                request.left = True
                del self._readers[request]

    def cut(self, error: Exception) -> None:
        """End all that is written with this error."""
        for request, mail in self._readers.items():
            mail.put_nowait((request, error))

    def _join(self, requests: Sequence[Request], loop: asyncio.AbstractEventLoop) -> None:
        for request in requests:
            self.pool.join(request)
        if not self._going:
            self._going = True
            self._worker.submit(self._step, loop)

    def _step(self, loop: asyncio.AbstractEventLoop) -> None:
        news: list[tuple[Request, News]] | list[tuple[Request, Exception]]
        try:
            news = self.pool.step()
        except Exception as error:  # whoever waits is to hear of it, whatever it is
            news = [(request, error) for request in self.pool.clear()]
        self._going = self.pool.busy
        with suppress(RuntimeError):  # the server has ended, and nobody reads on
            loop.call_soon_threadsafe(self._deliver, news)
            if self._going:
                self._worker.submit(self._step, loop)

    def _deliver(self, news: Sequence[tuple[Request, News | Exception]]) -> None:
        self.n_tokens += len(news)
        for request, each in news:
            if request in self._readers:
                self._readers[request].put_nowait((request, each))
