"""The route that classifies texts."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from penwright.serving.errors import REFUSALS
from penwright.serving.fields import MOST_ENTRIES, Limits, ModelRequest, Name, Registry, Text, check_texts

router = APIRouter(responses=REFUSALS)


class ToClassify(ModelRequest):
    """A request to classify one or more texts."""

    texts: Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_ENTRIES)]  # texts to classify
    model: Name | None = None  # None: the first classifier


class LabelResult(BaseModel):
    """The label of a text, or null for a blank text."""

    label: str | None
    scores: dict[str, float]  # the probability of each label, highest first
    warnings: list[str]


class Labels(BaseModel):
    """The results, in the order of the texts."""

    model: str
    results: list[LabelResult]


@router.post("/classify")
async def classify(asked: ToClassify, shelf: Registry, limits: Limits) -> Labels:
    """Return the most likely label of each text and the probability of every label."""
    texts = [asked.texts] if isinstance(asked.texts, str) else asked.texts
    check_texts(texts, limits)
    served = shelf.get(asked.model, "classifier")
    found = await served.classify(texts)
    results = [LabelResult(label=each.label, scores=dict(each.scores), warnings=list(each.warnings)) for each in found]
    return Labels(model=served.name, results=results)
