"""The route of a classifier's calibration: how often it is right at each level of confidence."""

from fastapi import APIRouter
from pydantic import BaseModel

from penwright.evaluation.classification import Calibration
from penwright.serving.errors import REFUSALS
from penwright.serving.fields import Name, Registry
from penwright.serving.model_worker import DAMAGE
from penwright.workflows.optimize import calibrate

router = APIRouter(prefix="/classifying", responses=REFUSALS)


class CalibrationBin(BaseModel):
    """The held-out texts whose predicted label had a probability from `low` to `high`."""

    low: float
    high: float
    n: int
    confidence: float
    accuracy: float


class CalibrationFacts(BaseModel):
    """The calibration on all held-out texts. If they are gone, `bins` is empty and `note` says why."""

    bins: list[CalibrationBin]
    n: int
    error: float | None
    note: str = ""


@router.get("/calibration")
async def calibration(shelf: Registry, model: Name | None = None) -> CalibrationFacts:
    """Return the calibration of a classifier. The first request measures it and caches it in the run folder."""
    served = shelf.get(model, "classifier")
    _ = served.classifier  # raises UsageError for another kind of model

    def measured() -> Calibration | str:
        try:
            return calibrate(served.opened.run.folder, served.limits.device)
        except DAMAGE as error:
            return str(error)

    found = await served.run(measured)
    if isinstance(found, str):
        return CalibrationFacts(bins=[], n=0, error=None, note=found)
    return CalibrationFacts(
        bins=[CalibrationBin(**each._asdict()) for each in found.bins], n=found.n, error=found.error
    )
