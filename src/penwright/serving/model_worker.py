"""A run as a server has it: whatever computes with its model does so in one thread of its own."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Literal, NamedTuple, TypeVar

from penwright.classification.classifier import Classification, Classifier
from penwright.decoding.requests import News, Request
from penwright.errors import PenwrightError, UsageError
from penwright.generation.generator import Generator
from penwright.inspection import Inspector
from penwright.serving.completion_worker import CompletionWorker
from penwright.serving.dynamic_batching import DynamicBatcher, Unwanted, Waiting
from penwright.serving.settings import ServingSettings
from penwright.tasks import Application
from penwright.translation.alignment import AlignmentHead
from penwright.translation.constraints.requirements import USUAL_DEMANDS, Constraints
from penwright.translation.results import Translation
from penwright.translation.translator import Translator
from penwright.workflows.load import Opened, load, opened
from penwright.workflows.optimize import kept_alignment

Kind = Literal["writer", "translator", "classifier"]
T = TypeVar("T")
Check = Callable[[], None]  # raises when work is to end
WORK_SECONDS, REST_SECONDS = 0.001, 0.003  # of a build, which leaves most of Python's lock to the model's thread
DAMAGE = (PenwrightError, OSError, ValueError, KeyError, IndexError, TypeError, AttributeError)  # of a run's files


class UnknownModel(PenwrightError):
    """No model of this name is served."""


class Busy(PenwrightError):
    """More is asked for than can wait."""


class Stopping(PenwrightError):
    """The server is about to end."""


class Wording(NamedTuple):
    """How texts are to be translated; what is None comes from the run."""

    beam_size: int | None = None
    n_best: int = 1
    length_penalty: float | None = None
    demands: Constraints = USUAL_DEMANDS
    prefix: str = ""


class ModelWorker:
    """A run that is served. Texts that wait or are worked on are counted; more than `max_waiting` raise Busy."""

    def __init__(self, name: str, it: Opened, application: Application, limits: ServingSettings | None = None):
        self.name, self.opened, self.application, self.limits = name, it, application, limits or ServingSettings()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"penwright-{name}")
        self._builder = ThreadPoolExecutor(1, thread_name_prefix=f"penwright-build-{name}")
        self._note_folder()
        self.n_inside = 0  # texts that wait or are worked on
        self.is_stopping = False

    def _note_folder(self) -> None:
        """Note what the run folder tells of the model: it may be changed, or deleted, while the model is served."""
        run = self.opened.run
        self.created = int(time.time())
        self.best_step: int | None = None
        self._head: AlignmentHead | None = None
        with suppress(*DAMAGE):
            self.created = int((run.folder / "recipe.toml").stat().st_mtime)
            self.best_step = run.best_step()
        self.alignment()

    def alignment(self) -> AlignmentHead | None:
        """Return the head that aligns a translation's words best, or None where it was never looked for."""
        with suppress(*DAMAGE):
            self._head = kept_alignment(self.opened.run.folder)
        return self._head

    @classmethod
    def load(cls, folder: Path, name: str | None = None, limits: ServingSettings | None = None) -> "ModelWorker":
        """Load a run folder, under its own name or another."""
        device = limits.device if limits else "cpu"
        served = cls(name or folder.resolve().name, opened(folder), load(folder, device), limits)
        if served.kind == "writer":
            _ = served.pooling  # takes a second, in which the first client would keep all others waiting
        return served

    @property
    def kind(self) -> Kind:
        return self.application.kind

    @property
    def generator(self) -> Generator:
        """Raises UsageError for a model that does something else; so do the next two."""
        if not isinstance(self.application, Generator):
            raise self._wrong_kind("writer")
        return self.application

    @property
    def translator(self) -> Translator:
        if not isinstance(self.application, Translator):
            raise self._wrong_kind("translator")
        return self.application

    @property
    def classifier(self) -> Classifier:
        if not isinstance(self.application, Classifier):
            raise self._wrong_kind("classifier")
        return self.application

    @cached_property
    def inspector(self) -> Inspector:
        """To be used inside `run` only, as everything that computes."""
        return Inspector(self.application)

    @cached_property
    def pooling(self) -> CompletionWorker:
        """Where a writer's completions are written together."""
        return CompletionWorker(self.generator.pool(self.limits.max_rows), self._worker)

    @cached_property
    def gathering(self) -> DynamicBatcher[Wording | None, Translation] | DynamicBatcher[Wording | None, Classification]:
        """Where texts that come at the same time are translated, or classified, together."""
        if self.kind == "translator":
            return DynamicBatcher(self._translate, self._worker)
        return DynamicBatcher(self._classify, self._worker)

    async def run(self, function: Callable[[], T]) -> T:
        """What a function returns that has the model for itself; between two tokens of what is being written."""
        with self._place(1):
            async with asyncio.timeout(self.limits.deadline_seconds):
                return await asyncio.wrap_future(self._worker.submit(function))

    async def build(self, function: Callable[[Check], T]) -> T:
        """Return what a function makes that may take long and needs no model, such as the automaton of a pattern.

        It runs on a thread of its own and calls its argument often. That ends it when nobody waits any more, and lets
        the model's thread, which shares Python's lock with it, go first.
        """
        left, seconds = Event(), self.limits.build_seconds
        with self._place(1):
            try:
                async with asyncio.timeout(self.limits.deadline_seconds):
                    work = self._builder.submit(lambda: function(_pace(left, monotonic() + seconds)))
                    return await asyncio.wrap_future(work)
            finally:
                left.set()

    async def write(self, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, News], None]:
        """The tokens of completions (made by `generator.requests`) as they come, each with the number of its request.

        Wrap it in `contextlib.aclosing`: closed before its end, it stops the work within a token.
        """
        until = asyncio.get_running_loop().time() + self.limits.deadline_seconds
        with self._place(len(requests)):
            async with aclosing(self.pooling.write(requests, until)) as news:
                async for each in news:
                    yield each

    async def translate(self, texts: Sequence[str], wording: Wording | None = None) -> list[Translation]:
        """Together with what others want translated in the same way."""
        _ = self.translator
        found = await self._gathered(texts, wording or Wording())
        return [each for each in found if isinstance(each, Translation)]

    async def classify(self, texts: Sequence[str]) -> list[Classification]:
        """Together with what others want classified."""
        _ = self.classifier
        found = await self._gathered(texts, None)
        return [each for each in found if isinstance(each, Classification)]

    def stop(self) -> None:
        """Refuse what comes from now on, with Stopping."""
        self.is_stopping = True

    def cut(self) -> None:
        """End what is under way, with Stopping."""
        error = Stopping("the server was stopped before this came to its end")
        if self.kind == "writer":
            self.pooling.cut(error)
        else:
            self.gathering.cut(error)

    def close(self) -> None:
        """Let the threads end."""
        for each in (self._worker, self._builder):
            each.shutdown(wait=False, cancel_futures=True)

    async def _gathered(
        self, texts: Sequence[str], wording: Wording | None
    ) -> Sequence[Translation] | Sequence[Classification]:
        with self._place(len(texts)):
            async with asyncio.timeout(self.limits.deadline_seconds):
                return await self.gathering.ask(wording, texts)

    def _translate(self, wording: Wording | None, texts: Sequence[str], waiting: Waiting) -> Sequence[Translation]:
        assert wording is not None
        with self.translator.watched(waiting.check, waiting.wants):
            return self.translator.translate(
                texts,
                beam_size=wording.beam_size,
                n_best=wording.n_best,
                length_penalty=wording.length_penalty,
                demands=wording.demands,
                prefixes=wording.prefix,
            )

    def _classify(self, wording: Wording | None, texts: Sequence[str], waiting: Waiting) -> Sequence[Classification]:
        waiting.check()
        return self.classifier.classify(texts)

    @contextmanager
    def _place(self, n: int) -> Iterator[None]:
        most = self.limits.max_waiting
        if self.is_stopping:
            raise Stopping("the server is about to end: try again later")
        if n > most:
            raise UsageError(f"{n} texts at once are more than the {most} that may wait here: send fewer")
        if self.n_inside + n > most:
            raise Busy(f"{self.n_inside} texts wait for {self.name} already, of at most {most}: try again later")
        self.n_inside += n
        try:
            yield
        finally:
            self.n_inside -= n

    def _wrong_kind(self, wanted: Kind) -> UsageError:
        return UsageError(f"{self.name} is a {self.kind}, and this is for a {wanted}")


def _pace(left: Event, until: float) -> Check:
    """Return a check that raises Unwanted once `left` is set, and UsageError after a time; it rests now and then."""
    began = monotonic()

    def check() -> None:
        nonlocal began
        if left.is_set():
            raise Unwanted("nobody waits for this")
        now = monotonic()
        if now > until:
            raise UsageError(
                "the pattern and the words take too long to prepare: use a simpler pattern, or fewer words"
            )
        if now - began > WORK_SECONDS:
            sleep(REST_SECONDS)
            began = monotonic()

    return check


class ModelRegistry:
    """Several of them by name; the first is the one that is meant where none is named."""

    def __init__(self, served: Sequence[ModelWorker]):
        if not served:
            raise UsageError("there is nothing to serve: name a run")
        self._served: Mapping[str, ModelWorker] = {each.name: each for each in served}
        if len(self._served) < len(served):
            raise UsageError("two runs have the same name: give one as NAME=FOLDER")

    def __iter__(self) -> Iterator[ModelWorker]:
        return iter(self._served.values())

    def get(self, name: str | None = None, kind: Kind | None = None) -> ModelWorker:
        """The one of this name, or else the first of this kind; raises UnknownModel, saying which there are."""
        if name is not None:
            if name not in self._served:
                raise UnknownModel(f"there is no model '{name[:80]}': there are {', '.join(self._served)}")
            return self._served[name]
        found = next((each for each in self if kind is None or each.kind == kind), None)
        if found is None:
            raise UnknownModel(f"no {kind} is served: there are {', '.join(self._served)}")
        return found

    @property
    def is_stopping(self) -> bool:
        return any(each.is_stopping for each in self)

    def close(self) -> None:
        """Let all threads end."""
        for each in self:
            each.close()
