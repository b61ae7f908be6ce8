"""The routes for the runs on this machine: curves, samples, settings and alerts, even during training.

Only runs in the parent folders of the served runs are visible. A client sends the name of a run, never a path.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from penwright.config import Task, flatten
from penwright.errors import PenwrightError
from penwright.run.checkpoints import Record
from penwright.run.folder import RECIPE, Run
from penwright.run.records import METRICS, SAMPLES, STEPS, finite_or_none
from penwright.serving.errors import ERROR_RESPONSES, NotTraining
from penwright.serving.fields import ModelRequest, Name, Registry
from penwright.serving.model_registry import ModelRegistry, UnknownModel
from penwright.serving.model_worker import DAMAGE
from penwright.serving.run_records import alerts, end_of, records_of
from penwright.storage import is_temporary

router = APIRouter(prefix="/runs", responses=ERROR_RESPONSES)
QUIET = 120.0  # a run counts as stopped if its logs get no new line for this many seconds
MAX_POINTS = 2000  # maximum number of points of a curve
COUNTERS = ("step", "seconds", "targets", "epoch", "skipped", "total_steps")
State = Literal["training", "stopping", "finished", "stopped"]
LIVE = ("training", "stopping")
Column = list[float | None]
RunName = Annotated[str, Query(max_length=500)]


class RunFacts(BaseModel):
    """A summary of a run folder."""

    name: str
    task: Task | None  # task of the run; None if the run cannot be read
    state: State
    step: int
    total_steps: int | None
    seconds: float
    best_step: int | None
    scores: dict[str, float | None]  # scores of the last evaluation
    model: str | None  # name of the served model, if the run is served
    model_step: int | None = None  # training step of the served model
    changed: float  # time of the last modification, as a Unix timestamp
    problem: str = ""  # description of damage to the run folder; "" if there is none


class Runs(BaseModel):
    """The visible runs, newest first."""

    runs: list[RunFacts]


class AlertFacts(BaseModel):
    """An alert about a training run."""

    kind: str
    step: int
    text: str


class Figures(BaseModel):
    """Curves as columns. Numbers that are not finite are null."""

    steps: dict[
        str, Column
    ]  # columns: step, seconds, target tokens, loss, gradient norm, learning rate, skipped, speed
    evaluations: dict[str, Column]  # columns: step, seconds, target tokens and the scores
    alerts: list[AlertFacts]
    state: str
    problem: str = ""  # description of damage to the run folder; "" if there is none


class SampleFacts(BaseModel):
    """The completion of a prompt at a training step."""

    step: int
    prompt: str
    completion: str
    reference: str = ""


class Samples(BaseModel):
    """The samples of a run, ordered by step."""

    samples: list[SampleFacts]


class RunSettings(BaseModel):
    """All settings of a recipe, keyed by their full names."""

    settings: dict[str, Any]


class StopRequest(ModelRequest):
    """A request to stop the training of a run."""

    run: Name


class Stopped(BaseModel):
    """The state of a run after a request to stop: "stopping" until the current step is finished and saved."""

    state: State


@router.get("")
def every_run(registry: Registry) -> Runs:
    """List the visible runs. A damaged run is listed, too, with a description of the problem."""
    runs = [
        facts for name, folder in folders(registry).items() if (facts := _facts(name, folder, registry)) is not None
    ]
    return Runs(runs=sorted(runs, key=lambda run: -run.changed))


@router.get("/figures")
def figures(registry: Registry, run: RunName) -> Figures:
    """Return the curves of training and evaluation, at most 2,000 points each. Extremes of the loss are kept."""
    opened = run_of(registry, run)
    paths = [opened.folder / name for name in (STEPS, METRICS)]
    versions = []
    for path in paths:
        with suppress(OSError):  # the run has no such file, or is being deleted
            status = path.stat()
            versions.append((status.st_size, status.st_mtime_ns))
    return _figures(opened.folder, tuple(versions)).model_copy(update={"state": state_of(opened)})


@lru_cache(maxsize=16)
def _figures(folder: Path, versions: tuple[tuple[int, int], ...]) -> Figures:
    """Return the curves without the state. `versions`, the sizes and modification times of the logs, is a cache key."""
    steps, evaluations = (records_of(Run(folder), name) for name in (STEPS, METRICS))
    return Figures(
        steps=_columns(downsample(_with_speed(steps.lines), MAX_POINTS)),
        evaluations=_columns(downsample(evaluations.lines, MAX_POINTS)),
        alerts=[AlertFacts(**alert._asdict()) for alert in alerts(steps.lines, evaluations.lines)],
        state="",
        problem="; ".join(filter(None, (steps.problem, evaluations.problem))),
    )


@router.get("/samples")
def samples(registry: Registry, run: RunName) -> Samples:
    """Return the samples of each evaluation."""
    lines = records_of(run_of(registry, run), SAMPLES).lines
    known = ({**each, "reference": str(each.get("reference") or "")} for each in lines)
    return Samples(samples=[SampleFacts.model_validate(each) for each in known])


@router.get("/settings")
def settings(registry: Registry, run: RunName) -> RunSettings:
    """Return the settings of a run's recipe."""
    return RunSettings(settings=flatten(run_of(registry, run).recipe.model_dump(mode="json")))


@router.post("/stop")
def stop(registry: Registry, body: StopRequest) -> Stopped:
    """Stop the training of a run after its current step. The run is saved and can be resumed."""
    run = run_of(registry, body.run)
    state = state_of(run)
    if state not in LIVE:
        raise NotTraining(f"{body.run} is not being trained: it has {state}")
    run.request_stop()
    return Stopped(state=state_of(run))


def folders(registry: ModelRegistry) -> dict[str, Path]:
    """Return the run folders by name. Duplicate names get the name of the parent folder as a prefix."""
    by_name: dict[str, Path] = {}
    for location in registry.folders:
        for path in sorted(location.glob("*/recipe.toml")):
            folder = path.parent
            if is_temporary(folder):  # a run that is being imported or deleted
                continue
            name = readable(folder)
            by_name[name if name not in by_name else f"{readable(location)}/{name}"] = folder
    return by_name


def readable(folder: Path) -> str:
    """Return the name of a folder as text. Bytes that are not UTF-8 are replaced."""
    return os.fsencode(folder.name).decode("utf-8", "replace")


def downsample(records: Sequence[Record], most: int) -> Sequence[Record]:
    """Return at most `most` records: those with the lowest and the highest loss of each interval.

    The intervals have about equal numbers of records.
    """
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
    return finite_or_none(record.get("loss")) or 0.0


def run_of(registry: ModelRegistry, name: str) -> Run:
    """Open a visible run by its name. Raises UnknownModel if there is none."""
    by_name = folders(registry)
    if name not in by_name:
        raise UnknownModel(f"this server has no run '{name[:80]}'")
    return Run.open(by_name[name])


def _facts(name: str, folder: Path, registry: ModelRegistry) -> RunFacts | None:
    """Return the summary of a run, or None if its folder has just been deleted."""
    worker = next((each for each in registry if each.opened.run.folder.resolve() == folder.resolve()), None)
    facts = RunFacts(
        name=name,
        task=None,
        state="stopped",
        step=0,
        total_steps=None,
        seconds=0.0,
        best_step=None,
        scores={},
        model=worker and worker.name,
        model_step=worker and worker.step,
        changed=0.0,
    )
    try:
        return facts.model_copy(update=_known(Run.open(folder)))
    except DAMAGE as error:
        description = str(error) if isinstance(error, PenwrightError) else f"{name} is damaged: {error}"
        return facts.model_copy(update={"problem": description[:300]}) if folder.is_dir() else None


def _known(run: Run) -> Record:
    steps, evaluations = (end_of(run, name) for name in (STEPS, METRICS))
    evaluated, last = evaluations.last, {**evaluations.last, **steps.last}
    total = last.get("total_steps")
    return {
        "task": run.recipe.task,
        "state": state_of(run),
        "step": int(last.get("step", 0)),
        "total_steps": total if isinstance(total, int) else None,
        "seconds": finite_or_none(last.get("seconds")) or 0.0,
        "best_step": run.checkpoints.best_step(),
        "scores": {key: finite_or_none(value) for key, value in evaluated.items() if key not in COUNTERS},
        "changed": _changed(run),
        "problem": "; ".join(filter(None, (steps.problem, evaluations.problem))),
    }


def state_of(run: Run) -> State:
    """Return the state of a run. Only its files are checked, since a different process may be training it."""
    with suppress(*DAMAGE):
        saved, last = run.checkpoints.all()[-1:], end_of(run, STEPS).last
        if saved and saved[0].counters().is_finished and last.get("step", 0) <= saved[0].step:  # not trained further
            return "finished"
    if run.was_stopped or time.time() - _changed(run) >= QUIET:
        return "stopped"
    return "stopping" if run.is_stop_requested else "training"


def _changed(run: Run) -> float:
    """Return the latest modification time of the logs and the recipe, as a Unix timestamp."""
    paths = [run.folder / name for name in (STEPS, METRICS, RECIPE)]
    return max((path.stat().st_mtime for path in paths if path.is_file()), default=0.0)


def _with_speed(steps: Sequence[Record]) -> list[Record]:
    """Add `speed` to the records: the target tokens per second since the previous record.

    `speed` is None if the clock did not advance, for example after a run was resumed.
    """
    before: Record = {"seconds": 0.0, "targets": 0}
    records = []
    for each in steps:
        seconds = each["seconds"] - before["seconds"]
        speed = (each["targets"] - before["targets"]) / seconds if seconds > 0 else None
        records.append({**each, "speed": speed})
        before = each
    return records


def _columns(records: Sequence[Record]) -> dict[str, Column]:
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [finite_or_none(record.get(name)) for record in records] for name in names}
