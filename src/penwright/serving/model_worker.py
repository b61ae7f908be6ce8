"""A served run. All computation with its model runs on a dedicated thread."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from collections.abc import Generator as Steps
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext, suppress
from functools import cached_property, lru_cache, partial
from pathlib import Path
from threading import Event
from time import monotonic
from typing import NamedTuple, TypeVar

from jaxtyping import Float
from torch import Tensor

from penwright.application import Application, ModelKind
from penwright.classification.classifier import Classification, Classifier
from penwright.decoding.requests import Request, TokenUpdate
from penwright.devices import to_float64
from penwright.errors import PenwrightError, UsageError
from penwright.generation.generator import Generator
from penwright.inspection import Inspector
from penwright.run.folder import RECIPE
from penwright.serving.batching import CompletionWorker, DynamicBatcher, PendingAnswers
from penwright.serving.checks import Check, build_check, require_client
from penwright.serving.settings import ServingSettings
from penwright.translation.alignment import AlignmentHead
from penwright.translation.constraints.requirements import DEFAULT_CONSTRAINTS, Constraints
from penwright.translation.results import Translation
from penwright.translation.translator import Translator
from penwright.workflows.load import OpenedRun, load, open_run
from penwright.workflows.optimize import kept_alignment

T = TypeVar("T")
DAMAGE = (PenwrightError, OSError, ValueError)  # errors that reading a damaged run may raise


class Busy(PenwrightError):
    """The queue of a model is full."""


class Stopping(PenwrightError):
    """The server is shutting down."""


class TranslationChoices(NamedTuple):
    """The options of a translation; None means the run's own setting."""

    beam_size: int | None = None
    n_best: int = 1
    length_penalty: float | None = None
    constraints: Constraints = DEFAULT_CONSTRAINTS
    prefix: str = ""


Choices = TranslationChoices | None
Batcher = DynamicBatcher[Choices, Translation] | DynamicBatcher[Choices, Classification]


class ModelWorker:
    """A served run. It counts the queued and running texts and raises Busy if there are more than `max_waiting`."""

    def __init__(self, name: str, opened: OpenedRun, application: Application, limits: ServingSettings | None = None):
        self.name, self.opened, self.application, self.limits = name, opened, application, limits or ServingSettings()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"penwright-{name}")
        self._builder = ThreadPoolExecutor(1, thread_name_prefix=f"penwright-build-{name}")
        self._read_folder()
        self.n_inside = 0  # number of queued and running texts
        self.is_stopping = self.is_learning = False  # whether the server is stopping; whether the run is being trained
        self.is_live = False  # whether a newer checkpoint may replace the model

    def _read_folder(self) -> None:
        """Read all needed files of the run now, since its folder may be changed or deleted during serving."""
        run = self.opened.run
        self.created = int(time.time())
        self.step: int | None = None  # training step of the weights
        self._head: AlignmentHead | None = None
        with suppress(*DAMAGE):
            self.created = int((run.folder / RECIPE).stat().st_mtime)
            self.step = self.opened.checkpoint.step if self.opened.checkpoint else run.checkpoints.best_step()
        self.alignment()

    def alignment(self) -> AlignmentHead | None:
        """Return the attention head that aligns words best, or None if the run has not saved one."""
        with suppress(*DAMAGE):
            self._head = kept_alignment(self.opened.run)
        return self._head

    @classmethod
    def load(
        cls, folder: Path, name: str | None = None, limits: ServingSettings | None = None, *, compiles: bool = True
    ) -> "ModelWorker":
        """Load a run folder, or one of its checkpoints. The default name of the model is the name of the folder."""
        device, precision = (limits.device, limits.precision) if limits else ("cpu", None)
        opened = open_run(folder)
        application = load(opened, device, precision, compiles=compiles)
        worker = cls(name or folder.resolve().name, opened, application, limits)
        if worker.kind == "writer":
            _ = worker.completion_worker  # create it now: it takes a second, which would delay the first request
        return worker

    @property
    def kind(self) -> ModelKind:
        """The kind of the model: "writer" (a language model), "translator" or "classifier"."""
        return self.application.kind

    @property
    def generator(self) -> Generator:
        """The model as a Generator. Raises UsageError for other kinds of models."""
        if not isinstance(self.application, Generator):
            raise self._wrong_kind("writer")
        return self.application

    @property
    def translator(self) -> Translator:
        """The model as a Translator. Raises UsageError for other kinds of models."""
        if not isinstance(self.application, Translator):
            raise self._wrong_kind("translator")
        return self.application

    @property
    def classifier(self) -> Classifier:
        """The model as a Classifier. Raises UsageError for other kinds of models."""
        if not isinstance(self.application, Classifier):
            raise self._wrong_kind("classifier")
        return self.application

    @cached_property
    def inspector(self) -> Inspector:
        """The inspector of the model. It runs the model, so use it only inside `run` or `run_in_steps`."""
        return Inspector(self.application)

    @cached_property
    def logits(self) -> Callable[[tuple[int, ...]], Float[Tensor, " vocab_size"]]:
        """A function that returns the logits of the next token. Its cache makes it fast to try other settings."""
        return lru_cache(maxsize=32)(lambda tokens: to_float64(self.generator.next_logits(tokens)))

    @cached_property
    def completion_worker(self) -> CompletionWorker:
        """The worker that generates completions for several requests together."""
        return CompletionWorker(self.generator.pool(self.limits.max_rows), self._executor)

    @cached_property
    def batcher(self) -> Batcher:
        """The batcher that translates or classifies the texts of several requests together."""
        if self.kind == "translator":
            return DynamicBatcher(self._translate, self._executor)
        return DynamicBatcher(self._classify, self._executor)

    async def run(
        self, function: Callable[[], T], watched: Callable[[Check], AbstractContextManager[object]] = nullcontext
    ) -> T:
        """Run a function on the model's thread, between two steps of running completions, and return its result.

        The function runs inside `watched(check)`, which should call `check` frequently. The check raises an error if
        the client has disconnected.
        """

        def work(disconnected: Event) -> T:
            with watched(partial(require_client, disconnected)):
                return function()

        return await self._submit(self._executor, work)

    async def run_in_steps(self, begin: Callable[[], Steps[None, None, T]]) -> T:
        """Run a long task, written as a generator, on the model's thread. Whenever it yields, other requests can run.

        `begin` also runs on the model's thread, and returns the generator. If the client disconnects, the task stops.
        """
        with self._slots(1):
            async with asyncio.timeout(self.limits.deadline_seconds):
                steps = await asyncio.wrap_future(self._executor.submit(begin))
                while (result := await asyncio.wrap_future(self._executor.submit(_advance, steps))) is None:
                    pass
                return result[0]

    async def build(self, function: Callable[[Check], T], seconds: float | None = None) -> T:
        """Run a slow function that does not use the model, e.g. one that compiles a pattern, and return its result.

        The function runs on its own thread. Its argument is a check that it must call frequently. The check raises an
        error if the client has disconnected or `seconds` have passed (by default `build_seconds`), and otherwise lets
        the model's thread run.
        """
        limit = seconds or self.limits.build_seconds
        return await self._submit(self._builder, lambda event: function(build_check(event, monotonic() + limit)))

    async def _submit(self, executor: Executor, function: Callable[[Event], T]) -> T:
        """Run a function on a thread. Its argument is set if the client disconnects or the deadline passes."""
        disconnected = Event()
        with self._slots(1):
            try:
                async with asyncio.timeout(self.limits.deadline_seconds):
                    return await asyncio.wrap_future(executor.submit(function, disconnected))
            finally:
                disconnected.set()

    async def write(
        self, requests: Sequence[Request], until: float | None = None
    ) -> AsyncGenerator[tuple[int, TokenUpdate], None]:
        """Yield the tokens of completions, each with the index of its request.

        `generator.requests` makes the requests. `until` is a deadline on the event loop's clock. Wrap the generator in
        `contextlib.aclosing`: when it is closed early, the work stops within one token.
        """
        until = until or asyncio.get_running_loop().time() + self.limits.deadline_seconds
        with self._slots(len(requests)):
            async with aclosing(self.completion_worker.write(requests, until)) as updates:
                async for each in updates:
                    yield each

    async def translate(self, texts: Sequence[str], options: TranslationChoices | None = None) -> list[Translation]:
        """Translate texts, batched with concurrent requests that have the same options."""
        _ = self.translator
        results = await self._batched(texts, options or TranslationChoices())
        return [each for each in results if isinstance(each, Translation)]

    async def classify(self, texts: Sequence[str]) -> list[Classification]:
        """Classify texts, batched with concurrent requests."""
        _ = self.classifier
        results = await self._batched(texts, None)
        return [each for each in results if isinstance(each, Classification)]

    def stop(self) -> None:
        """Refuse new requests with the error `Stopping`."""
        self.is_stopping = True

    def abort(self) -> None:
        """End running requests with the error `Stopping`."""
        error = Stopping("the server was stopped before the request was finished")
        if self.kind == "writer":
            self.completion_worker.abort(error)
        else:
            self.batcher.abort(error)

    def close(self) -> None:
        """Shut down the threads without waiting for them, and drop the objects derived from the model."""
        for each in (self._executor, self._builder):
            each.shutdown(wait=False, cancel_futures=True)
        for name in ("inspector", "completion_worker", "batcher", "logits"):
            self.__dict__.pop(name, None)

    async def _batched(
        self, texts: Sequence[str], options: Choices
    ) -> Sequence[Translation] | Sequence[Classification]:
        with self._slots(len(texts)):
            async with asyncio.timeout(self.limits.deadline_seconds):
                return await self.batcher.ask(options, texts)

    def _translate(self, options: Choices, texts: Sequence[str], waiting: PendingAnswers) -> Sequence[Translation]:
        assert options is not None
        with self.translator.watched(waiting.check, waiting.wants):
            return self.translator.translate(
                texts,
                beam_size=options.beam_size,
                n_best=options.n_best,
                length_penalty=options.length_penalty,
                constraints=options.constraints,
                prefixes=options.prefix,
            )

    def _classify(self, options: Choices, texts: Sequence[str], waiting: PendingAnswers) -> Sequence[Classification]:
        waiting.check()
        return self.classifier.classify(texts)

    @contextmanager
    def _slots(self, n: int) -> Iterator[None]:
        most = self.limits.max_waiting
        if self.is_stopping:
            raise Stopping("the server is shutting down. Try again later")
        if n > most:
            raise UsageError(f"the request has {n} texts, but at most {most} may wait (max_waiting). Send fewer")
        if self.n_inside + n > most:
            raise Busy(f"{self.n_inside} of at most {most} texts are already waiting for {self.name}. Try again later")
        self.n_inside += n
        try:
            yield
        finally:
            self.n_inside -= n

    def _wrong_kind(self, kind: ModelKind) -> UsageError:
        return UsageError(f"{self.name} is a {self.kind}, but this request needs a {kind}. Choose a different model")


def _advance(steps: Steps[None, None, T]) -> tuple[T] | None:
    """Advance a generator by one step. Return None or, after the last step, its result in a tuple."""
    try:
        next(steps)
    except StopIteration as end:
        return (end.value,)
    return None
