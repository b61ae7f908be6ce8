"""What the page needs to classify, beside labels: how often the model is right that is so sure."""

from fastapi import APIRouter
from pydantic import BaseModel

from penwright.evaluation.classification import Calibration
from penwright.serving.errors import REFUSALS
from penwright.serving.fields import Name, TheShelf
from penwright.serving.model_worker import DAMAGE
from penwright.workflows.optimize import calibrate

router = APIRouter(prefix="/classifying", responses=REFUSALS)


class BinFacts(BaseModel):
    """Held-out texts whose label had a probability from `low` to `high`."""

    low: float
    high: float
    n: int
    confidence: float
    accuracy: float


class CalibrationFacts(BaseModel):
    """Of all held-out texts; without bins where they are gone, and `note` says why."""

    bins: list[BinFacts]
    n: int
    error: float | None
    note: str = ""


@router.get("/calibration")
async def calibration(shelf: TheShelf, model: Name | None = None) -> CalibrationFacts:
    """Measure how sure the model may be believed, when that is first asked for; keep it in the run folder."""
    served = shelf.get(model, "classifier")
    _ = served.classifier  # raises where it is something else

    def measured() -> Calibration | str:
        try:
            return calibrate(served.opened.run.folder, served.limits.device)
        except DAMAGE as error:
            return str(error)

    found = await served.run(measured)
    if isinstance(found, str):
        return CalibrationFacts(bins=[], n=0, error=None, note=found)
    return CalibrationFacts(bins=[BinFacts(**each._asdict()) for each in found.bins], n=found.n, error=found.error)
