"""The `penwright runs` command: list runs with their scores."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from warnings import warn

import typer

from penwright.cli.options import Json, print_json

if TYPE_CHECKING:
    from penwright.run.folder import Run
    from penwright.workflows.load import Origin

NAME = "runs"


def command(
    folder: Annotated[Path, typer.Argument(help="Folder that holds the runs.")] = Path("runs"), json: Json = False
) -> None:
    """List the runs in a folder, with the best evaluation of each."""
    from penwright.errors import PenwrightError, PenwrightWarning

    run_folders = sorted(path.parent for path in [*folder.glob("recipe.toml"), *folder.glob("*/recipe.toml")])
    if not run_folders:
        raise PenwrightError(f"{folder} has no runs. Train one with: penwright train YOUR_TEXT")
    for run_folder in run_folders:
        try:
            _list(run_folder, json)
        except PenwrightError as error:  # a damaged run must not hide the others
            warn(f"skipping {run_folder}: {error}", PenwrightWarning, stacklevel=1)


def _list(run_folder: Path, json: bool) -> None:
    """Print the task, the step and the best scores of a run."""
    from penwright.run.folder import Run

    run = Run.open(run_folder)
    metrics = run.records("metrics.jsonl")
    last = metrics[-1] if metrics else {"step": 0}
    best, origin = run.best_step(), _origin(run)
    if json:
        imported = {} if origin is None else {"imported": origin.model_dump()}
        print_json({"run": run_folder, "task": run.recipe.task, "best_step": best, "last": last, **imported})
        return
    if origin is not None and not metrics:
        print(f"{run_folder}\t{run.recipe.task}\t{origin}")
        return
    shown = next((m for m in metrics if m["step"] == best), last)
    counters = ("step", "seconds", "epoch", "targets", "skipped")
    numbers = {key: value for key, value in shown.items() if key not in counters and isinstance(value, int | float)}
    scores = "  ".join(f"{key} {value:.4g}" for key, value in numbers.items())
    state = "" if run.is_finished else "\tunfinished: continue with --resume"
    steps = f"step {shown['step']:,} of {run.last_step():,}"
    print(f"{run_folder}\t{run.recipe.task}\t{steps}\t{scores or 'not yet evaluated'}{state}")


def _origin(run: "Run") -> "Origin | None":
    """Return where an imported model comes from; None for others, and for runs without a record."""
    from penwright.errors import PenwrightError
    from penwright.workflows.load import corpus_record

    try:
        return corpus_record(run).imported
    except PenwrightError:
        return None
