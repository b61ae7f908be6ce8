"""Runs on this machine: curves, samples, settings and alerts, also of those that are still being trained.

Only runs that stand beside those that are served can be seen; a client names one, and never gives a path.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from penwright.config import Task
from penwright.errors import PenwrightError
from penwright.run.folder import METRICS, SAMPLES, STEPS, Record, Run
from penwright.run.stop_file import is_to_stop, was_stopped, wish_stop
from penwright.serving.alerts import alerts
from penwright.serving.errors import REFUSALS, NotTraining
from penwright.serving.fields import TheShelf
from penwright.serving.model_worker import ModelRegistry, UnknownModel

router = APIRouter(prefix="/runs", responses=REFUSALS)
QUIET = 120.0  # seconds without a new line, after which a run counts as stopped
MOST_POINTS = 2000  # of a curve
COUNTERS = ("step", "seconds", "targets", "epoch", "skipped", "total_steps")
State = Literal["training", "stopping", "finished", "stopped"]
Column = list[float | None]
RunName = Annotated[str, Query(max_length=500)]


class RunFacts(BaseModel):
    """A run folder at a glance."""

    name: str
    task: Task
    state: State
    step: int
    total_steps: int | None
    seconds: float
    best_step: int | None
    scores: dict[str, float | None]  # of the last evaluation
    model: str | None  # its name among those that are served
    changed: float  # seconds since 1970


class Runs(BaseModel):
    """The newest first."""

    runs: list[RunFacts]


class AlertFacts(BaseModel):
    """What a person should look at."""

    kind: str
    step: int
    text: str


class Figures(BaseModel):
    """Curves by columns; a number that is not finite is null."""

    steps: dict[str, Column]  # step, seconds, targets, loss, gradient norm, learning rate, skipped, speed
    evaluations: dict[str, Column]  # step, seconds, targets and the scores
    alerts: list[AlertFacts]
    state: str


class SampleFacts(BaseModel):
    """What the model made of a prompt at a step."""

    step: int
    prompt: str
    completion: str
    reference: str = ""


class Samples(BaseModel):
    """In the order of their steps."""

    samples: list[SampleFacts]


class RunSettings(BaseModel):
    """All settings of a recipe by their whole names."""

    settings: dict[str, Any]


class ToStop(BaseModel):
    """Which run is to be stopped."""

    model_config = ConfigDict(strict=True, extra="forbid")

    run: Annotated[str, Field(max_length=500)]


class Stopped(BaseModel):
    """How it stands now: "stopping" until the step is taken and all is saved."""

    state: State


@router.get("")
def every_run(shelf: TheShelf) -> Runs:
    """Those that stand beside the served ones."""
    found = []
    for name, folder in folders(shelf).items():
        with suppress(PenwrightError, OSError):  # one that is just being made, or taken away
            found.append(_facts(name, Run.open(folder), shelf))
    return Runs(runs=sorted(found, key=lambda run: -run.changed))


@router.get("/figures")
def figures(shelf: TheShelf, run: RunName) -> Figures:
    """Curves of training and of evaluations, at most 2,000 points each, of which no spike is left out."""
    it = _run(shelf, run)
    steps, evaluations = it.records(STEPS), it.records(METRICS)
    return Figures(
        steps=_columns(thinned(_with_speed(steps), MOST_POINTS)),
        evaluations=_columns(thinned(evaluations, MOST_POINTS)),
        alerts=[AlertFacts(**alert._asdict()) for alert in alerts(steps, evaluations)],
        state=_state(it),
    )


@router.get("/samples")
def samples(shelf: TheShelf, run: RunName) -> Samples:
    """What was tried at each evaluation."""
    return Samples(samples=[SampleFacts(**each) for each in _run(shelf, run).records(SAMPLES)])


@router.get("/settings")
def settings(shelf: TheShelf, run: RunName) -> RunSettings:
    """The recipe."""
    return RunSettings(settings=_flat(_run(shelf, run).recipe.model_dump(mode="json")))


@router.post("/stop")
def stop(shelf: TheShelf, asked: ToStop) -> Stopped:
    """Have a run saved and its training ended after the step that it is at; it can be resumed."""
    run = _run(shelf, asked.run)
    state = _state(run)
    if state not in ("training", "stopping"):
        raise NotTraining(f"{asked.run} is not being trained: it has {state}")
    wish_stop(run)
    return Stopped(state=_state(run))


def folders(shelf: ModelRegistry) -> dict[str, Path]:
    """Runs by name; where two have the same one, that of their folder stands before it."""
    places = dict.fromkeys(served.opened.run.folder.resolve().parent for served in shelf)
    found: dict[str, Path] = {}
    for place in places:
        for path in sorted(place.glob("*/recipe.toml")):
            folder = path.parent
            found[folder.name if folder.name not in found else f"{place.name}/{folder.name}"] = folder
    return found


def thinned(records: Sequence[Record], most: int) -> Sequence[Record]:
    """At most so many, evenly spread: of each stretch the ones with the least and the greatest loss."""
    if len(records) <= most:
        return records
    kept = []
    n_parts = most // 2
    for part in range(n_parts):
        stretch = records[part * len(records) // n_parts : (part + 1) * len(records) // n_parts]
        ends = {id(each): each for each in (min(stretch, key=_loss), max(stretch, key=_loss))}
        kept += sorted(ends.values(), key=lambda record: record["step"])
    return kept


def _loss(record: Record) -> float:
    loss = record.get("loss")
    return loss if isinstance(loss, float) else 0.0


def _run(shelf: ModelRegistry, name: str) -> Run:
    found = folders(shelf)
    if name not in found:
        raise UnknownModel(f"there is no run '{name[:80]}' beside those that are served")
    return Run.open(found[name])


def _facts(name: str, run: Run, shelf: ModelRegistry) -> RunFacts:
    steps, evaluations = run.records(STEPS), run.records(METRICS)
    last: Record = {**(evaluations[-1] if evaluations else {}), **(steps[-1] if steps else {})}
    scores = {key: value for key, value in (evaluations[-1] if evaluations else {}).items() if key not in COUNTERS}
    folder = run.folder.resolve()
    return RunFacts(
        name=name,
        task=run.recipe.task,
        state=_state(run),
        step=int(last.get("step", 0)),
        total_steps=last.get("total_steps"),
        seconds=float(last.get("seconds", 0)),
        best_step=run.best_step(),
        scores={key: _finite(value) for key, value in scores.items()},
        model=next((each.name for each in shelf if each.opened.run.folder.resolve() == folder), None),
        changed=_changed(run),
    )


def _state(run: Run) -> State:
    with suppress(PenwrightError, KeyError, IndexError):
        state = run.checkpoints()[-1].state()
        spent = state["total_steps"] is not None and state["step"] >= state["total_steps"]
        if spent or state.get("stopped_early", False):
            return "finished"
    if was_stopped(run) or time.time() - _changed(run) >= QUIET:
        return "stopped"
    return "stopping" if is_to_stop(run) else "training"


def _changed(run: Run) -> float:
    """When a line was last written, or else the recipe."""
    paths = [run.folder / name for name in (STEPS, METRICS, "recipe.toml")]
    return max((path.stat().st_mtime for path in paths if path.is_file()), default=0.0)


def _with_speed(steps: Sequence[Record]) -> list[Record]:
    """With the targets a second since the record before; none where a run was taken up again."""
    before: Record = {"seconds": 0.0, "targets": 0}
    found = []
    for each in steps:
        seconds = each["seconds"] - before["seconds"]
        speed = (each["targets"] - before["targets"]) / seconds if seconds > 0 else None
        found.append({**each, "speed": speed})
        before = each
    return found


def _columns(records: Sequence[Record]) -> dict[str, Column]:
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [_finite(record.get(name)) for record in records] for name in names}


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def _flat(table: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        whole = f"{above}.{name}" if above else name
        found |= _flat(value, whole) if isinstance(value, dict) else {whole: value}
    return found
