"""The commands that print facts: `penwright runs`, `penwright config` and `penwright doctor`."""

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from warnings import warn

import typer

from penwright import __version__
from penwright.cli.options import AnySetting, Json, print_json

if TYPE_CHECKING:
    from penwright.run.folder import Run
    from penwright.run.provenance import Origin

EXTRAS = {"datasets": "hub", "tensorboard": "tensorboard", "babel": "demo", "num2words": "demo"}


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder that holds the runs.", metavar="FOLDER")] = Path("runs"),
    json: Json = False,
) -> None:
    """List the runs in a folder, with the best evaluation of each."""
    from penwright.errors import PenwrightError, PenwrightWarning
    from penwright.storage import is_temporary

    recipes = [*folder.glob("recipe.toml"), *folder.glob("*/recipe.toml")]
    # an import that is not finished, or was killed, leaves a temporary folder
    run_folders = sorted(path.parent for path in recipes if not is_temporary(path.parent))
    if not run_folders:
        raise PenwrightError(f"{folder} has no runs. Train one with: penwright train YOUR_TEXT")
    for run_folder in run_folders:
        try:
            _print_run(run_folder, json)
        except PenwrightError as error:  # a damaged run must not hide the other runs
            warn(f"skipping {run_folder}: {error}", PenwrightWarning, stacklevel=1)


def _print_run(run_folder: Path, json: bool) -> None:
    """Print the task, the step and the best scores of a run."""
    from penwright.run.folder import Run
    from penwright.run.records import METRICS

    run = Run.open(run_folder)
    metrics = run.records(METRICS)
    last = metrics[-1] if metrics else {"step": 0}
    best, origin = run.checkpoints.best_step(), _origin(run)
    if json:
        imported = {} if origin is None else {"imported": origin.model_dump(exclude={"files"})}
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
    steps = f"step {shown['step']:,} of {run.checkpoints.last_step():,}"
    print(f"{run_folder}\t{run.recipe.task}\t{steps}\t{scores or 'not yet evaluated'}{state}")


def _origin(run: "Run") -> "Origin | None":
    """Return the origin of an imported model. Return None for other models, and for runs without corpus.json."""
    from penwright.errors import PenwrightError
    from penwright.run.provenance import corpus_record

    try:
        return corpus_record(run).imported
    except PenwrightError:
        return None


def config(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="Recipe file or run folder. Default: explain every setting.", metavar="RECIPE"),
    ] = None,
    set_: AnySetting = None,
    json: Json = False,
) -> None:
    """Print a recipe in full, or explain every setting.

    With a recipe or a run: check it, fill in the defaults and print it. Without one: print every key with its default
    and its meaning.
    """
    from penwright.config import Recipe, merge, parse_override, read_toml, validate, write_toml
    from penwright.config.descriptions import explain
    from penwright.errors import UsageError

    if recipe is None:
        if set_ or json:
            raise UsageError("--set and --json need a recipe or a run, as in: penwright config RUN --json")
        print(
            "# Every key, its default and its meaning. None: not set. "
            "To print a recipe: penwright config RECIPE, or penwright train --print-recipe"
        )
        print(explain(Recipe))
        return
    path = recipe / "recipe.toml" if recipe.is_dir() else recipe
    blank = {"data": {"train": ["YOUR_TEXT"]}, "model": {}}
    table = merge(blank, read_toml(path), *(parse_override(text) for text in set_ or []))
    if "training" not in table:
        table["training"] = {"minutes": 10}
    settings = validate(Recipe, table, str(path))
    if json:
        print_json(settings.model_dump(mode="json"))
    else:
        print(write_toml(settings), end="")


def doctor(json: Json = False) -> None:
    """Show which device training would use on this machine, and why."""
    import torch

    from penwright.config import TrainingSettings
    from penwright.training.auto.machine import choose_compilation, choose_machine, measure_speed

    machine = choose_machine(TrainingSettings(minutes=10))
    compiled, reason = choose_compilation(machine.device, 600.0)
    reasons = (
        *machine.reasons,
        f"ten minutes of training on running text would {'' if compiled else 'not '}use torch.compile: {reason}",
    )
    facts: dict[str, object] = {
        "penwright": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": str(machine.device),
        "precision": str(machine.precision).removeprefix("torch."),
        "compile": compiled,
        "matrix products": f"{measure_speed(machine.device, machine.precision) / 1e9:.0f} GFLOP/s",
        "C++ compiler": shutil.which(os.environ.get("CXX", "g++")) or "not found; torch.compile needs a C++ compiler",
        "free disk": f"{shutil.disk_usage(Path.cwd()).free / 1e9:.1f} GB",
        **{name: _installed(name, extra) for name, extra in EXTRAS.items()},
    }
    if json:
        print_json({**facts, "reasons": reasons})
        return
    for name, value in facts.items():
        print(f"{name:16} {value}")
    for reason in reasons:
        print(f"  {reason}")


def _installed(name: str, extra: str) -> str:
    """Return the version of a package or, if the package is missing, the command that installs it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return f"not installed (pip install 'penwright[{extra}]')"
