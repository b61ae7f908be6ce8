"""Labels for texts."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from penwright.serving.errors import REFUSALS
from penwright.serving.fields import Text, TheSettings, TheShelf, check_texts

router = APIRouter(responses=REFUSALS)


class ToClassify(BaseModel):
    """One text, or several."""

    model_config = ConfigDict(strict=True, extra="forbid")

    texts: Text | Annotated[list[Text], Field(min_length=1)]
    model: Text | None = None


class LabelResult(BaseModel):
    """What a text was taken for."""

    label: str
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
