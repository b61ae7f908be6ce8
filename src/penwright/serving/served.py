"""A run as a server has it: whatever computes with its model does so in one thread of its own."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from penwright.decoding import Classifier, Generator, Translator
from penwright.errors import PenwrightError, UsageError
from penwright.inspection import Inspector
from penwright.tasks import Application
from penwright.using import Opened, load, opened

Kind = Literal["writer", "translator", "classifier"]
T = TypeVar("T")


class UnknownModel(PenwrightError):
    """No model of this name is served."""


class Served:
    """One run."""

    def __init__(self, name: str, it: Opened, application: Application):
        self.name, self.opened, self.application = name, it, application
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"penwright-{name}")

    @classmethod
    def load(cls, folder: Path, name: str | None = None) -> "Served":
        """A run folder, under its own name or another."""
        return cls(name or folder.resolve().name, opened(folder), load(folder))

    @property
    def kind(self) -> Kind:
        match self.application:
            case Generator():
                return "writer"
            case Translator():
                return "translator"
            case Classifier():
                return "classifier"

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

    async def run(self, function: Callable[[], T]) -> T:
        """What a function returns that has the model for itself; between two tokens of what is being written."""
        return await asyncio.wrap_future(self._worker.submit(function))

    # To come in minutes: `write(request: Request) -> AsyncIterator[News]`, of decoding/pool.py. A Request has prompt
    # tokens, settings, number (which of n), and n_likely; a News is a token: id, log_prob, text that can be shown now,
    # finish or None, and, for n_likely > 0, rank, entropy and the likeliest tokens (id, log_prob, chance after the
    # settings). Closing the iterator, as a client does that goes away, stops the work within a token.

    def close(self) -> None:
        """Let the thread end."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _wrong_kind(self, wanted: Kind) -> UsageError:
        return UsageError(f"{self.name} is a {self.kind}, and this is for a {wanted}")


class Shelf:
    """Several of them by name; the first is the one that is meant where none is named."""

    def __init__(self, served: Sequence[Served]):
        if not served:
            raise UsageError("there is nothing to serve: name a run")
        self._served: Mapping[str, Served] = {each.name: each for each in served}
        if len(self._served) < len(served):
            raise UsageError("two runs have the same name: give one as NAME=FOLDER")

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def get(self, name: str | None = None, kind: Kind | None = None) -> Served:
        """The one of this name, or else the first of this kind; raises UnknownModel, saying which there are."""
        if name is not None:
            if name not in self._served:
                raise UnknownModel(f"there is no model '{name[:80]}': there are {', '.join(self._served)}")
            return self._served[name]
        found = next((each for each in self if kind is None or each.kind == kind), None)
        if found is None:
            raise UnknownModel(f"no {kind} is served: there are {', '.join(self._served)}")
        return found

    def close(self) -> None:
        """Let all threads end."""
        for each in self:
            each.close()
