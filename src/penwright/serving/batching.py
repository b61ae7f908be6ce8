"""Two ways to process requests of several clients together, on a model's thread.

Completions use continuous batching: completions join and leave the batch between tokens. Texts to translate or to
classify are collected for a few milliseconds, then processed as a batch (dynamic batching).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from penwright.decoding.continuous_batching import ContinuousBatch
from penwright.decoding.requests import Request, TokenUpdate
from penwright.serving.checks import ClientsDisconnected

UpdateQueue = asyncio.Queue[tuple[Request, TokenUpdate | Exception]]
BatchKey = TypeVar("BatchKey", bound=Hashable)
Result = TypeVar("Result")
BATCH = 32  # maximum number of texts per batch
WAIT = 0.004  # seconds in which to collect texts before the first batch


class CompletionWorker:
    """A worker that advances a batch step by step until all completions are finished. Other work can run in between."""

    def __init__(self, batch: ContinuousBatch, executor: Executor):
        self.batch, self._executor = batch, executor
        self._is_stepping = False  # whether a step of the batch is queued or running; used on the model's thread only
        self._queues: dict[Request, UpdateQueue] = {}  # new tokens of each request; used on the server's thread only
        self.n_tokens = 0  # number of tokens generated so far
        self.n_abandoned = 0  # number of completions left unfinished because their clients disconnected

    async def write(self, requests: Sequence[Request], until: float) -> AsyncGenerator[tuple[int, TokenUpdate], None]:
        """Yield each new token with the index of its request, until all requests have finished.

        Closing the generator, or cancelling its consumer, stops the work at the next step. Raises TimeoutError when the
        event loop's clock passes `until`, and re-raises any error of a step.
        """
        loop, queue = asyncio.get_running_loop(), UpdateQueue()
        numbers = {request: number for number, request in enumerate(requests)}
        unfinished = set(requests)
        self._queues.update(dict.fromkeys(requests, queue))
        self._executor.submit(self._join, requests, loop)
        try:
            while unfinished:
                async with asyncio.timeout_at(until):
                    request, update = await queue.get()
                if isinstance(update, Exception):
                    raise update
                if update.finish is not None:
                    unfinished.remove(request)
                yield numbers[request], update
        finally:
            self.n_abandoned += len(unfinished)
            for request in requests:
                request.cancelled = True
                del self._queues[request]

    def abort(self, error: Exception) -> None:
        """End all running completions with this error."""
        for request, queue in self._queues.items():
            queue.put_nowait((request, error))

    def _join(self, requests: Sequence[Request], loop: asyncio.AbstractEventLoop) -> None:
        for request in requests:
            self.batch.join(request)
        if not self._is_stepping:
            self._is_stepping = True
            self._executor.submit(self._step, loop)

    def _step(self, loop: asyncio.AbstractEventLoop) -> None:
        updates: list[tuple[Request, TokenUpdate]] | list[tuple[Request, Exception]]
        try:
            updates = self.batch.step()
        except Exception as error:  # every waiting client must get the error
            updates = [(request, error) for request in self.batch.clear()]
        self._is_stepping = self.batch.busy
        with suppress(RuntimeError):  # raised if the event loop is closed; then no client is left
            loop.call_soon_threadsafe(self._deliver, updates)
            if self._is_stepping:
                self._executor.submit(self._step, loop)

    def _deliver(self, updates: Sequence[tuple[Request, TokenUpdate | Exception]]) -> None:
        self.n_tokens += len(updates)
        for request, update in updates:
            if request in self._queues:
                self._queues[request].put_nowait((request, update))


class PendingAnswers:
    """The pending answers of a batch. Any thread may query them."""

    def __init__(self, answers: Sequence[asyncio.Future[Any]]):
        """Store the answers, one for each text of the batch."""
        self._answers, self._all = answers, set(answers)

    def wants(self, number: int) -> bool:
        """Return whether a client is still waiting for the result of text `number`."""
        return not self._answers[number].done()

    def check(self) -> None:
        """Raise ClientsDisconnected if no client is waiting any more."""
        if all(answer.done() for answer in self._all):
            raise ClientsDisconnected("all clients have disconnected")


@dataclass(eq=False)
class _Request(Generic[BatchKey, Result]):
    key: BatchKey
    texts: Sequence[str]
    answer: asyncio.Future[list[Result]]
    results: list[Result] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return not self.answer.done()

    def take(self, result: Result) -> None:
        self.results.append(result)
        if self.is_open and len(self.results) == len(self.texts):
            self.answer.set_result(self.results)

    def fail(self, error: Exception) -> None:
        if self.is_open:
            self.answer.set_exception(error)


class DynamicBatcher(Generic[BatchKey, Result]):
    """A batcher that collects texts for a few milliseconds, then processes them in batches.

    A batch takes one text from each request in turn, so that large requests do not hold up small ones.
    """

    def __init__(
        self,
        work: Callable[[BatchKey, Sequence[str], PendingAnswers], Sequence[Result]],
        executor: Executor,
    ):
        """Store `work`, the function that processes a batch on the model's thread."""
        self._work, self._executor = work, executor
        self._requests: list[_Request[BatchKey, Result]] = []
        self._task: asyncio.Task[None] | None = None
        self.n_texts = 0  # number of texts processed so far
        self.n_abandoned = 0  # number of texts left unprocessed because their clients disconnected

    async def ask(self, key: BatchKey, texts: Sequence[str]) -> list[Result]:
        """Return the result of each text. Only texts with the same key share a batch. Cancelling drops the texts."""
        if not texts:
            return []
        request: _Request[BatchKey, Result] = _Request(key, texts, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        if self._task is None:
            self._task = asyncio.create_task(self._process_batches())
        try:
            return await request.answer
        except asyncio.CancelledError:
            self.n_abandoned += len(texts) - len(request.results)
            raise

    def abort(self, error: Exception) -> None:
        """End all pending requests with this error."""
        for request in self._requests:
            request.fail(error)

    async def _process_batches(self) -> None:
        await asyncio.sleep(WAIT)
        while self._requests:
            await self._answer(self._batch())
            self._requests = [each for each in self._requests if each.is_open]
        self._task = None

    def _batch(self) -> list[_Request[BatchKey, Result]]:
        """Return the request of each text in the next batch. A request with several texts can occur several times."""
        alike = [each for each in self._requests if each.is_open and each.key == self._requests[0].key]
        batch: list[_Request[BatchKey, Result]] = []
        for turn in range(BATCH):
            waiting = [each for each in alike if len(each.texts) - len(each.results) > turn]
            batch += waiting[: BATCH - len(batch)]
            if not waiting or len(batch) == BATCH:
                break
        return sorted(batch, key=self._requests.index)

    async def _answer(self, batch: Sequence[_Request[BatchKey, Result]]) -> None:
        requests = list(dict.fromkeys(batch))
        try:
            results = await asyncio.wrap_future(self._executor.submit(self._results, requests, batch))
        except Exception as error:  # every waiting client must get the error
            for request in requests:
                request.fail(error)
            return
        self.n_texts += len(batch)
        for request, result in zip(batch, results, strict=True):
            request.take(result)

    def _results(
        self, requests: Sequence[_Request[BatchKey, Result]], batch: Sequence[_Request[BatchKey, Result]]
    ) -> Sequence[Result]:
        """Process a batch, on the model's thread."""
        parts = (each.texts[len(each.results) :][: batch.count(each)] for each in requests)
        texts = [text for part in parts for text in part]
        return self._work(requests[0].key, texts, PendingAnswers([each.answer for each in batch])) if requests else []
