"""penwright runs: what was trained here, and how well."""

from pathlib import Path
from typing import Annotated
from warnings import warn

import typer

from penwright.cli.options import Json, print_json

NAME = "runs"


def command(
    folder: Annotated[Path, typer.Argument(help="Where runs are kept.")] = Path("runs"), json: Json = False
) -> None:
    """List the runs in a folder with their best evaluation."""
    from penwright.errors import PenwrightError, PenwrightWarning

    found = sorted(path.parent for path in [*folder.glob("recipe.toml"), *folder.glob("*/recipe.toml")])
    if not found:
        raise PenwrightError(f"there are no runs in {folder}. Train one with: penwright train YOUR_TEXT")
    for place in found:
        try:
            _list(place, json)
        except PenwrightError as error:  # one damaged run does not hide the others
            warn(f"{place} is left out: {error}", PenwrightWarning, stacklevel=1)


def _list(place: Path, json: bool) -> None:
    from penwright.run.folder import Run

    run = Run.open(place)
    metrics = run.records("metrics.jsonl")
    last = metrics[-1] if metrics else {"step": 0}
    best = run.best_step()
    if json:
        print_json({"run": place, "task": run.recipe.task, "best_step": best, "last": last})
        return
    shown = next((m for m in metrics if m["step"] == best), last)
    counters = ("step", "seconds", "epoch", "targets", "skipped")
    numbers = {key: value for key, value in shown.items() if key not in counters and isinstance(value, int | float)}
    scores = "  ".join(f"{key} {value:.4g}" for key, value in numbers.items())
    state = "" if run.is_finished else "\tunfinished: --resume goes on"
    steps = f"step {shown['step']:,} of {run.last_step():,}"
    print(f"{place}\t{run.recipe.task}\t{steps}\t{scores or 'not yet evaluated'}{state}")
