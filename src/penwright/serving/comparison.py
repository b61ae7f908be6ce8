"""The route that compares one model's computations on two texts, or two models' computations on one text."""

import asyncio
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

from fastapi import APIRouter, Response

from penwright.errors import UsageError
from penwright.inspection import Inspector
from penwright.inspection.comparison import compare, compare_heads
from penwright.inspection.views import compared, compared_heads
from penwright.serving.errors import ERROR_RESPONSES
from penwright.serving.fields import Limits, ModelRequest, Name, Registry, Text, check_lengths
from penwright.serving.inspect import Format, answer_in
from penwright.serving.model_registry import ModelRegistry
from penwright.serving.model_worker import ModelWorker
from penwright.views import View

router = APIRouter(prefix="/inspect/compared", responses=ERROR_RESPONSES)
T = TypeVar("T")


class ComparisonRequest(ModelRequest):
    """A request to compare two texts or, if `other_model` is given, two models on the first text."""

    model: Name | None = None
    text: Text = ""
    target: Text | None = None  # a translation of `text`; None for the model's own translation
    other_model: Name | None = None
    other_text: Text = ""
    other_target: Text | None = None


class _Side(NamedTuple):
    served: ModelWorker
    text: str
    target: str | None

    async def find(self, question: Callable[[Inspector, str, str | None], T]) -> tuple[T, tuple[str, ...]]:
        """Call `question` with the inspector and the text. Return its result, and warnings about omitted text."""

        def answer() -> tuple[T, tuple[str, ...]]:
            insp = self.served.inspector
            return question(insp, self.text, self.target), insp.warnings(self.text, self.target)

        return await self.served.run(answer)


class _Two(NamedTuple):
    first: _Side
    second: _Side
    names: tuple[str, str]


@router.post("/{what}", response_class=Response)
async def compare_two(
    what: Literal["tokens", "heads"],
    body: ComparisonRequest,
    registry: Registry,
    limits: Limits,
    format: Format = "bytes",
) -> Response:
    """Compare the surprisal of each token (or label), or the statistics of each head."""
    check_lengths([body.text, body.target, body.other_text, body.other_target], limits)
    two = _two(body, registry)
    found, warnings = await (_tokens(two) if what == "tokens" else _heads(two))
    return await asyncio.to_thread(answer_in, format, found, tuple(dict.fromkeys(warnings)))


def _two(body: ComparisonRequest, registry: ModelRegistry) -> _Two:
    served = registry.get(body.model)
    first = _Side(served, body.text, body.target)
    if body.other_model is None:
        return _Two(first, _Side(served, body.other_text, body.other_target), ("the text", "the other text"))
    other = registry.get(body.other_model)
    if other.kind != served.kind:
        raise UsageError(
            f"{served.name} is a {served.kind} and {other.name} is a {other.kind}: they cannot be compared. "
            "Choose two models of the same kind"
        )
    return _Two(first, _Side(other, body.text, body.target), (served.name, other.name))


async def _tokens(two: _Two) -> tuple[View, tuple[str, ...]]:
    one, warnings = await two.first.find(Inspector.surprises)
    other, more = await two.second.find(Inspector.surprises)
    # on a thread, since comparing very different texts takes seconds
    found = await asyncio.to_thread(compare, one, other)
    return compared(found, two.names), warnings + more


async def _heads(two: _Two) -> tuple[View, tuple[str, ...]]:
    one, warnings = await two.first.find(Inspector.head_statistics)
    other, more = await two.second.find(Inspector.head_statistics)
    return compared_heads(compare_heads(one, other), two.names), warnings + more
