"""The routes of classifiers: the labels of texts, and the calibration of a classifier."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from penwright.evaluation.classification import Calibration
from penwright.serving.errors import ERROR_RESPONSES
from penwright.serving.fields import MAX_ENTRIES, Limits, ModelRequest, Name, Registry, Text, check_texts
from penwright.serving.model_worker import DAMAGE
from penwright.workflows.optimize import calibrate

router = APIRouter(responses=ERROR_RESPONSES)


class ClassifyRequest(ModelRequest):
    """A request to classify one or more texts."""

    texts: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_ENTRIES)]  # texts to classify
    model: Name | None = None  # name of a model; None for the first classifier


class LabelResult(BaseModel):
    """The label of a text, or null for a blank text."""

    label: str | None
    scores: dict[str, float]  # probability of each label, highest first
    warnings: list[str]
    labels: list[str] | None = None  # all labels of the text; None unless the model is multi-label
    score: float | None = None  # predicted number; None unless the model is a regression model


class Labels(BaseModel):
    """The results, in the order of the texts."""

    model: str
    results: list[LabelResult]


@router.post("/classify")
async def classify(body: ClassifyRequest, registry: Registry, limits: Limits) -> Labels:
    """Return the most likely label of each text and the probability of every label."""
    texts = [body.texts] if isinstance(body.texts, str) else body.texts
    check_texts(texts, limits)
    worker = registry.get(body.model, "classifier")
    classifications = await worker.classify(texts)
    results = [LabelResult.model_validate(asdict(each)) for each in classifications]
    return Labels(model=worker.name, results=results)


class CalibrationBin(BaseModel):
    """The held-out texts for which the probability of the predicted label is between `low` and `high`."""

    low: float
    high: float
    n: int
    confidence: float
    accuracy: float


class CalibrationFacts(BaseModel):
    """The calibration on all held-out texts. If the texts are missing, `bins` is empty, and `note` gives the reason."""

    bins: list[CalibrationBin]
    n: int
    error: float | None
    note: str = ""


@router.get("/classifying/calibration")
async def calibration(registry: Registry, model: Name | None = None) -> CalibrationFacts:
    """Return the calibration of a classifier. The first request measures it and caches it in the run folder."""
    worker = registry.get(model, "classifier")
    _ = worker.classifier  # raises UsageError unless the model is a classifier

    def measured() -> Calibration | str:
        try:
            return calibrate(worker.opened, worker.limits.device)
        except DAMAGE as error:
            return str(error)

    found = await worker.run(measured)
    if isinstance(found, str):
        return CalibrationFacts(bins=[], n=0, error=None, note=found)
    return CalibrationFacts(
        bins=[CalibrationBin(**each._asdict()) for each in found.bins], n=found.n, error=found.error
    )
