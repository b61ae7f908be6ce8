"""Texts of different requests that are worked on together, a batch at a time."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from penwright.errors import PenwrightError

Manner = TypeVar("Manner", bound=Hashable)
Result = TypeVar("Result")
BATCH = 32  # texts


class Unwanted(PenwrightError):
    """Whoever asked has gone."""


class Waiting:
    """Who still waits for the texts of a batch; it may be asked in any thread."""

    def __init__(self, answers: Sequence[asyncio.Future[Any]]):
        """Of each text the answer that it is for."""
        self._answers, self._all = answers, set(answers)

    def wants(self, number: int) -> bool:
        """Whether the text of this number is waited for."""
        return not self._answers[number].done()

    def check(self) -> None:
        """Raises Unwanted when nobody waits for any of them."""
        if all(answer.done() for answer in self._all):
            raise Unwanted("nobody waits for this")


@dataclass(eq=False)
class _Question(Generic[Manner, Result]):
    manner: Manner
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


class DynamicBatcher(Generic[Manner, Result]):
    """Gathers texts for some milliseconds, then works on as many as make a batch; of each request one in turn."""

    def __init__(
        self,
        work: Callable[[Manner, Sequence[str], Waiting], Sequence[Result]],
        worker: Executor,
        wait_seconds: float = 0.004,
    ):
        """`work` is called in the worker's thread; its last argument says whose result is still waited for."""
        self._work, self._worker, self._wait = work, worker, wait_seconds
        self._questions: list[_Question[Manner, Result]] = []
        self._task: asyncio.Task[None] | None = None
        self.n_texts = 0  # that were worked on so far
        self.n_left = 0  # that were given up

    async def ask(self, manner: Manner, texts: Sequence[str]) -> list[Result]:
        """What is made of each text. Texts of equal manner go together. To cancel it gives its texts up."""
        if not texts:
            return []
        question: _Question[Manner, Result] = _Question(manner, texts, asyncio.get_running_loop().create_future())
        self._questions.append(question)
        if self._task is None:
            self._task = asyncio.create_task(self._go_on())
        try:
            return await question.answer
        except asyncio.CancelledError:
            self.n_left += len(texts) - len(question.results)
            raise

    def cut(self, error: Exception) -> None:
        """End everything with this error."""
        for question in self._questions:
            question.fail(error)

    async def _go_on(self) -> None:
        await asyncio.sleep(self._wait)
        while self._questions:
            await self._answer(self._batch())
            self._questions = [each for each in self._questions if each.is_open]
        self._task = None

    def _batch(self) -> list[_Question[Manner, Result]]:
        """Whose texts are next, as often as they have one in the batch."""
        alike = [each for each in self._questions if each.is_open and each.manner == self._questions[0].manner]
        batch: list[_Question[Manner, Result]] = []
        for turn in range(BATCH):
            waiting = [each for each in alike if len(each.texts) - len(each.results) > turn]
            batch += waiting[: BATCH - len(batch)]
            if not waiting or len(batch) == BATCH:
                break
        return sorted(batch, key=self._questions.index)

    async def _answer(self, batch: Sequence[_Question[Manner, Result]]) -> None:
        asked = list(dict.fromkeys(batch))
        try:
            results = await asyncio.wrap_future(self._worker.submit(self._results, asked, batch))
        except Exception as error:  # whoever waits is to hear of it, whatever it is
            for question in asked:
                question.fail(error)
            return
        self.n_texts += len(batch)
        for question, result in zip(batch, results, strict=True):
            question.take(result)

    def _results(
        self, asked: Sequence[_Question[Manner, Result]], batch: Sequence[_Question[Manner, Result]]
    ) -> Sequence[Result]:
        """In the worker's thread."""
        parts = (each.texts[len(each.results) :][: batch.count(each)] for each in asked)
        texts = [text for part in parts for text in part]
        return self._work(asked[0].manner, texts, Waiting([each.answer for each in batch])) if asked else []
