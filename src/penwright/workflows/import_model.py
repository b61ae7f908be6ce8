"""Import of a model that another project trained, into an ordinary run folder."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from penwright.application import Application
from penwright.config import Recipe, validate
from penwright.errors import PenwrightError, Say, say_nothing
from penwright.formats.gguf_import import read_gguf
from penwright.formats.hub import PREFIX, download
from penwright.formats.huggingface_import import read_huggingface
from penwright.formats.pretrained import Pretrained
from penwright.languages import Languages
from penwright.run.folder import Run, require_unused
from penwright.storage import sha256_of
from penwright.workflows.consistency import made_with
from penwright.workflows.load import CORPUS, load


def import_model(source: str, folder: Path, languages: Languages | None = None, say: Say = say_nothing) -> Application:
    """Import a folder in the layout of the Hugging Face hub, `hub:NAME` or a GGUF file, as a new run.

    Multilingual translation models need `languages`. Raises PenwrightError if the model cannot be used, and
    then leaves no folder behind.
    """
    require_unused(folder)
    path = download(source.removeprefix(PREFIX)) if source.startswith(PREFIX) else Path(source)
    if not path.exists():
        raise PenwrightError(f"there is no {path}. Name a folder with config.json, a GGUF file, or {PREFIX}NAME")
    model = read_huggingface(path, languages) if path.is_dir() else read_gguf(path)
    for note in model.notes:
        say(note)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    except OSError as error:
        raise PenwrightError(f"{folder} cannot be created: {error.strerror}") from error
    try:
        _write(model, source, unfinished)
        unfinished.chmod(0o755)
        if folder.exists():  # empty, or from a run that was stopped before its first checkpoint
            rmtree(folder)
        unfinished.replace(folder)
    except OSError as error:
        raise PenwrightError(f"{folder} cannot be written: {error}") from error
    finally:
        rmtree(unfinished, ignore_errors=True)
    return load(folder)


def _write(model: Pretrained, source: str, folder: Path) -> None:
    """Write the run folder."""
    run = Run.create(folder)
    outline, languages = model.outline, model.languages
    table = {
        "task": outline.task,
        "data": {"train": [source]},
        "tokenizer": {"type": "imported"},
        "model": outline.settings.model_dump(),
        "training": {"steps": 1},  # a budget is required; an imported model is not trained further here
    }
    recipe = validate(Recipe, table, source)
    model.tokenizer.save(run.tokenizer_path)
    run.save_recipe(recipe)
    files = [
        {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256_of(path.resolve())} for path in model.files
    ]
    card = {"labels": model.labels, "languages": languages}
    origin = {"source": source, "architecture": model.architecture, "licence": model.licence}
    record = {"fingerprint": _fingerprint(files), "files": files, "card": card, "imported": origin}
    run.write_json(CORPUS, record)
    run.made_with = made_with(run, recipe)
    run.save_checkpoint(0, model.weights, {}, {"step": 0, "total_steps": 0, "best_step": 0})


def _fingerprint(files: Sequence[dict[str, object]]) -> str:
    return hashlib.sha256(json.dumps([file["sha256"] for file in files]).encode()).hexdigest()
