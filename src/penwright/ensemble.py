"""An ensemble: several models of one corpus, whose knowledge goes into a single one that is used like any other."""

from collections.abc import Sequence
from pathlib import Path

from penwright.config import BUDGETS, Table, merge
from penwright.errors import Interrupted
from penwright.making import prepare, resume, train
from penwright.runs import Run
from penwright.tasks import Application
from penwright.training.planning import DEFAULT_MINUTES
from penwright.training.session import Observer
from penwright.using import load

MEMBERS_SHARE = 0.5  # of a budget in minutes; the model that learns from them has the rest


def train_ensemble(given: Table, n_members: int, folder: Path, observers: Sequence[Observer] = ()) -> Application:
    """Train the members, each a run beside `folder`, then the one in `folder` that learns from them all.

    A budget in minutes is shared out; any other is everyone's. What an earlier, interrupted call with the same
    arguments has done is not done again.
    """
    members = [folder.with_name(f"{folder.name}-member-{number}") for number in range(1, n_members + 1)]
    try:
        for number, member in enumerate(members, 1):
            _say(observers, f"member {number} of {n_members}: {member}")
            _train_or_go_on(member_settings(given, n_members, number), member, observers)
        _say(observers, f"now one model learns from all {n_members}: {folder}")
        student = _train_or_go_on(student_settings(given, members), folder, observers)
    except Interrupted:
        raise Interrupted("stopped; everything is saved. Give the same command again, and it goes on") from None
    for run in (*members, folder):
        _say(observers, f"best of {run}: {_best_score(Run.open(run))}")
    return student


def member_settings(given: Table, n_members: int, number: int) -> Table:
    """Those of a member, counted from 1: its own seed, but the same text held out as for all others."""
    seed = given.get("seed", 1)
    return merge(_held_out_alike(given), {"seed": seed + number}, _minutes(given, MEMBERS_SHARE / n_members))


def student_settings(given: Table, members: Sequence[Path]) -> Table:
    """Those of the model that learns from the members."""
    teachers = {"distillation": {"teachers": [str(member) for member in members]}}
    return merge(_held_out_alike(given), teachers, _minutes(given, 1 - MEMBERS_SHARE))


def _held_out_alike(given: Table) -> Table:
    return merge({"data": {"seed": given.get("seed", 1)}}, given)


def _minutes(given: Table, share: float) -> Table:
    training = given.get("training", {})
    if any(name in training for name in BUDGETS if name != "minutes"):
        return {}
    return {"training": {"minutes": training.get("minutes", DEFAULT_MINUTES) * share}}


def _train_or_go_on(settings: Table, folder: Path, observers: Sequence[Observer]) -> Application:
    if not (folder / "recipe.toml").is_file():
        return train(prepare(settings), folder, observers)
    return load(folder) if Run(folder).is_finished else resume(folder, {}, observers)


def _best_score(run: Run) -> str:
    """What its best checkpoint scored, of the kind that ranks."""
    step = run.best_step()
    names = ("step", "seconds", "epoch", "targets", "skipped")
    records = [record for record in run.records("metrics.jsonl") if record["step"] == step]
    scores = [f"{name} {value:.4g}" for record in records[-1:] for name, value in record.items() if name not in names]
    return scores[0] if scores else "never measured"


def _say(observers: Sequence[Observer], text: str) -> None:
    for observer in observers:
        observer.said(text)
