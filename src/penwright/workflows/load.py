"""Load trained runs. Only code that the model needs is imported; code for corpora, training and export is not."""

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple
from warnings import warn

import torch

from penwright.application import Application, make_application
from penwright.config import Precision, Recipe, Task
from penwright.decoding.engine import are_steps_compiled
from penwright.devices import keep_freed_memory, limit_threads, usable_device
from penwright.errors import PenwrightError, PenwrightWarning, UsageError
from penwright.model import HEAD, Model, make_model
from penwright.model.attention import disable_cudnn_attention
from penwright.model.fused import fuse
from penwright.model.lora import merged
from penwright.model.quantized import to_precision
from penwright.model.transformer import DecoderOnly, EncoderDecoder
from penwright.model.weights import load_weights, no_init_weights, shapes_only, weights_for, weights_of, with_vocabulary
from penwright.run.checkpoint_folder import CHECKPOINTS
from penwright.run.checkpoints import STATE, WEIGHTS, Checkpoint, Shapes, Tensors
from penwright.run.folder import LINEAR_FILE, OPTIMIZED, RECIPE, TOKENIZER, Run
from penwright.run.provenance import ModelCard, corpus_record, require_made_with
from penwright.run.records import OptimizeRecord
from penwright.tokenizers import Tokenizer
from penwright.workflows.background import SOON, compile_in_background, is_compiling

if TYPE_CHECKING:
    import penwright.classification.classifier
    import penwright.classification.linear
    import penwright.generation.generator
    import penwright.translation.translator

# For each task, the kind of application, and the command to use it.
KINDS: Mapping[Task, tuple[str, str]] = {
    "generate": ("writer", "generate"),
    "chat": ("writer", "generate"),
    "translate": ("translator", "translate"),
    "classify": ("classifier", "classify"),
    "encode": ("classifier", "classify"),
}
MOVED = ". If {} was moved, set [finetuning] base in {} to its new path"
HEAD_SETTINGS = {"pooling", "pooler", "pooler_activation"}  # a classifier may have a different head from its base


class OpenedRun(NamedTuple):
    """An opened run folder, with everything that is needed to use the run."""

    run: Run
    recipe: Recipe
    tokenizer: Tokenizer
    card: ModelCard
    checkpoint: Checkpoint | None = None  # the checkpoint to load; None: the best one

    @property
    def best(self) -> Checkpoint:
        """The requested checkpoint, or the best one."""
        return self.checkpoint or self.run.checkpoints.best()[0]

    def model(self, precision: Precision = "float32") -> Model:
        """Load the model of the best or the requested checkpoint. Warn about damaged checkpoints that are skipped."""
        keep_freed_memory()
        disable_cudnn_attention()
        weights = self.weights()  # loaded first, to reject weights of the wrong shape before memory is allocated
        with no_init_weights():
            model = make_model(self.recipe.task, self.tokenizer.vocab_size, self.recipe.model, len(self.card.labels))
        load_weights(model, weights, str(self.run.folder))
        to_precision(model.eval(), precision)
        return model

    def weights(self) -> Tensors:
        """Load the weights of the best or the requested checkpoint. LoRA adapters are merged into the base weights."""
        if self.checkpoint is not None:
            self.checkpoint.verify(WEIGHTS)
            return self._weights(self.checkpoint)
        weights, warnings = self.run.checkpoints.read_best(self._weights, WEIGHTS, STATE)
        for warning in warnings:
            warn(warning, PenwrightWarning, stacklevel=4)
        return weights

    def linear(self, *, whole: bool = False) -> "penwright.classification.linear.LinearClassifier | None":
        """Load the linear classifier of a run, or None; with `whole`, load the one that was fitted on all texts."""
        path = self.run.folder / LINEAR_FILE
        if self.recipe.task != "classify" or not (self.recipe.model.ngrams or os.path.lexists(path)):
            return None
        from penwright.classification.linear import LinearClassifier  # noqa: PLC0415 - only classifiers need it

        return LinearClassifier.load(path, len(self.card.labels), whole=whole, problem=self.recipe.model.problem_type)

    def _weights(self, checkpoint: Checkpoint) -> Tensors:
        """Return the weights of this checkpoint. Raise PenwrightError if other files of the run do not match it."""
        require_made_with(checkpoint, self.run, self.recipe)
        require_shapes(checkpoint, self.recipe, self.tokenizer.vocab_size, len(self.card.labels))
        weights = checkpoint.weights()
        if self.recipe.lora is None:
            return weights
        base = open_base(self.recipe, self.run)
        return merged(base_weights(self.recipe, base, self.tokenizer), weights, self.recipe.lora)


def open_base(recipe: Recipe, run: Run | None = None) -> OpenedRun:
    """Open the base model of a fine-tuning run, at the checkpoint from which fine-tuning started.

    Args:
        recipe: The recipe of the fine-tuning run.
        run: The fine-tuning run. A relative path to the base is resolved from the folder in which this run was
            trained; without a run, from the current folder.

    Raises:
        PenwrightError: If the base does not exist, or if its weights have changed.
    """
    assert recipe.finetuning is not None
    folder, digest = Path(recipe.finetuning.base), recipe.finetuning.base_sha256
    if run is not None and not folder.is_absolute():
        folder = Path(os.path.normpath(run.real_folder / (corpus_record(run).trained_from or ".") / folder))
    try:
        opened_run = open_run(folder)
    except PenwrightError as error:
        name, moved = ("training", "") if run is None else (run.folder, MOVED.format(folder, run.folder / RECIPE))
        raise PenwrightError(f"{name} starts from {folder}, which cannot be opened: {error}{moved}") from None
    if recipe.lora and opened_run.recipe.lora:
        raise PenwrightError(
            f"{folder} was itself trained with LoRA, but an adapter needs a base with all weights. Make one: penwright "
            f"export {quote(str(folder))} --to penwright --output NEW_RUN"
        )
    checkpoints = opened_run.run.checkpoints
    kept = [*checkpoints.all(), *checkpoints.early(), *filter(None, [checkpoints.first()])]
    checkpoint = next((each for each in kept if each.weights_sha256 == digest), None) if digest else opened_run.best
    if checkpoint is None:
        raise PenwrightError(
            f"{folder} does not have the weights that training started from: it was trained further, or replaced by a "
            "different run. Restore the original run"
        )
    return opened_run._replace(checkpoint=checkpoint)


def base_weights(recipe: Recipe, base: OpenedRun, tokenizer: Tokenizer) -> Tensors:
    """Return the weights of a base model, renamed for a fine-tuned model and adapted to this tokenizer's vocabulary.

    They lack the head of a classifier if one of HEAD_SETTINGS differs: it was fitted to other vectors.
    """
    weights = weights_for(recipe.task, base.recipe.task, base.weights())
    ours, theirs = recipe.model, base.recipe.model
    if recipe.task == "classify" and any(getattr(ours, name) != getattr(theirs, name) for name in HEAD_SETTINGS):
        weights = {name: tensor for name, tensor in weights.items() if name.split(".")[0] not in HEAD}
    if tokenizer.fingerprint == base.tokenizer.fingerprint:
        return weights
    from penwright.tokenizers.vocabulary import earlier_pieces  # noqa: PLC0415 - most runs keep the vocabulary

    return with_vocabulary(weights, earlier_pieces(tokenizer, base.tokenizer), recipe.task)


def open_run(folder: str | Path) -> OpenedRun:
    """Open a run, or one checkpoint (a folder in its checkpoints/). Raise PenwrightError if the run does not exist."""
    folder = Path(folder)
    home = folder.parent.parent
    is_inside = folder.parent.name == CHECKPOINTS and (home / RECIPE).is_file()
    run = Run(home)
    kept = (
        [each for each in (run.checkpoints.first(), *run.checkpoints.early(), *run.checkpoints.all()) if each]
        if is_inside
        else []
    )
    checkpoint = next((each for each in kept if each.folder == folder), None)
    if is_inside and not checkpoint:
        available = ", ".join(each.folder.name for each in kept) or "none yet"
        raise PenwrightError(f"{home} has no checkpoint {folder.name}. Available: {available}")
    run = Run.open(home if checkpoint else folder)
    run.warn_of_edits()
    return OpenedRun(run, run.recipe, Tokenizer.load(run.tokenizer_path), corpus_record(run).card, checkpoint)


def load(
    run: str | Path | OpenedRun, device: str = "cpu", precision: Precision | None = None, *, compiles: bool = True
) -> Application:
    """Load the best model of a run, or the model of a checkpoint: a Generator, a Translator or a Classifier.

    The weights are in float32, unless `precision` is given, or a different precision was chosen after training. Unless
    `compiles` is False, the first generation or translation starts a background process that compiles the decoding
    steps, if they have not been compiled.
    """
    torch_device, opened_run = usable_device(device), run if isinstance(run, OpenedRun) else open_run(run)
    limit_threads()
    folder, kept = opened_run.run.folder, best_precision(opened_run.run, torch_device)
    chosen = precision or kept or "float32"
    model = opened_run.model(chosen).to(torch_device)
    linear = opened_run.linear(whole=True)
    application = make_application(model, opened_run.tokenizer, opened_run.recipe, opened_run.card, linear)
    if torch_device.type == "cpu" and application.kind != "classifier":
        is_outdated = precision is None and kept is None and (folder / OPTIMIZED).is_file()
        application.engine.on_first_use = partial(
            _before_first_use, opened_run.run, application.model, chosen, compiles=compiles, is_outdated=is_outdated
        )
    if application.kind != "classifier" and torch_device.type in {"cpu", "cuda"}:
        fuse(application.model)
    return application


def _before_first_use(
    run: Run, model: DecoderOnly | EncoderDecoder, precision: Precision, *, compiles: bool, is_outdated: bool
) -> None:
    """Compile the decoding steps in the background if they have not been compiled. Warn about slow decoding."""
    is_started = False
    with suppress(PenwrightError, OSError):  # the run's folder was moved or deleted after the model was loaded
        is_started = compiles and not are_steps_compiled(model) and compile_in_background(run, precision) is not None
    if is_started or is_compiling(model):
        warn(f"{run.folder} {SOON}", PenwrightWarning, stacklevel=3)
    elif is_outdated:
        slow = f"{run.folder} is slower than it could be: it has been trained further since it was optimized"
        warn(f"{slow}. Run: penwright optimize {quote(str(run.folder))}", PenwrightWarning, stacklevel=3)


def load_generator(
    run: Path | OpenedRun, device: str = "cpu", precision: Precision | None = None, verb: str = "generate"
) -> "penwright.generation.generator.Generator":
    """Load a run that generates text. For any other run, raise a UsageError that names the command `verb`."""
    opened = _of_kind(run, verb, "a language model", "writer")
    return load(opened, device, precision)  # type: ignore[return-value]  # _of_kind() has checked the kind


def load_translator(
    run: Path | OpenedRun, device: str = "cpu", precision: Precision | None = None, verb: str = "translate"
) -> "penwright.translation.translator.Translator":
    """Load a run that translates. For any other run, raise a UsageError that names the command `verb`."""
    opened = _of_kind(run, verb, "a translator", "translator")
    return load(opened, device, precision)  # type: ignore[return-value]  # as above


def load_classifier(run: Path | OpenedRun, device: str = "cpu") -> "penwright.classification.classifier.Classifier":
    """Load a run that classifies. Raise UsageError for any other run."""
    opened = _of_kind(run, "classify", "a classifier", "classifier")
    return load(opened, device)  # type: ignore[return-value]  # as above


def load_embedder(
    run: Path | OpenedRun, device: str = "cpu", verb: str = "embed"
) -> "penwright.classification.classifier.Classifier | penwright.generation.generator.Generator":
    """Load a run that can embed texts. For a translator, raise a UsageError that names the command `verb`."""
    opened = _of_kind(run, verb, "an encoder, a classifier or a language model", "classifier", "writer")
    return load(opened, device)  # type: ignore[return-value]  # as above


def _of_kind(run: Path | OpenedRun, verb: str, need: str, *kinds: str) -> OpenedRun:
    """Open a run; raise UsageError, before its model is loaded, if it is not of one of these kinds."""
    opened_run = run if isinstance(run, OpenedRun) else open_run(run)
    kind, right = KINDS[opened_run.recipe.task]
    if kind in kinds:
        return opened_run
    folder = opened_run.run.folder
    raise UsageError(
        f'{folder} holds a {kind}; `{verb}` needs {need}. Try: penwright {right} {quote(str(folder))} "..."'
    )


def kept_precision(folder: str | Path, device: str = "cpu") -> Precision:
    """Return the default precision of a run: the one that was chosen for decoding, or float32."""
    return best_precision(open_run(folder).run, usable_device(device)) or "float32"


def best_precision(run: Run, device: torch.device) -> Precision | None:
    """Return the precision that was chosen for decoding with the best model on a CPU, or None if there is none."""
    finding = run.finding(OPTIMIZED, OptimizeRecord) if device.type == "cpu" else None
    return finding.precision if finding else None


def require_shapes(checkpoint: Checkpoint, recipe: Recipe, vocab_size: int, n_labels: int) -> None:
    """Raise PenwrightError unless the weights have the shapes of the model, without allocating memory for the model."""
    saved, path = checkpoint.shapes(), checkpoint.folder
    model = recipe.model
    layers = model.n_layers + (model.n_decoder_layers or 0)
    if layers > len(saved):  # a model with too many layers would be slow to build, even on the meta device
        raise PenwrightError(
            f"{RECIPE} asks for {layers:,} layers, but {path} has only {len(saved)} tensors. Restore the original files"
        )
    try:
        with shapes_only():
            built = weights_of(make_model(recipe.task, vocab_size, model, n_labels, recipe.lora))
    except (RuntimeError, OverflowError, TypeError, ValueError) as error:  # raised, e.g., for impossible tensor sizes
        raise PenwrightError(f"{RECIPE} describes a model that cannot be built: {error}") from None
    _compare({name: tuple(tensor.shape) for name, tensor in built.items()}, saved, checkpoint)


def _compare(expected: Shapes, saved: Shapes, checkpoint: Checkpoint) -> None:
    for name, shape in expected.items():
        if name in saved and saved[name] != shape:
            raise PenwrightError(
                f"{checkpoint.folder}: {name} was saved with the shape {saved[name]}, but {RECIPE} and {TOKENIZER} "
                f"describe the shape {shape}. They do not belong together: restore the original files"
            )
    if different := sorted(expected.keys() ^ saved.keys()):
        raise PenwrightError(
            f"{checkpoint.folder} was saved from a different model than the one in {RECIPE}. Only one of the two has "
            f"{', '.join(different[:5])}"
        )
