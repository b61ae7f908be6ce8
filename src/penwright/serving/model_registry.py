"""The registry of the served models."""

from collections.abc import Iterator, Mapping, Sequence

from penwright.errors import PenwrightError, UsageError
from penwright.serving.model_worker import Kind, ModelWorker


class UnknownModel(PenwrightError):
    """No served model has this name or kind."""


class ModelRegistry:
    """The served models by name. The first is the default."""

    def __init__(self, served: Sequence[ModelWorker]):
        if not served:
            raise UsageError("there is nothing to serve. Name a run folder")
        self._served: Mapping[str, ModelWorker] = {each.name: each for each in served}
        if len(self._served) < len(served):
            raise UsageError("two runs have the same name. Give one as NAME=FOLDER")

    def __iter__(self) -> Iterator[ModelWorker]:
        return iter(self._served.values())

    def get(self, name: str | None = None, kind: Kind | None = None) -> ModelWorker:
        """Return the model of this name or, without a name, the first model of this kind. Raises UnknownModel."""
        if name is not None:
            if name not in self._served:
                raise UnknownModel(f"there is no model '{name[:80]}'. The models are {', '.join(self._served)}")
            return self._served[name]
        found = next((each for each in self if kind is None or each.kind == kind), None)
        if found is None:
            raise UnknownModel(f"no {kind} is served. The models are {', '.join(self._served)}")
        return found

    @property
    def is_stopping(self) -> bool:
        """True once any of the models refuses new requests."""
        return any(each.is_stopping for each in self)

    def close(self) -> None:
        """Shut down the threads of all models."""
        for each in self:
            each.close()
