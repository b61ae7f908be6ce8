"""Checks that the recipe, the tokenizer, the corpus record and the weights of a run belong together.

Mismatched weights may load without an error. With two swapped token ids or a different rotary base, the model writes
nonsense. Each checkpoint therefore records the files and settings that it was made with. They are compared with the
current files and settings of the run before a model is built.
"""

from penwright.config import Recipe, flatten
from penwright.errors import PenwrightError
from penwright.model import make_model
from penwright.model.weights import shapes_only, weights_of
from penwright.run.checkpoints import Checkpoint, Record, Shapes
from penwright.run.folder import CORPUS, LINEAR_FILE, RECIPE, Run
from penwright.storage import sha256_of

FILES = ("tokenizer.json", CORPUS, LINEAR_FILE)
MAY_CHANGE = {  # [model] settings that may change when a run is resumed
    "size",
    "context_length",
    "dropout",
    "attention_dropout",
    "feed_forward_dropout",
    "token_dropout",
    "zero_init_outputs",
}


def made_with(run: Run, recipe: Recipe) -> Record:
    """Return everything that the weights of this run depend on: the hashes of its files, and its settings."""
    names = [name for name in FILES if name != LINEAR_FILE or (recipe.task == "classify" and recipe.model.ngrams)]
    files = {name: sha256_of(run.folder / name) for name in names}
    return {"files": files, "settings": _settings(recipe)}


def _settings(recipe: Recipe) -> Record:
    """Return the settings that the weights depend on, by their dotted names, such as `model.n_heads`."""
    model = recipe.model.model_dump(mode="json", exclude=MAY_CHANGE)
    tables = {"tokenizer": recipe.tokenizer.model_dump(mode="json"), "model": model}
    if recipe.finetuning and recipe.lora:  # an adapter fits only the base weights that it was trained with
        tables |= {"lora": recipe.lora.model_dump(mode="json"), "base": {"sha256": recipe.finetuning.base_sha256}}
    return {"task": recipe.task, **flatten(tables)}


def require_made_with(checkpoint: Checkpoint, run: Run, recipe: Recipe) -> None:
    """Raise PenwrightError, naming the file, unless this checkpoint was made with the current files and settings.

    Checkpoints of older versions do not record their files and settings. They are accepted.
    """
    kept = checkpoint.state().get("made_with")
    if not isinstance(kept, dict):
        return
    files, settings = (kept.get(name) for name in ("files", "settings"))
    for name, digest in files.items() if isinstance(files, dict) else ():
        if name in FILES and _digest(run, name) != digest:
            raise PenwrightError(
                f"{run.folder / name} is not the file that {checkpoint.folder.name} was trained with: it was "
                "changed, replaced or damaged. Restore the original file"
            )
    now = _settings(recipe)
    for name, value in settings.items() if isinstance(settings, dict) else ():
        if name in now and now[name] != value:
            raise PenwrightError(
                f"{run.folder / RECIPE}: {name} is {now[name]}, but {checkpoint.folder.name} was trained with {value}. "
                "Restore the old value, or train a new run with the new value"
            )


def _digest(run: Run, name: str) -> str:
    try:
        return sha256_of(run.folder / name)
    except OSError as error:
        raise PenwrightError(f"{run.folder / name} cannot be read: {error}") from None


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
                f"{checkpoint.folder}: {name} was saved with the shape {saved[name]}, but {RECIPE} and tokenizer.json "
                f"describe the shape {shape}. They do not belong together: restore the original files"
            )
    if different := sorted(expected.keys() ^ saved.keys()):
        raise PenwrightError(
            f"{checkpoint.folder} was saved from a different model than the one in {RECIPE}. Only one of the two has "
            f"{', '.join(different[:5])}"
        )
