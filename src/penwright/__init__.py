"""Penwright: make a Transformer of your own.

    import penwright

    model = penwright.train("novel.txt", minutes=5)  # returns a Generator
    model = penwright.load("runs/novel")             # loads it again later
    print(model.generate("Once upon a time", temperature=0.7)[0].text)

Functions import their modules only when called, so `penwright --help` need not load torch.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penwright.application import Application
    from penwright.config import Precision
    from penwright.errors import Say
    from penwright.evaluation.scores import Score
    from penwright.evaluation.tuning import Tuning
    from penwright.inspection import Inspector
    from penwright.workflows.export import AnyFormat

# Limit how long idle OpenMP threads of torch (libgomp) spin. With the default, training can be ten times slower on a
# busy machine. The limit costs nothing on an idle machine (benchmarks/LOG.md). It must be set before importing torch.
BRIEF_SPIN, LONG_SPIN = "5000", "20000"
os.environ.setdefault("GOMP_SPINCOUNT", BRIEF_SPIN)

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "evaluate",
    "export",
    "import_model",
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


def spin_longer() -> None:
    """Let idle threads spin until the next token of a small model, unless the user has set a limit.

    This makes generation a tenth faster. It does no harm on a busy machine, where one thread generates.
    """
    if os.environ["GOMP_SPINCOUNT"] == BRIEF_SPIN and "torch" not in sys.modules:
        os.environ["GOMP_SPINCOUNT"] = LONG_SPIN


def train(
    data: Paths,
    *,
    minutes: float | None = None,
    run: AnyPath | None = None,
    base: AnyPath | None = None,
    recipe: AnyPath | None = None,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
) -> "Application":
    """Train on files, folders or `hub:NAME`; return a Generator, a Translator or a Classifier.

    With `base`, a run folder, training starts from the model and the tokenizer of that run. A `base` that is not a run
    is imported first, as `import_model` does.
    `settings` are tables of a recipe, such as `{"model": {"size": "small"}}`. They override the `recipe` file.
    `run` is the run folder to create (default: runs/NAME). Progress goes to standard error unless `quiet`.
    """
    from penwright.config import merge
    from penwright.training.progress import progress_observer
    from penwright.workflows.import_model import with_imported_base
    from penwright.workflows.plan import new_run_folder, prepare, read_recipe
    from penwright.workflows.train import train

    budget = {"minutes": minutes} if minutes is not None else {}
    arguments: dict[str, Any] = {"data": {"train": _paths(data)}, "training": budget}
    arguments |= {"finetuning": {"base": str(base)}} if base is not None else {}
    above = merge(arguments, settings or {})
    below = read_recipe(Path(recipe), above) if recipe is not None else {}
    place = None if run is None else Path(run)
    prepared = prepare(with_imported_base(merge(below, above), place, _say(quiet)))
    folder = place or new_run_folder(prepared.plan.recipe)
    return train(prepared, folder, [] if quiet else [progress_observer()])


def resume(
    run: AnyPath,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
) -> "Application":
    """Resume a run where it stopped. With a budget (`minutes`, `steps` or `epochs`), train that much longer.

    `settings` may change the tables `training`, `data` and `decoding`. Progress is printed to standard error unless
    `quiet`.
    """
    from penwright.config import merge
    from penwright.training.progress import progress_observer
    from penwright.workflows.resume import resume

    budgets = {"minutes": minutes, "steps": steps, "epochs": epochs}
    budget = {name: value for name, value in budgets.items() if value is not None}
    changes = merge({"training": budget} if budget else {}, settings or {})
    return resume(Path(run), changes, [] if quiet else [progress_observer()])


def load(run: AnyPath, device: str = "cpu", precision: "Precision | None" = None) -> "Application":
    """Load the best model of a run, or the model of a checkpoint, as a Generator, a Translator or a Classifier.

    Weights are in float32, unless `precision` is given or `optimize` has chosen a faster precision (CPU only).
    """
    spin_longer()
    from penwright.workflows.load import load

    return load(Path(run), device, precision)


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
    """Evaluate a run and its baselines on its held-out data or on your own files.

    `settings` describes how to read your files, for example `{"data": {"label": "topic"}}`. A translator writes its
    translations to `output`. Progress is printed to standard error unless `quiet`.
    """
    from penwright.workflows.evaluate import evaluate

    return evaluate(
        Path(run),
        _paths(data),
        settings,
        device,
        beam_size=beam_size,
        output=None if output is None else Path(output),
        precision=precision,
        say=_say(quiet),
    )


def export(
    run: AnyPath,
    to: "AnyFormat",
    output: AnyPath,
    *,
    precision: "Precision" = "float32",
    adapter: AnyPath | None = None,
) -> Path:
    """Export a run to a new folder in the format "ctranslate2", "gguf", "huggingface" or "onnx"; return the folder.

    "peft" exports the adapter of a LoRA run; "penwright" exports a complete run. An `adapter` is merged into the model
    before the export. If a classifier loses its n-grams, its scores without them are printed to standard error.
    """
    from penwright.workflows.export import export

    export(Path(run), to, Path(output), precision, None if adapter is None else Path(adapter), _say(quiet=False))
    return Path(output)


def import_model(
    source: AnyPath, run: AnyPath, *, languages: tuple[str, str] | None = None, pairs: bool = False
) -> "Application":
    """Convert a model from another project into a run, and return it ready to use.

    `source` is a folder in the layout of the Hugging Face Hub, `hub:NAME`, `hub:NAME@REVISION` or a GGUF file. A model
    for many languages needs `languages` (source, target). With `pairs`, a classifier reads pairs of texts. That is the
    default for cross-encoders of sentence-transformers, and for models with the label "entailment".
    """
    from penwright.languages import Languages
    from penwright.workflows.import_model import import_model

    return import_model(str(source), Path(run), Languages(*languages) if languages else None, pairs=pairs)


def optimize(run: AnyPath, *, precision: "Precision | None" = None, quiet: bool = False) -> "Mapping[Precision, float]":
    """Speed up generation or translation: compile the decoding steps, and choose a faster precision.

    The precision is the fastest one that is as accurate as float32. This takes a few minutes, once per run. Return the
    held-out loss of each precision in nats per token.
    """
    from penwright.workflows.optimize import optimize

    return optimize(Path(run), precision, _say(quiet))


def quicken(run: AnyPath, *, precision: "Precision | None" = None, quiet: bool = False) -> "Mapping[Precision, float]":
    """Call `optimize`. Deprecated alias, kept for older scripts."""
    from warnings import warn

    from penwright.errors import PenwrightWarning

    warn("penwright.quicken is deprecated: use penwright.optimize", PenwrightWarning, stacklevel=2)
    return optimize(run, precision=precision, quiet=quiet)


def tune(
    run: AnyPath, data: Paths = (), *, beam_size: int | None = None, device: str = "cpu", quiet: bool = False
) -> "Tuning":
    """Tune the length and coverage penalties of a translator on held-out pairs or on your own files.

    The best values are saved in the run if the gain is statistically significant.
    """
    from penwright.workflows.optimize import tune_decoding

    return tune_decoding(Path(run), _paths(data), device, beam_size=beam_size, say=_say(quiet))


def inspect(model: "Application") -> "Inspector":
    """Return an Inspector, which shows what a model computes for a text: `inspect(model).attention("text")`."""
    from penwright.inspection import Inspector

    return Inspector(model)


def serve(*runs: AnyPath, port: int = 8000, open_page: bool = True) -> None:
    """Serve the web page and the APIs of these runs on this machine only, until Ctrl+C."""
    from penwright.serving.server import serve
    from penwright.serving.settings import ServingSettings

    server = serve([str(run) for run in runs], ServingSettings(port=port))
    server.run(open_page=open_page)


def _paths(data: Paths) -> list[str]:
    return [str(path) for path in ([data] if isinstance(data, str | PathLike) else data)]


def _say(quiet: bool) -> "Say":
    from penwright.errors import say_nothing
    from penwright.streams import print_message

    return say_nothing if quiet else print_message
