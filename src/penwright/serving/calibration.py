"""What the page needs to classify, beside labels: how often the model is right that is so sure."""

from fastapi import APIRouter
from pydantic import BaseModel

from penwright.errors import PenwrightError
from penwright.evaluation.classification import Calibration
from penwright.serving.errors import REFUSALS
from penwright.serving.fields import TheShelf
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
async def calibration(shelf: TheShelf, model: str | None = None) -> CalibrationFacts:
    """Measured when it is first asked for, and kept in the run folder."""
    served = shelf.get(model, "classifier")
    _ = served.classifier  # raises where it is something else

    def measured() -> Calibration:
        return calibrate(served.opened.run.folder, served.limits.device)

    try:
        found = await served.run(measured)
    except (PenwrightError, OSError) as error:
        return CalibrationFacts(bins=[], n=0, error=None, note=str(error))
    return CalibrationFacts(bins=[BinFacts(**each._asdict()) for each in found.bins], n=found.n, error=found.error)
