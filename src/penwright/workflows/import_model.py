"""Import a model from another project as an ordinary run folder."""

import hashlib
import json
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from shlex import quote

from penwright.application import Application
from penwright.config import Recipe, Table, merge, validate
from penwright.errors import PenwrightError, Say, UsageError, say_nothing
from penwright.formats.gguf_import import read_gguf
from penwright.formats.huggingface import read_huggingface
from penwright.formats.huggingface_files import (
    ADAPTER_CONFIG,
    INDEX,
    PREFIX,
    WEIGHTS,
    download,
    without_prefix,
)
from penwright.formats.pretrained import Pretrained
from penwright.languages import Languages
from penwright.run.folder import CORPUS, RECIPE, Run, require_unused
from penwright.run.provenance import corpus_record, made_with
from penwright.storage import saving, sha256_of
from penwright.workflows.load import load

GGUF = ".gguf"


def import_model(
    source: str, folder: Path, languages: Languages | None = None, say: Say = say_nothing, *, pairs: bool = False
) -> Application:
    """Import a model as a new run: a folder in the layout of the Hugging Face Hub, `hub:NAME@REVISION`, or a GGUF file.

    Multilingual translation models need `languages`. With `pairs`, a classifier reads pairs of texts. Raises
    PenwrightError, without creating a folder, if the model cannot be used.
    """
    require_unused(folder)
    path = download(source.removeprefix(PREFIX)) if source.startswith(PREFIX) else Path(source)
    if not path.exists():
        raise PenwrightError(f"there is no {path}. Name a folder with config.json, a GGUF file, or {PREFIX}NAME")
    if (path / RECIPE).is_file():
        raise PenwrightError(f"{path} is a run already. Use it as it is, or start from it: train DATA --from {path}")
    require_no_adapter(path)
    path = _file_in(path)
    model = read_huggingface(path, languages, pairs=pairs) if path.is_dir() else read_gguf(path)
    if pairs and not model.labels:
        raise UsageError("only classifiers read pairs of texts: leave out --pairs")
    for note in model.notes:
        say(note)
    if (path / ADAPTER_CONFIG).is_file():
        say(
            f"the adapter in {path} was not imported. To merge it, run: "
            f"penwright export {quote(str(folder))} --adapter {quote(str(path))} --to penwright --output NEW_RUN"
        )
    try:
        with saving(folder, is_locked=False) as unfinished:
            _write(model, source, unfinished)
            require_unused(folder)  # another process may have written to the folder in the meantime
    except OSError as error:
        raise PenwrightError(f"{folder} cannot be written: {error}") from error
    model.weights.clear()  # free their memory before the run is loaded
    return load(folder)


def _file_in(path: Path) -> Path:
    """Return the GGUF file in a folder without config.json, or the path itself if it holds no such file."""
    files = [] if (path / "config.json").exists() else sorted(path.glob(f"*{GGUF}"))
    if len(files) > 1:
        raise PenwrightError(f"{path} has {len(files)} GGUF files. Name one of them, such as {files[0]}")
    return files[0] if files else path


def require_no_adapter(folder: Path) -> None:
    """Raise PenwrightError if a folder holds an adapter in PEFT's format, but no whole model."""
    is_model = any((folder / name).is_file() for name in (WEIGHTS, INDEX, "pytorch_model.bin"))
    if (folder / ADAPTER_CONFIG).is_file() and not is_model:
        raise PenwrightError(
            f"{folder} is a LoRA adapter, not a whole model. Import its base model, and merge the adapter into it: "
            f"penwright export BASE --adapter {quote(str(folder))} --to penwright --output NEW_RUN"
        )


def with_imported_base(settings: Table, run: Path | None, say: Say = say_nothing, *, is_dry: bool = False) -> Table:
    """Import the base of a new run unless the base is a run already. Return the settings with the imported base.

    Args:
        settings: Settings of the new run.
        run: Folder of the new run, if already chosen. The base is imported next to this folder.
        say: Function that is called with messages about the import.
        is_dry: Whether this is a dry run, which must not write anything.

    Raises:
        PenwrightError: If the base cannot be imported, or if it would have to be imported in a dry run.
    """
    match settings.get("finetuning"):
        case {"base": str(source)} if _is_importable(source):
            name = Path(without_prefix(source)).absolute()
            first = (run.parent if run else Path("runs")) / (name.stem if name.suffix == GGUF else name.name)
        case {"base": str(source)}:
            require_no_adapter(Path(source))
            return settings
        case _:
            return settings
    numbered = (first.with_name(f"{first.name}-{number}") for number in count(2))
    free = (candidate for candidate in chain([first], numbered) if candidate != run)
    folder = next(candidate for candidate in free if not candidate.exists() or _is_import_of(source, candidate))
    by_hand = f"penwright import {quote(source)} --run {quote(str(folder))}"
    if folder.exists():
        say(f"{source} was imported before: starting from {folder}")
    elif is_dry:
        raise UsageError(f"{source} is not a run yet, and a dry run writes nothing. Import it first: {by_hand}")
    else:
        say(f"importing {source} into the run {folder}, to start from it")
        try:
            import_model(source, folder, say=say)
        except PenwrightError as error:
            raise PenwrightError(
                f"the base model cannot be imported: {error}. For more options: {by_hand} --help"
            ) from None
    return merge(settings, {"finetuning": {"base": str(folder)}})


def _is_importable(source: str) -> bool:
    """Return whether `import_model` accepts the source. A run folder needs no import, so it is not accepted."""
    path = Path(source)
    if (path / RECIPE).is_file():
        return False
    is_file = path.suffix == GGUF or any(path.glob(f"*{GGUF}"))
    return is_file or source.startswith(PREFIX) or (path / "config.json").is_file()


def _is_import_of(source: str, folder: Path) -> bool:
    """Return whether this folder holds a run that was imported from this source, whose files have not changed since."""
    try:
        record = corpus_record(Run.open(folder))
        is_same = record.is_as_imported and record.imported is not None and record.imported.source == source
        return is_same and all(sha256_of(Path(file.path).resolve()) == file.sha256 for file in record.files)
    except (PenwrightError, OSError):
        return False


def _write(model: Pretrained, source: str, folder: Path) -> None:
    """Write the imported model as a run folder."""
    run = Run.create(folder)
    outline, languages = model.outline, model.languages
    table = {
        "task": outline.task,
        "data": {"train": [source]},
        "tokenizer": {"type": "imported"},
        "model": outline.settings.model_dump(),
        "training": {"steps": 1},  # the import trains nothing, but a recipe must have a budget
        "decoding": model.decoding,
        **({"chat": model.chat.model_dump()} if model.chat else {}),
    }
    recipe = validate(Recipe, table, source)
    model.tokenizer.save(run.tokenizer_path)
    run.save_recipe(recipe)
    files = [
        {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256_of(path.resolve())} for path in model.files
    ]
    card = {"labels": model.labels, "languages": languages}
    origin = {"source": source, "architecture": model.architecture, "licence": model.licence, "files": files}
    record = {"fingerprint": _fingerprint(files), "files": files, "card": card, "imported": origin}
    run.write_json(CORPUS, record)
    run.checkpoints.made_with = made_with(run, recipe)
    run.checkpoints.save(0, model.weights, {}, {"step": 0, "total_steps": 0, "best_step": 0})


def _fingerprint(files: Sequence[dict[str, object]]) -> str:
    return hashlib.sha256(json.dumps([file["sha256"] for file in files]).encode()).hexdigest()
