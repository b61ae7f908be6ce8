"""Penwright: make a Transformer of your own.

    import penwright

    run = penwright.train("novel.txt", minutes=5)   # a Generator, from the text alone
    model = penwright.load("runs/novel")            # the same, later
    print(model.generate("Once upon a time", temperature=0.7)[0].text)

Modules are imported when a function needs them, so that `penwright --help` does not wait for torch.
"""

import os
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penwright.config import Precision
    from penwright.errors import Say
    from penwright.evaluation.scores import Score
    from penwright.evaluation.tuning import Tuning
    from penwright.formats.export import Format
    from penwright.inspection import Inspector
    from penwright.tasks import Application

# How long a thread of torch's (libgomp's) waits awake for the others. By default so long that, on a machine with other
# work, training can be ten times slower; this costs nothing on a quiet one (benchmarks/LOG.md). Read when torch loads.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "evaluate",
    "export",
    "inspect",
    "load",
    "optimize",
    "quicken",
    "resume",
    "serve",
    "train",
    "tune",
]
AnyPath = str | PathLike[str]
Paths = AnyPath | Sequence[AnyPath]


def train(
    data: Paths,
    *,
    minutes: float | None = None,
    run: AnyPath | None = None,
    recipe: AnyPath | None = None,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
) -> "Application":
    """Train on files, folders or hub:NAME; return a Generator, a Translator or a Classifier.

    `settings` are tables of a recipe, such as {"model": {"size": "small"}}, and win over the `recipe` file;
    `run` is the folder to keep the run in (runs/NAME if not given). Progress goes to standard error unless `quiet`.
    """
    from penwright.cli.progress import progress_observer
    from penwright.config import merge
    from penwright.workflows import api

    given = {"data": {"train": _paths(data)}, "training": {"minutes": minutes} if minutes else {}}
    below = api.read_recipe(Path(recipe), given) if recipe is not None else {}
    prepared = api.prepare(merge(below, given, settings or {}))
    folder = Path(run) if run is not None else api.new_run_folder(prepared.plan.recipe)
    return api.train(prepared, folder, [] if quiet else [progress_observer()])


def resume(
    run: AnyPath,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
) -> "Application":
    """Resume a run where it stopped; with a budget (`minutes`, `steps` or `epochs`), train that much longer.

    `settings` are tables of [training], [data] or [decoding] to change. Progress goes to standard error unless `quiet`.
    """
    from penwright.cli.progress import progress_observer
    from penwright.config import merge
    from penwright.workflows import api

    budgets = {"minutes": minutes, "steps": steps, "epochs": epochs}
    given = {name: value for name, value in budgets.items() if value is not None}
    changes = merge({"training": given} if given else {}, settings or {})
    return api.resume(Path(run), changes, [] if quiet else [progress_observer()])


def load(run: AnyPath, device: str = "cpu") -> "Application":
    """Load the best model of a run, or a checkpoint, as a Generator, a Translator or a Classifier."""
    from penwright.workflows import api

    return api.load(Path(run), device)


def evaluate(
    run: AnyPath,
    data: Paths = (),
    *,
    beam_size: int | None = None,
    output: AnyPath | None = None,
    settings: dict[str, Any] | None = None,
    precision: "Precision | None" = None,
    device: str = "cpu",
    quiet: bool = False,
) -> "Sequence[Score]":
    """Score a run, beside baselines, on its held-out part or on files of your own.

    `settings` say how these files are read, such as {"data": {"label": "topic"}}. `output` keeps the translations of
    a translator. Progress goes to standard error unless `quiet`.
    """
    from penwright.workflows import api

    return api.evaluate(
        Path(run),
        _paths(data),
        settings,
        device,
        beam_size=beam_size,
        output=None if output is None else Path(output),
        precision=precision,
        say=_say(quiet),
    )


def export(run: AnyPath, to: "Format", output: AnyPath, *, precision: "Precision" = "float32") -> Path:
    """Write a run to a new folder for another engine: "ctranslate2", "gguf" or "huggingface"; return the folder."""
    from penwright.workflows import api

    api.export(Path(run), to, Path(output), precision)
    return Path(output)


def optimize(run: AnyPath, *, precision: "Precision | None" = None, quiet: bool = False) -> "Mapping[Precision, float]":
    """Make a run write or translate faster: choose the fastest precision that is as good, and compile its steps.

    Returns the nats per token of each precision on held-out text. Takes some minutes, once.
    """
    from penwright.workflows import api

    return api.optimize(Path(run), precision, _say(quiet))


def quicken(run: AnyPath, *, precision: "Precision | None" = None, quiet: bool = False) -> "Mapping[Precision, float]":
    """Do what `optimize` does, under its old name."""
    from warnings import warn

    from penwright.errors import PenwrightWarning

    warn("penwright.quicken is now penwright.optimize; the old name will go", PenwrightWarning, stacklevel=2)
    return optimize(run, precision=precision, quiet=quiet)


def tune(
    run: AnyPath, data: Paths = (), *, beam_size: int | None = None, device: str = "cpu", quiet: bool = False
) -> "Tuning":
    """Find the length and coverage penalties that suit a translator, on held-out pairs or on files of your own.

    The run keeps the best ones if they help beyond chance.
    """
    from penwright.workflows import api

    return api.tune_decoding(Path(run), _paths(data), device, beam_size=beam_size, say=_say(quiet))


def inspect(model: "Application") -> "Inspector":
    """Look inside a model over a text: `inspect(model).attention("text")`, and much else."""
    from penwright.inspection import Inspector

    return Inspector(model)


def serve(*runs: AnyPath, port: int = 8000, open_page: bool = True) -> None:
    """Serve the page of these runs and their APIs, on this machine alone, until Ctrl+C."""
    from penwright.serving.server import serve
    from penwright.serving.settings import ServingSettings

    server = serve([str(run) for run in runs], ServingSettings(port=port))
    server.run(open_page=open_page)


def _paths(data: Paths) -> list[str]:
    return [str(path) for path in ([data] if isinstance(data, str | PathLike) else data)]


def _say(quiet: bool) -> "Say":
    from penwright.cli.progress import err
    from penwright.errors import say_nothing

    return say_nothing if quiet else err
