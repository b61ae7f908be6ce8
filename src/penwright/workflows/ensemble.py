"""Ensembles: several models, trained on one corpus, are distilled into a single model."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote

from penwright.application import Application
from penwright.config import BUDGETS, Table, flatten, merge
from penwright.errors import Interrupted, PenwrightError, UsageError
from penwright.run.folder import CORPUS, Run, require_unused
from penwright.training.auto.capacity import DEFAULT_MINUTES
from penwright.training.observers import Observer
from penwright.training.trainer import Trainer
from penwright.workflows.load import load
from penwright.workflows.plan import Prepared, apply_changes, prepare, without_score_task
from penwright.workflows.resume import resume
from penwright.workflows.train import train

# A function that is called at the start of a run with its folder and its plan (None if the run is resumed). It
# returns the observers of the run.
Watch = Callable[[Path, Prepared | None], Sequence[Observer]]
MEMBERS_SHARE = 0.5  # fraction of a budget in minutes for the members; the student gets the rest


class _StopRequest(Observer):
    """An observer that notes whether training was asked to stop, even during the last evaluation of a run."""

    is_received = False

    def finished(self, trainer: Trainer) -> None:
        self.is_received = trainer.should_stop()


def train_ensemble(settings: Table, n_members: int, folder: Path, watch: Watch) -> Application:
    """Train the members in runs next to `folder`, then train the student in `folder` on their predictions.

    A budget in minutes is divided among the members and the student. Any other budget applies to each of them. After
    an interruption, call the function again with the same folder: finished runs are not trained again.
    """
    settings = without_score_task(settings)
    if settings.get("task") == "encode":
        raise UsageError("--ensemble is not possible for the task encode: encoders cannot learn from teachers")
    members = [folder.with_name(f"{folder.name}-member-{number}") for number in range(1, n_members + 1)]
    by_member = {member: member_settings(settings, n_members, number) for number, member in enumerate(members, 1)}
    _require_own(by_member, folder, _student_base(settings))
    if _is_begun(folder) and Run(folder).is_finished:
        return load(folder)
    stop = _StopRequest()
    try:
        for member in members:
            _train_or_resume(
                _like_first_member(by_member[member], members[0]), member, lambda *run: [*watch(*run), stop]
            )
            if stop.is_received:
                raise Interrupted("stopped")
        return _train_or_resume(student_settings(settings, members), folder, watch)
    except Interrupted:
        where = quote(str(folder))
        raise Interrupted(
            f"stopped; everything is saved. To continue, run the same command again with --run {where}"
        ) from None


def member_settings(settings: Table, n_members: int, number: int) -> Table:
    """Return the settings of member `number` (from 1). Members differ in their seeds, not in their held-out texts."""
    seed = settings.get("seed", 1)
    return merge(_with_shared_split(settings), {"seed": seed + number}, _minutes(settings, MEMBERS_SHARE / n_members))


def _like_first_member(settings: Table, first: Path) -> Table:
    """Return the settings with the first member's tokenizer, model size and batches, so that all are alike."""
    if not _is_begun(first):
        return settings
    recipe = Run.open(first).recipe
    size: Table = {"model": {"size": recipe.model.size}} if recipe.model.size else {}
    batch: Table = {"training": {"batch_tokens": recipe.training.batch_tokens}}
    return merge({"tokenizer": recipe.tokenizer.model_dump(exclude_none=True)}, size, batch, settings)


def minutes_for(n_members: int, member_minutes: float) -> float:
    """Return the budget in minutes of an ensemble whose members get `member_minutes` minutes each."""
    return n_members * member_minutes / MEMBERS_SHARE


def student_settings(settings: Table, members: Sequence[Path]) -> Table:
    """Return the settings of the student, whose context must not be longer than that of the members."""
    context = {"model": {"context_length": Run.open(members[0]).recipe.model.context_length}}
    teachers = {"distillation": {"teachers": [str(member) for member in members]}}
    return merge(context, _student_base(settings), teachers)


def _student_base(settings: Table) -> Table:
    # only the members have consistency: the student's soft targets are those of its teachers
    changes = {"training": {"consistency": 0.0}} if settings.get("training", {}).get("consistency") else {}
    return merge(_with_shared_split(settings), _minutes(settings, 1 - MEMBERS_SHARE), changes)


def _with_shared_split(settings: Table) -> Table:
    return merge({"data": {"seed": settings.get("seed", 1)}}, settings)


def _minutes(settings: Table, share: float) -> Table:
    training = settings.get("training", {})
    if any(name in training for name in BUDGETS if name != "minutes"):
        return {}
    return {"training": {"minutes": training.get("minutes", DEFAULT_MINUTES) * share}}


def _require_own(members: Mapping[Path, Table], folder: Path, student: Table) -> None:
    """Raise PenwrightError unless each folder is new or holds a run with these settings.

    Without this check, hours of training might be lost.
    """
    if _is_begun(folder) and _teacher_names(folder) != [member.name for member in members]:
        raise PenwrightError(
            f"{folder} holds a run that is not an ensemble of {len(members)} models. Choose a different --run"
        )
    for each, settings in {**members, folder: student}.items():
        if _is_begun(each):
            _require_settings(each, settings)
        else:
            require_unused(each)


def _require_settings(folder: Path, settings: Table) -> None:
    """Raise PenwrightError, naming the setting, if the run in this folder was started with other settings."""
    run = Run.open(folder).recipe
    # the stored recipe holds the chosen value instead of "auto"
    training = {key: value for key, value in settings.get("training", {}).items() if value != "auto"}
    requested, current = (
        flatten(each.model_dump()) for each in (apply_changes(run, {**settings, "training": training}, folder), run)
    )
    for name, value in requested.items():
        # if training restarted with a larger model, the recipe has only the remaining minutes
        if value != current.get(name) and name != "training.minutes":
            raise PenwrightError(
                f"{folder} was begun with a different {name}. Run the original command to continue it, "
                "or choose a different --run"
            )


def _teacher_names(folder: Path) -> list[str]:
    distillation = Run.open(folder).recipe.distillation
    return [Path(teacher).name for teacher in distillation.teachers] if distillation else []


def _is_begun(folder: Path) -> bool:
    return (folder / CORPUS).exists()  # corpus.json is the last file written before the first step


def _train_or_resume(settings: Table, folder: Path, watch: Watch) -> Application:
    if not _is_begun(folder):
        prepared = prepare(settings)
        return train(prepared, folder, watch(folder, prepared))
    return load(folder) if Run(folder).is_finished else resume(folder, {}, watch(folder, None))
