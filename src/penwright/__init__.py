"""Penwright: make a Transformer of your own.

    import penwright

    run = penwright.train("novel.txt", minutes=5)   # a Generator, from the text alone
    model = penwright.load("runs/novel")            # the same, later
    print(model.generate("Once upon a time")[0].text)

What is asked for is imported only then, so that `penwright --help` need not wait for torch.
"""

import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penwright.inspection import Inspector
    from penwright.tasks import Application

# How long a thread of torch's (libgomp's) waits awake for the others. By default so long that, on a machine with other
# work, training can be ten times slower; this costs nothing on a quiet one (benchmarks/LOG.md). Read when torch loads.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

__version__ = "0.1.0"
__all__ = ["__version__", "inspect", "load", "serve", "train"]


def train(
    data: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    minutes: float | None = None,
    run: str | PathLike[str] | None = None,
    recipe: str | PathLike[str] | None = None,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
) -> "Application":
    """Train on files, folders or hub:NAME; returns a Generator, a Translator or a Classifier.

    `settings` are tables of a recipe, such as {"model": {"size": "small"}}, and win over the `recipe` file;
    `run` is the folder to keep the run in (runs/NAME if not given). Progress goes to standard error unless `quiet`.
    """
    from penwright.cli.progress import progress_observer
    from penwright.config import merge
    from penwright.workflows import api

    paths = [data] if isinstance(data, str | PathLike) else data
    given = {"data": {"train": [str(path) for path in paths]}, "training": {"minutes": minutes} if minutes else {}}
    below = api.read_recipe(Path(recipe), given) if recipe is not None else {}
    prepared = api.prepare(merge(below, given, settings or {}))
    folder = Path(run) if run is not None else api.new_run_folder(prepared.plan.recipe)
    return api.train(prepared, folder, [] if quiet else [progress_observer()])


def load(run: str | PathLike[str], device: str = "cpu") -> "Application":
    """The best model of a run folder, ready to use: a Generator, a Translator or a Classifier."""
    from penwright.workflows import api

    return api.load(Path(run), device)


def inspect(model: "Application") -> "Inspector":
    """What happens inside a model over a text: `inspect(model).attention("text")`, and much else."""
    from penwright.inspection import Inspector

    return Inspector(model)


def serve(*runs: str | PathLike[str], port: int = 8000, open_page: bool = True) -> None:
    """The page of these runs, and their interfaces for programs, on this machine alone, until Ctrl+C."""
    from penwright.serving.server import serve
    from penwright.serving.settings import ServingSettings

    server = serve([str(run) for run in runs], ServingSettings(port=port))
    server.run(open_page=open_page)
