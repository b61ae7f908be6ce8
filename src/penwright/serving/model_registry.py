"""The registry of the served models."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from penwright.application import ModelKind
from penwright.errors import PenwrightError, UsageError
from penwright.serving.model_worker import ModelWorker

_in_use: dict[object, list[ModelWorker]] = {}  # the models of each request in progress
_request: ContextVar[object] = ContextVar("request", default=None)  # key of the current request in `_in_use`


class UnknownModel(PenwrightError):
    """No served model has this name or kind."""


class ModelRegistry:
    """The served models by name. The first is the default.

    With a `home` folder, the registry may be empty: models are added and removed as runs appear in that folder and
    disappear from it (see live.py).
    """

    def __init__(self, workers: Sequence[ModelWorker], home: Path | None = None):
        if not workers and home is None:
            raise UsageError("there is nothing to serve. Name a run folder")
        self.home = home
        self._workers: Mapping[str, ModelWorker] = {each.name: each for each in workers}
        if len(self._workers) < len(workers):
            raise UsageError("two runs have the same name. Rename one with NAME=FOLDER")

    def __iter__(self) -> Iterator[ModelWorker]:
        return iter(self._workers.values())

    def put(self, worker: ModelWorker) -> ModelWorker | None:
        """Add a model, and return the one that it replaces. Requests that began with the old model may finish."""
        before = self._workers.get(worker.name)
        # a new mapping, since a loop may be iterating over the old one
        self._workers = {**self._workers, worker.name: worker}
        return before

    def remove(self, name: str) -> ModelWorker:
        """Remove a model, and return it."""
        removed = self._workers[name]
        self._workers = {each.name: each for each in self if each is not removed}
        return removed

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders whose runs are visible: the parents of the served runs, or the home folder and its runs/."""
        if self.home is not None:
            return (self.home / "runs", self.home)
        return tuple(dict.fromkeys(worker.opened.run.folder.resolve().parent for worker in self))

    def get(self, name: str | None = None, kind: ModelKind | None = None) -> ModelWorker:
        """Return the model with this name or, without a name, the first model of this kind. Raises UnknownModel."""
        if name is not None:
            worker, missing = self._workers.get(name), f"there is no model '{name[:80]}'"
        else:
            worker = next((each for each in self if kind is None or each.kind == kind), None)
            missing = f"no {kind} is served"
        if worker is None:
            raise UnknownModel(f"{missing}. The models are {', '.join(self._workers)}")
        _in_use.get(_request.get(), []).append(worker)
        return worker

    def embedder(self, name: str | None = None) -> ModelWorker:
        """Return the model with this name, or the first that can embed texts. Raises UsageError for a translator."""
        found = self.get(name or next((each.name for each in self if each.kind != "translator"), None))
        if found.kind == "translator":
            raise UsageError(f"{found.name} is a translator, which cannot embed texts. Choose a different model")
        return found

    @property
    def is_stopping(self) -> bool:
        """Whether any of the models refuses new requests."""
        return any(each.is_stopping for each in self)

    def close(self) -> None:
        """Shut down the threads of all models."""
        for each in self:
            each.close()


@contextmanager
def holding_models() -> Iterator[None]:
    """Keep the models that a request gets from a registry in use until its end, also between two of its steps."""
    key = object()
    _in_use[key], token = [], _request.set(key)
    try:
        yield
    finally:
        _request.reset(token)
        del _in_use[key]


def is_in_use(worker: ModelWorker) -> bool:
    """Return whether a request in progress uses the model."""
    return worker.n_inside > 0 or any(worker in models for models in list(_in_use.values()))
