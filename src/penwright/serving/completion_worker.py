"""A worker that runs continuous batching on a model's thread, for readers on the server's thread."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor
from contextlib import suppress

from penwright.decoding.continuous_batching import ContinuousBatch
from penwright.decoding.requests import Request, TokenUpdate

Mail = asyncio.Queue[tuple[Request, TokenUpdate | Exception]]


class CompletionWorker:
    """A worker that steps a pool while any completion is unfinished. Other work may run between two steps."""

    def __init__(self, pool: ContinuousBatch, worker: Executor):
        self.pool, self._worker = pool, worker
        self._is_stepping = False  # used on the worker's thread only
        self._readers: dict[Request, Mail] = {}  # used on the server's thread only, like all below
        self.n_tokens = 0  # written so far
        self.n_left = 0  # completions abandoned before their end

    async def write(self, requests: Sequence[Request], until: float) -> AsyncGenerator[tuple[int, TokenUpdate], None]:
        """Yield the index of a request and its next token, until all requests have finished.

        Closing the generator, or cancelling its consumer, stops the work at the next step. Raises TimeoutError when the
        loop's time passes `until`, and whatever the pool raises.
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
        """End all running completions with this error."""
        for request, mail in self._readers.items():
            mail.put_nowait((request, error))

    def _join(self, requests: Sequence[Request], loop: asyncio.AbstractEventLoop) -> None:
        for request in requests:
            self.pool.join(request)
        if not self._is_stepping:
            self._is_stepping = True
            self._worker.submit(self._step, loop)

    def _step(self, loop: asyncio.AbstractEventLoop) -> None:
        news: list[tuple[Request, TokenUpdate]] | list[tuple[Request, Exception]]
        try:
            news = self.pool.step()
        except Exception as error:  # every waiting client must get the error
            news = [(request, error) for request in self.pool.clear()]
        self._is_stepping = self.pool.busy
        with suppress(RuntimeError):  # the event loop is closed: nobody reads any more
            loop.call_soon_threadsafe(self._deliver, news)
            if self._is_stepping:
                self._worker.submit(self._step, loop)

    def _deliver(self, news: Sequence[tuple[Request, TokenUpdate | Exception]]) -> None:
        self.n_tokens += len(news)
        for request, each in news:
            if request in self._readers:
                self._readers[request].put_nowait((request, each))
