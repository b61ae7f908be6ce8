"""Ways to continue a run: resume it from disk, or join its training as a rank that follows rank 0."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory

from pydantic import TypeAdapter

from penwright.application import Application
from penwright.config import BUDGETS, Recipe, Table, merge, one_or_more, validate
from penwright.data.paths import relative_to_folder
from penwright.devices import advise_on_out_of_memory
from penwright.errors import Interrupted, PenwrightError, UsageError
from penwright.evaluation.scores import Score
from penwright.run.checkpoints import Checkpoint, Record
from penwright.run.folder import BASELINES, RECIPE, Run
from penwright.run.provenance import corpus_record, require_made_with
from penwright.run.records import METRICS, is_overfitted
from penwright.storage import require_writable_cache
from penwright.tasks import RunContext
from penwright.training.auto.machine import Machine, choose_compilation, choose_machine
from penwright.training.distributed.launcher import enter_rank
from penwright.training.distributed.ranks import join
from penwright.training.loop import Session
from penwright.training.observers import Observer, notify
from penwright.training.trainer import Trainer
from penwright.workflows.evaluate import with_resolved_paths
from penwright.workflows.load import OpenedRun, open_base
from penwright.workflows.make_trainer import has_extended, make_trainer, reopen
from penwright.workflows.new_head import fit_head
from penwright.workflows.plan import apply_changes
from penwright.workflows.train import add_linear, fit

CHANGEABLE = {"training", "data", "decoding"}  # tables of a recipe that may change when a run is resumed


def resume(folder: Path, changes: Table, observers: Sequence[Observer] = ()) -> Application:
    """Resume a run bit for bit. `changes` may extend the budget, or give new paths to the same data."""
    if set(changes) - CHANGEABLE:
        raise UsageError("a resumed run keeps its model: only [training], [data] and [decoding] can change")
    if "dictionary_hints" in changes.get("data", {}):
        raise UsageError("data.dictionary_hints cannot change when a run is resumed: it changes the training text")
    run = Run.open(folder)
    if run.checkpoints.all() and corpus_record(run).is_untrained:
        raise UsageError(f"{folder} was imported, so there is no training to resume. To train it further, use --from")
    require_no_adapters(run, f". Or train a copy of {folder}, or a new run with --from")
    with run.lock():
        return _resume(run, changes, observers)


def require_no_adapters(run: Run, alternative: str = "") -> None:
    """Raise PenwrightError if a LoRA run beside this one needs its weights, which are about to be deleted."""
    for path in sorted(run.real_folder.parent.glob(f"*/{RECIPE}")):
        other = Run(path.parent)
        base: OpenedRun | None = None
        with suppress(PenwrightError):  # a damaged run, or one whose base is gone
            recipe = other.recipe
            base = open_base(recipe, other) if recipe.lora and recipe.finetuning else None
        if base is not None and base.run.folder.resolve() == run.folder.resolve():
            raise PenwrightError(
                f"{other.folder} consists of adapters to the present weights of {run.folder}, which would be deleted. "
                f"Merge them first: penwright export {quote(str(other.folder))} --to penwright --output NEW_RUN, then "
                f"delete {other.folder}{alternative}"
            )


def _resume(run: Run, changes: Table, observers: Sequence[Observer]) -> Application:
    require_writable_cache()  # if the cache is not writable, fail before the text is read
    run.clear_stop_files()  # from now on, a stop request takes effect at the first step
    recipe = apply_changes(run.recipe, _as_stored(changes, run), run.folder)
    resolved_recipe = apply_changes(with_resolved_paths(run, run.recipe), changes, run.folder)
    run.warn_of_edits()
    machine = choose_machine(recipe.training)
    is_extended = any(name in changes.get("training", {}) for name in BUDGETS) and not has_extended(run)
    # without a checkpoint, start over with the same seed
    newest, warnings = run.checkpoints.newest() if run.checkpoints.all() else (None, [])
    context = _reopen(run, resolved_recipe, machine, newest, observers)
    trainer = make_trainer(context, machine, run, observers)
    for warning in warnings:
        notify(observers, "message", warning)
    if newest:
        trainer.load(newest)
        for notice in _changed_processes(newest.state().get("processes"), machine.ranks.size):
            notify(observers, "message", notice)
    run.delete_after(trainer.state.step)
    if is_extended and newest:
        best = run.checkpoints.best_step() or trainer.state.step
        if is_overfitted(run.records(METRICS), run.checkpoints.last_step(), best):
            advice = "more text or a higher model.dropout would help more than further training"
            notify(observers, "message", f"overfitting since step {best:,}: {advice}")
        trainer.budget.extend()
    if newest:
        _require_steps_left(run, trainer)
    if changes:
        run.save_recipe(recipe)
    notify(observers, "message", f"resuming from step {trainer.state.step:,}")
    if is_extended and "compile" not in changes.get("training", {}):
        _suggest_compiling(recipe, machine, observers)
    return fit(run, context, trainer, observers, _baselines(run) if newest else ())


def _baselines(run: Run) -> Sequence[Score]:
    """Return the baseline scores that were saved when the run began, or () if their file is missing or damaged."""
    try:
        return TypeAdapter(tuple[Score, ...]).validate_python(run.read_json(BASELINES).get("scores"))
    except (PenwrightError, ValueError):
        return ()


def _require_steps_left(run: Run, trainer: Trainer) -> None:
    """Raise PenwrightError if the run has spent its budget or stopped early."""
    state, folder = trainer.state, run.folder
    if state.stopped_early or (state.total_steps is not None and state.step >= state.total_steps):
        where = "stopped early, at" if state.stopped_early else "is already at"
        raise PenwrightError(
            f"{folder} {where} step {state.step:,} of {state.total_steps or state.step:,}. "
            f"To train longer, add a budget: penwright train --resume {quote(str(folder))} --minutes 5"
        )


def _changed_processes(before: int | None, now: int) -> Iterator[str]:
    """Yield a notice if a run is resumed with a different number of processes."""
    if before not in (None, now):
        processes = "1 process" if before == 1 else f"{before} processes"
        yield (
            f"this run was trained with {processes}; with {now}, dropout draws different random numbers. Results are "
            f"equivalent, but not bit for bit the same as with --processes {before}"
        )


def _reopen(
    run: Run, recipe: Recipe, machine: Machine, checkpoint: Checkpoint | None, observers: Sequence[Observer]
) -> RunContext:
    """Open the corpus and the files of the run. Raise PenwrightError if they have changed since training."""
    if checkpoint:
        require_made_with(checkpoint, run, recipe)
    context = reopen(run, recipe, machine, checkpoint, is_new=checkpoint is None)
    if recipe.task == "classify" and recipe.model.ngrams:
        add_linear(context, run, observers)
    if checkpoint is None and context.has_new_head:
        fit_head(context, observers)
    return context


def follow() -> bool:
    """Join the ranks. In rank 0, return False at once; in any other rank, train as rank 0 directs and return True."""
    ranks = join()
    enter_rank()
    if ranks.is_main:
        return False
    while (work := ranks.receive()) is not None:
        with suppress(Interrupted):  # rank 0 reports the interruption
            _follow_run(work)
    return True


def _follow_run(work: Record) -> None:
    """Train a run as a rank other than 0. The rank reads the text itself; everything else comes from rank 0."""
    recipe = validate(Recipe, work["recipe"], "the settings")
    with TemporaryDirectory() as folder:
        run = Run(Path(folder))
        for name, content in work["files"].items():
            (run.folder / Path(name).name).write_text(content, encoding="utf-8")
        machine = choose_machine(recipe.training)
        trainer = make_trainer(reopen(run, recipe, machine), machine, run, shared=work.get("shared"))
        if work["resumes"]:
            trainer.load(None)
        session = Session(run, trainer, list, list, [])
        if work["evaluates_first"]:
            session.evaluate_now()
        with advise_on_out_of_memory():
            session.fit()


def _suggest_compiling(recipe: Recipe, machine: Machine, observers: Sequence[Observer]) -> None:
    """Suggest compilation if an uncompiled run is resumed with a budget long enough for compilation to pay off."""
    seconds = 60 * (recipe.training.minutes or 0.0)
    has_adapters = recipe.lora is not None
    if recipe.training.compile == "off" and choose_compilation(machine.device, seconds, has_adapters=has_adapters)[0]:
        advice = "steps are not compiled; --set training.compile=on would save about a third of the time"
        notify(observers, "message", advice)


def _as_stored(changes: Table, run: Run) -> Table:
    """Return the changes as stored in the recipe, with paths relative to the folder in which the run was trained."""
    folder = run.real_folder
    origin = folder / (corpus_record(run).trained_from or os.path.relpath(Path.cwd(), folder))
    data = changes.get("data", {})
    parts = [part for part in ("train", "validation") if part in data]
    paths: Table = {part: [relative_to_folder(origin, path) for path in one_or_more(data[part])] for part in parts}
    if data.get("dictionary") is not None:
        paths["dictionary"] = relative_to_folder(origin, data["dictionary"])
    return merge(changes, {"data": paths}) if paths else changes
