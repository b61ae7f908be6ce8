"""Weights from early in training, and the route that compares their answers with those of the served weights."""

import asyncio
import warnings
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, Field

from penwright.application import Application
from penwright.classification.classifier import Classifier
from penwright.errors import UsageError
from penwright.generation.generator import Generator
from penwright.run.checkpoints import Checkpoint
from penwright.serving.errors import ERROR_RESPONSES
from penwright.serving.fields import Limits, ModelRequest, Name, Registry, Text, check_texts
from penwright.serving.model_worker import ModelWorker
from penwright.serving.run_records import finite_or_none
from penwright.translation.translator import Translator
from penwright.workflows.load import load

router = APIRouter(prefix="/early", responses=ERROR_RESPONSES)
T = TypeVar("T")
MAX_TOKENS = 200
_loading = asyncio.Lock()  # ensures that only one run's early weights are in memory at a time


class EarlyRequest(ModelRequest):
    """A text for the early weights and the served weights to continue, translate or classify."""

    model: Name | None = None
    text: Text
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 60


class EarlyAnswer(BaseModel):
    """An answer from the weights at one moment of training, or from the served weights."""

    step: int | None
    seconds: float | None  # seconds from the start of training; None if unknown, or for the served weights
    text: str
    is_served: bool = False


class EarlyAnswers(BaseModel):
    """The answers, oldest weights first. If there are no early weights, only the served weights answer."""

    answers: list[EarlyAnswer]


@router.post("")
async def early(body: EarlyRequest, registry: Registry, limits: Limits) -> EarlyAnswers:
    """Return the answers of the weights after 1, 10, 100, ... seconds of training, and of the served weights."""
    served = registry.get(body.model)
    check_texts([body.text], limits)
    answers = [await _early_answer(served, checkpoint, body) for checkpoint in served.opened.run.early()]
    now = await served.run(lambda: _answer(served.application, body))
    return EarlyAnswers(answers=[*answers, EarlyAnswer(step=served.step, seconds=None, text=now, is_served=True)])


async def run_early(served: ModelWorker, checkpoint: Checkpoint, function: Callable[[Application], T]) -> T:
    """Load early weights into a model, call a function with it, and return the result."""

    def work() -> T:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hides the warning that the model is not optimized
            application = load(checkpoint.folder, served.limits.device, compiles=not served.is_learning)
        return function(application)

    async with _loading, asyncio.timeout(served.limits.deadline_seconds):
        return await asyncio.to_thread(work)


def early_checkpoint(served: ModelWorker, step: int) -> Checkpoint:
    """Return the checkpoint of a run at an early step. Raises UsageError if the run did not keep it."""
    kept = {each.step: each for each in served.opened.run.early()}
    if step not in kept:
        steps = ", ".join(map(str, kept)) or "none"
        raise UsageError(f"{served.name} has no early weights of step {step}. Steps with early weights: {steps}")
    return kept[step]


async def _early_answer(served: ModelWorker, checkpoint: Checkpoint, body: EarlyRequest) -> EarlyAnswer:
    seconds = finite_or_none(checkpoint.state().get("seconds"))
    text = await run_early(served, checkpoint, lambda application: _answer(application, body))
    return EarlyAnswer(step=checkpoint.step, seconds=seconds, text=text)


def _answer(application: Application, body: EarlyRequest) -> str:
    """Return the answer without sampling, so that answers differ only because of the weights."""
    match application:
        case Generator():
            (text,) = application.generate(body.text, temperature=0, max_new_tokens=body.max_new_tokens)
            return text.text
        case Translator():
            (translation,) = application.translate([body.text], beam_size=1)
            return translation.text
        case Classifier():
            (found,) = application.classify([body.text])
            return f"{found.label} ({found.scores[found.label]:.0%})" if found.label is not None else ""
    raise TypeError(application)
