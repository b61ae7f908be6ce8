"""penwright train: from a text to a trained model."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penwright.cli.options import (
    AnySetting,
    Data,
    Epochs,
    Json,
    Minutes,
    RecipeFile,
    SizeName,
    Steps,
    TaskName,
    Validation,
    plan_as_record,
    plan_in_words,
    prepare_by_asking,
    print_json,
    settings_of,
    training_flags,
    warn,
    without_none,
)
from penwright.errors import UsageError

if TYPE_CHECKING:
    from penwright.config import Table
    from penwright.training.loop import Observer
    from penwright.workflows.api import Prepared

NAME = "train"
OF_THE_RUN = "The run"
OF_THE_BUDGET = "How long"
LONGEST_EXAMPLE = 80  # characters, so that it stays on a line


def command(
    data: Data = None,
    task: TaskName = None,
    run: Annotated[Path | None, typer.Option(help="Where to keep the run; runs/NAME if not given.")] = None,
    recipe: RecipeFile = None,
    minutes: Minutes = None,
    steps: Steps = None,
    epochs: Epochs = None,
    size: SizeName = None,
    validation: Validation = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    set_: AnySetting = None,
    ensemble: Annotated[
        int | None, typer.Option(help="Train so many models, and one that learns from them all.", min=2, max=64)
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run; a budget given is a further one.")] = None,
    processes: Annotated[
        int | None, typer.Option(help="Train with so many processes: one for each GPU, or the CPU shared.", min=1)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan with its reasons, and stop.")] = False,
    json: Json = False,
) -> None:
    """Train a model on your own text.

    Everything not asked for is chosen from the text and the machine, and printed with its reason.
    Ctrl+C saves; --resume goes on from there, bit for bit.
    """
    flags = {
        **training_flags(data, validation, task, size, minutes=minutes, steps=steps, epochs=epochs),
        **without_none({"seed": seed}),
    }
    settings = settings_of(recipe, flags, set_ or [])
    if resume is not None and ensemble is not None:
        raise UsageError("an ensemble goes on when its own command is given again: leave --resume out")

    from penwright.training.launcher import guard_this_rank, is_launched, launch
    from penwright.training.signals import treat_as_ctrl_c

    treat_as_ctrl_c()
    if processes is not None and processes > 1 and not is_launched():
        raise typer.Exit(launch(processes, ["penwright", *sys.argv[1:]]))
    guard_this_rank()

    from penwright.workflows import api

    if api.follow():
        return
    if resume is not None:
        _resume(resume, settings, json)
        return

    from penwright.run.folder import require_unused

    if run is not None and ensemble is None and not dry_run:
        require_unused(run)  # before any work is done
    settings, prepared = prepare_by_asking(settings)
    folder = run or api.new_run_folder(prepared.plan.recipe)
    if ensemble is not None:
        _train_ensemble(settings, ensemble, folder, json, dry_run)
    else:
        _show_plan(prepared, folder, json, dry_run)
        if not dry_run:
            api.train(prepared, folder, _observers(folder, json))
    if not dry_run:
        _finish(folder, prepared.plan.recipe.task, json)


def _train_ensemble(settings: "Table", n_members: int, folder: Path, json: bool, dry_run: bool) -> None:
    from penwright.workflows import api

    told = False

    def watch(run: Path, prepared: "Prepared | None") -> "list[Observer]":
        nonlocal told
        if prepared is not None:
            _show_plan(prepared, run, json, False)
            if not told:
                _warn_of_short_members(prepared, n_members)
                told = True
        return _observers(run, json)

    if dry_run:
        member = api.prepare(api.member_settings(settings, n_members, 1))
        _show_plan(member, folder, json, True)
        _warn_of_short_members(member, n_members)
    else:
        api.train_ensemble(settings, n_members, folder, watch)


def _warn_of_short_members(member: "Prepared", n_members: int) -> None:
    from penwright.training.auto.forecast import SATURATION
    from penwright.workflows import api

    plan, minutes = member.plan, member.plan.recipe.training.minutes
    if plan.recipe.distillation is not None or minutes is None:
        return
    if plan.minutes_wanted is not None:
        warn(
            f"each of the {n_members} members has {minutes:.2g} minutes, in which it learns too "
            f"little to teach anything: give --minutes {api.minutes_for(n_members, plan.minutes_wanted):.2g} or more, "
            "or leave --ensemble out"
        )
    elif plan.recipe.task == "generate" and plan.epochs < SATURATION:  # of which it was measured
        enough = api.minutes_for(n_members, minutes * SATURATION / plan.epochs)
        warn(
            f"each of the {n_members} members reads the text about {plan.epochs:.2g} times, while there is still much "
            "to learn from it: in the same time one model without --ensemble becomes better. "
            f"An ensemble pays from about --minutes {enough:.3g} on"
        )


def _resume(folder: Path, changes: "Table", json: bool) -> None:
    from penwright.run.folder import Run
    from penwright.workflows import api

    api.resume(folder, changes, _observers(folder, json))
    _finish(folder, Run.open(folder).recipe.task, json)


def _observers(folder: Path, json: bool) -> "list[Observer]":
    from penwright.cli.progress import progress_observer
    from penwright.training.tensorboard import tensorboard_observer

    board = tensorboard_observer(folder)
    return [progress_observer(), *([board] if board else [])]


def _show_plan(prepared: "Prepared", folder: Path, json: bool, dry_run: bool) -> None:
    from penwright.cli.progress import err
    from penwright.config import write_toml

    if json:
        print_json({"run": folder, **plan_as_record(prepared)})
        return
    for line in plan_in_words(prepared):
        err(line)
    err(f"run: {folder}")
    if dry_run:
        print(write_toml(prepared.plan.recipe), end="")


def _finish(folder: Path, task: str, json: bool) -> None:
    from penwright.cli.progress import err

    if json:
        print_json({"run": folder, "task": task, "finished": True})
        return
    quoted = shlex.quote(str(folder))
    err(f"\nDone. Try next:\n  penwright {task} {quoted} {_example(folder)}\n  penwright evaluate {quoted}")


def _example(folder: Path) -> str:
    """Something of the held-out text to try the model on, quoted for a shell."""
    from penwright.run.folder import Run

    prompts = [record["prompt"].strip() for record in Run.open(folder).records("samples.jsonl")]
    short = [prompt for prompt in prompts if 0 < len(prompt) <= LONGEST_EXAMPLE and "\n" not in prompt]
    plain = [prompt for prompt in short if "'" not in prompt] or short  # which quotes would make hard to read
    return shlex.quote(plain[-1] if plain else "...")
