"""The routes that compare two texts, two models, or the served weights with those from early in training."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple, TypeVar

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from penwright.application import Application
from penwright.classification.classifier import Classifier
from penwright.errors import UsageError
from penwright.generation.generator import Generator
from penwright.inspection import Inspector
from penwright.inspection.comparison import compare, compare_heads
from penwright.inspection.views import compared, compared_heads
from penwright.run.checkpoints import Checkpoint
from penwright.run.records import finite_or_none
from penwright.serving.errors import ERROR_RESPONSES
from penwright.serving.fields import Limits, ModelRequest, Name, Registry, Text, check_lengths, check_texts
from penwright.serving.inspect import Format, answer_in, run_inspection
from penwright.serving.live import run_early
from penwright.serving.model_registry import ModelRegistry
from penwright.serving.model_worker import ModelWorker
from penwright.translation.translator import Translator
from penwright.views import View

router = APIRouter(responses=ERROR_RESPONSES)
T = TypeVar("T")
MAX_TOKENS = 200


class ComparisonRequest(ModelRequest):
    """A request to compare two texts or, if `other_model` is given, two models on the first text."""

    model: Name | None = None
    text: Text = ""
    target: Text | None = None  # a translation of `text`; None for the model's own translation
    other_model: Name | None = None
    other_text: Text = ""
    other_target: Text | None = None


class _Side(NamedTuple):
    worker: ModelWorker
    text: str
    target: str | None

    async def find(self, question: Callable[[Inspector, str, str | None], T]) -> tuple[T, tuple[str, ...]]:
        """Call `question` with the inspector and the text. Return its result, and warnings about omitted text."""

        def answer(inspector: Inspector) -> tuple[T, tuple[str, ...]]:
            return question(inspector, self.text, self.target), inspector.warnings(self.text, self.target)

        return await run_inspection(self.worker, answer)


class _Two(NamedTuple):
    first: _Side
    second: _Side
    names: tuple[str, str]


@router.post("/inspect/compared/{what}", response_class=Response)
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
    view, warnings = await (_tokens(two) if what == "tokens" else _heads(two))
    return await asyncio.to_thread(answer_in, format, view, tuple(dict.fromkeys(warnings)))


def _two(body: ComparisonRequest, registry: ModelRegistry) -> _Two:
    worker = registry.get(body.model)
    first = _Side(worker, body.text, body.target)
    if body.other_model is None:
        return _Two(first, _Side(worker, body.other_text, body.other_target), ("the text", "the other text"))
    other = registry.get(body.other_model)
    if other.kind != worker.kind:
        raise UsageError(
            f"{worker.name} is a {worker.kind} and {other.name} is a {other.kind}: they cannot be compared. "
            "Choose two models of the same kind"
        )
    return _Two(first, _Side(other, body.text, body.target), (worker.name, other.name))


async def _tokens(two: _Two) -> tuple[View, tuple[str, ...]]:
    one, warnings = await two.first.find(Inspector.token_nlls)
    other, more = await two.second.find(Inspector.token_nlls)
    # use a separate thread, since comparing very different texts takes seconds
    comparison = await asyncio.to_thread(compare, one, other)
    return compared(comparison, two.names), warnings + more


async def _heads(two: _Two) -> tuple[View, tuple[str, ...]]:
    one, warnings = await two.first.find(Inspector.head_statistics)
    other, more = await two.second.find(Inspector.head_statistics)
    return compared_heads(compare_heads(one, other), two.names), warnings + more


class EarlyRequest(ModelRequest):
    """A request to run one text through the early checkpoints of a run and through the served model."""

    model: Name | None = None
    text: Text
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 60


class EarlyAnswer(BaseModel):
    """An answer from the model with early weights, or with the served weights."""

    step: int | None
    seconds: float | None  # seconds from the start of training; None if unknown, or for the served weights
    text: str
    is_served: bool = False


class EarlyAnswers(BaseModel):
    """The answers, in order of training. If there are no early weights, there is only one answer."""

    answers: list[EarlyAnswer]


@router.post("/early")
async def early(body: EarlyRequest, registry: Registry, limits: Limits) -> EarlyAnswers:
    """Return the model's answers after 1, 10, 100, ... seconds of training, and the served model's answer."""
    worker = registry.get(body.model)
    check_texts([body.text], limits)
    answers = [await _early_answer(worker, checkpoint, body) for checkpoint in worker.opened.run.checkpoints.early()]
    now = await worker.run(lambda: _answer(worker.application, body))
    return EarlyAnswers(answers=[*answers, EarlyAnswer(step=worker.step, seconds=None, text=now, is_served=True)])


async def _early_answer(worker: ModelWorker, checkpoint: Checkpoint, body: EarlyRequest) -> EarlyAnswer:
    seconds = finite_or_none(checkpoint.state().get("seconds"))
    text = await run_early(worker, checkpoint, lambda application: _answer(application, body))
    return EarlyAnswer(step=checkpoint.step, seconds=seconds, text=text)


def _answer(application: Application, body: EarlyRequest) -> str:
    """Return the answer without sampling, so that answers differ only because of the weights."""
    match application:
        case Generator():
            n = body.max_new_tokens
            (text,) = application.generate(body.text, temperature=0, min_new_tokens=0, max_new_tokens=n)
            return text.text
        case Translator():
            (translation,) = application.translate([body.text], beam_size=1)
            return translation.text
        case Classifier():
            (classification,) = application.classify([body.text])
            return (
                f"{classification.label} ({classification.scores[classification.label]:.0%})"
                if classification.label is not None
                else ""
            )
    raise TypeError(application)
