"""The provenance of a run: its training data, and the files and settings that its weights were made with.

Mismatched weights may load without an error. With two swapped token ids or a different rotary base, the model writes
nonsense. Each checkpoint therefore records the files and settings that it was made with. They are compared with the
current files and settings of the run before a model is built.
"""

import os
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field, PositiveInt, ValidationError

from penwright.config import Recipe, flatten
from penwright.errors import PenwrightError
from penwright.languages import Languages
from penwright.run.checkpoints import Checkpoint, Record, first_problem
from penwright.run.folder import CORPUS, LINEAR_FILE, RECIPE, TOKENIZER, Run
from penwright.storage import sha256_of

FILES = (TOKENIZER, CORPUS, LINEAR_FILE)
MAY_CHANGE = {  # [model] settings that may change when a run is resumed
    "size",
    "context_length",
    "dropout",
    "attention_dropout",
    "feed_forward_dropout",
    "token_dropout",
    "zero_init_outputs",
}


NotBlank = Annotated[str, Field(pattern=r"\S")]


@dataclass(frozen=True)
class ModelCard:
    """Facts about the training data of a model that are needed for inference, as in the corpus.json of a run."""

    labels: tuple[str, ...] = ()
    max_source_tokens: PositiveInt | None = None  # length of the longest training source in tokens, end token included
    languages: Languages | None = None  # source and target language, if known; missing in older runs
    new_terms: tuple[
        tuple[NotBlank, Annotated[tuple[NotBlank, ...], Field(min_length=1)]], ...
    ] = ()  # dictionary terms that occur in no training sentence, with their translations
    hints: bool = False  # whether a translator was trained with dictionary hints in place of terms; not in older runs
    label_counts: tuple[int, ...] = ()  # number of training texts of each label; missing in older runs


class CorpusFile(BaseModel):
    """The entry in corpus.json for a file that a run was trained on."""

    path: str
    sha256: str


class MergedAdapter(CorpusFile):
    """An adapter that was merged into an imported model: its folder, the SHA-256 sum of its weights, its licence."""

    licence: str | None = None

    def __str__(self) -> str:
        return f"the adapter {self.path} (licence: {self.licence or 'not stated'})"


class Origin(BaseModel):
    """The origin of an imported model, as stored in corpus.json."""

    source: str
    architecture: str
    licence: str | None = None
    files: list[CorpusFile] = []  # files from which the model was imported
    adapters: list[MergedAdapter] = []  # adapters that were merged into the model, in this order

    def __str__(self) -> str:
        adapted = f", with {' and '.join(map(str, self.adapters))} merged" if self.adapters else ""
        return f"imported from {self.source} ({self.architecture}, licence: {self.licence or 'not stated'}){adapted}"

    @property
    def licences(self) -> str | None:
        """The known licences of the model and of the merged adapters."""
        known = filter(None, [self.licence, *(each.licence for each in self.adapters)])
        return ", ".join(dict.fromkeys(known)) or None


class ReadingRecord(BaseModel):
    """What corpus.json says about reading the data: the numbers of examples, and how they were divided."""

    n_read: int
    n_kept: int
    split: str  # description of the training and held-out sets, with their sizes and the seed
    notes: list[str] = []  # such as the chosen columns


class CorpusRecord(BaseModel):
    """The content of corpus.json: what a run was trained on."""

    fingerprint: str
    report: ReadingRecord | None = None  # missing in older runs
    files: list[CorpusFile]
    card: ModelCard
    trained_from: str | None = None  # folder in which the run was trained; missing in older runs
    columns: dict[str, tuple[tuple[str, PositiveInt], ...]] = {}  # columns by role, such as "source"; not in older runs
    imported: Origin | None = None  # origin of the model or of its base, if imported

    @property
    def is_untrained(self) -> bool:
        """Whether this is an imported model without further training. Its training text is not available."""
        return self.imported is not None and self.trained_from is None

    @property
    def is_as_imported(self) -> bool:
        """Whether this is an imported model with its own weights: without training, and without merged adapters."""
        return self.imported is not None and self.is_untrained and not self.imported.adapters


def corpus_record(run: Run) -> CorpusRecord:
    """Return the record of a run's training data. Raise PenwrightError if it is missing or damaged."""
    path = run.folder / CORPUS
    if not os.path.lexists(path):
        raise PenwrightError(f"{run.folder} was stopped before its training began. Repeat the command that started it")
    try:
        return CorpusRecord.model_validate(run.read_json(CORPUS))
    except ValidationError as error:
        raise PenwrightError(f"{path} is damaged: {first_problem(error)}. Restore the original file") from None


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
