"""Labels for texts."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from penwright.serving.errors import REFUSALS
from penwright.serving.fields import MOST_ENTRIES, ModelRequest, Name, Text, TheSettings, TheShelf, check_texts

router = APIRouter(responses=REFUSALS)


class ToClassify(ModelRequest):
    """One text, or several."""

    texts: Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_ENTRIES)]
    model: Name | None = None


class LabelResult(BaseModel):
    """The label of a text; null for a blank text."""

    label: str | None
    scores: dict[str, float]  # the probability of each label, likeliest first
    warnings: list[str]


class Labels(BaseModel):
    """In the order of the texts."""

    model: str
    results: list[LabelResult]


@router.post("/classify")
async def classify(asked: ToClassify, shelf: TheShelf, limits: TheSettings) -> Labels:
    """The likeliest label of each text, with the probability of every one."""
    texts = [asked.texts] if isinstance(asked.texts, str) else asked.texts
    check_texts(texts, limits)
    served = shelf.get(asked.model, "classifier")
    found = await served.classify(texts)
    results = [LabelResult(label=each.label, scores=dict(each.scores), warnings=list(each.warnings)) for each in found]
    return Labels(model=served.name, results=results)
