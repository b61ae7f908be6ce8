"""An ensemble: several models of one corpus, whose knowledge goes into a single one that is used like any other."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote

from penwright.config import BUDGETS, Table, merge
from penwright.errors import Interrupted, PenwrightError
from penwright.run.folder import Run, require_unused
from penwright.tasks import Application
from penwright.training.auto.capacity import DEFAULT_MINUTES
from penwright.training.loop import Observer
from penwright.workflows.load import CORPUS, load
from penwright.workflows.plan import Prepared, prepare, require_settings
from penwright.workflows.train import resume, train

Watch = Callable[[Path, Prepared | None], Sequence[Observer]]
# ... tells of a run that begins, with its plan unless it goes on, and gives who observes it
MEMBERS_SHARE = 0.5  # of a budget in minutes; the model that learns from them has the rest


def train_ensemble(given: Table, n_members: int, folder: Path, watch: Watch) -> Application:
    """Train the members, each a run beside `folder`, then the one in `folder` that learns from them all.

    A budget in minutes is shared out; any other is everyone's. What an earlier, interrupted call for the same folder
    has done is not done again.
    """
    members = [folder.with_name(f"{folder.name}-member-{number}") for number in range(1, n_members + 1)]
    settings = {member: member_settings(given, n_members, number) for number, member in enumerate(members, 1)}
    _require_own(settings, folder, _of_the_student(given))
    if _is_begun(folder) and Run(folder).is_finished:
        return load(folder)
    try:
        for member in members:
            _train_or_go_on(_like_the_first(settings[member], members[0]), member, watch)
        return _train_or_go_on(student_settings(given, members), folder, watch)
    except Interrupted:
        where = quote(str(folder))
        raise Interrupted(
            f"stopped; everything is saved. Give the same command again, with --run {where}, and it goes on"
        ) from None


def member_settings(given: Table, n_members: int, number: int) -> Table:
    """Those of a member, counted from 1: its own seed, but the same text held out as for all others."""
    seed = given.get("seed", 1)
    return merge(_held_out_alike(given), {"seed": seed + number}, _minutes(given, MEMBERS_SHARE / n_members))


def _like_the_first(settings: Table, first: Path) -> Table:
    """With the pieces and the size of the first member: a pace that is timed anew might choose others."""
    if not _is_begun(first):
        return settings
    recipe = Run.open(first).recipe
    size: Table = {"model": {"size": recipe.model.size}} if recipe.model.size else {}
    return merge({"tokenizer": recipe.tokenizer.model_dump(exclude_none=True)}, size, settings)


def minutes_for(n_members: int, each: float) -> float:
    """The budget of an ensemble whose members are to have so many minutes each."""
    return n_members * each / MEMBERS_SHARE


def student_settings(given: Table, members: Sequence[Path]) -> Table:
    """Those of the model that learns from the members, and must not read further than they can."""
    context = {"model": {"context_length": Run.open(members[0]).recipe.model.context_length}}
    teachers = {"distillation": {"teachers": [str(member) for member in members]}}
    return merge(context, _of_the_student(given), teachers)


def _of_the_student(given: Table) -> Table:
    return merge(_held_out_alike(given), _minutes(given, 1 - MEMBERS_SHARE))


def _held_out_alike(given: Table) -> Table:
    return merge({"data": {"seed": given.get("seed", 1)}}, given)


def _minutes(given: Table, share: float) -> Table:
    training = given.get("training", {})
    if any(name in training for name in BUDGETS if name != "minutes"):
        return {}
    return {"training": {"minutes": training.get("minutes", DEFAULT_MINUTES) * share}}


def _require_own(members: Mapping[Path, Table], folder: Path, student: Table) -> None:
    """Before hours are spent: each folder is yet to be made, or was begun by the same call with these settings."""
    if _is_begun(folder) and _names_of_teachers(folder) != [member.name for member in members]:
        raise PenwrightError(f"{folder} holds a run that is no ensemble of {len(members)}: choose another --run")
    for each, settings in {**members, folder: student}.items():
        if _is_begun(each):
            require_settings(each, settings)
        else:
            require_unused(each)


def _names_of_teachers(folder: Path) -> list[str]:
    distillation = Run.open(folder).recipe.distillation
    return [Path(teacher).name for teacher in distillation.teachers] if distillation else []


def _is_begun(folder: Path) -> bool:
    return (folder / CORPUS).exists()  # the last that is written before the first step


def _train_or_go_on(settings: Table, folder: Path, watch: Watch) -> Application:
    if not _is_begun(folder):
        prepared = prepare(settings)
        return train(prepared, folder, watch(folder, prepared))
    return load(folder) if Run(folder).is_finished else resume(folder, {}, watch(folder, None))
