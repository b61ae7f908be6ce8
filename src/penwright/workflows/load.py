"""Trained runs: load their models, evaluate them, export them."""

import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from statistics import median
from typing import NamedTuple
from warnings import warn

import torch
from pydantic import BaseModel, PositiveInt, ValidationError

from penwright.classification.classifier import Classifier
from penwright.config import Precision, Recipe, Table, merge, validate
from penwright.data.corpora import Document, Roles
from penwright.data.languages import Languages, languages_between
from penwright.data.paths import resolve_from
from penwright.data.report import count
from penwright.decoding.engine import are_steps_kept
from penwright.devices import CPU, keep_freed_memory, usable_device
from penwright.errors import PenwrightError, PenwrightWarning, Say, UsageError, say_nothing
from penwright.evaluation.novelty import NoveltyReport, measure, passages
from penwright.evaluation.scores import Baseline, Score
from penwright.formats.export import Format, save_as
from penwright.generation.generator import Generator
from penwright.model import Model, make_model
from penwright.model.attention import disable_cudnn_attention
from penwright.model.quantised import to_precision
from penwright.model.weights import load_weights
from penwright.run.checkpoints import WEIGHTS, Checkpoint, Tensors, first_problem
from penwright.run.folder import Run
from penwright.tasks import (
    TASKS,
    AnyCorpus,
    Application,
    ModelCard,
    RunContext,
    languages_of,
    make_application,
    reading_of,
    translation,
)
from penwright.tasks.token_stores import kept_training_tokens, token_store
from penwright.tokenizers import Tokenizer
from penwright.translation.translator import Translator
from penwright.workflows.consistency import require_made_with, require_shapes

CORPUS = "corpus.json"  # in a run folder: what it was trained on
QUICKENED = "quickened.json"  # in a run folder: the precision that `optimize` chose


class OptimizeRecord(BaseModel):
    """The content of quickened.json."""

    precision: Precision


class OpenedRun(NamedTuple):
    """An opened run folder, with everything that its uses need."""

    run: Run
    recipe: Recipe
    tokenizer: Tokenizer
    card: ModelCard
    checkpoint: Checkpoint | None = None  # the requested one; None: the best

    def model(self, precision: Precision = "float32") -> Model:
        """Load its best model, or the model of its checkpoint. Warn of damaged checkpoints that are skipped."""
        keep_freed_memory()
        disable_cudnn_attention()
        if self.checkpoint is not None:
            self.checkpoint.verify(WEIGHTS)
            weights, warnings = self._weights(self.checkpoint), list[str]()
        else:
            weights, warnings = self.run.read_best(self._weights)
        for warning in warnings:
            warn(warning, PenwrightWarning, stacklevel=3)
        model = make_model(self.recipe.task, self.tokenizer.vocab_size, self.recipe.model, len(self.card.labels)).eval()
        load_weights(model, weights, str(self.run.folder))
        to_precision(model, precision)
        return model

    def _weights(self, checkpoint: Checkpoint) -> Tensors:
        """Return the weights of this checkpoint. Raise PenwrightError if other files of the run do not match it."""
        require_made_with(checkpoint, self.run, self.recipe)
        require_shapes(checkpoint, self.recipe, self.tokenizer.vocab_size, len(self.card.labels))
        return checkpoint.weights()

    def corpus(self, paths: Sequence[str] = ()) -> AnyCorpus:
        """Open the corpus of the run, or all of these files to evaluate on.

        Raises PenwrightError if the run's own data has changed: what is held out now may have been trained on.
        """
        parts, reading = TASKS[self.recipe.task], reading_of(self.recipe, columns_of_training(self.run))
        if paths:
            return parts.open_measured(paths, reading)
        corpus = parts.open_corpus(self.recipe.data.train, reading)
        require_unchanged(self.run, corpus, "Restore the original data, or name other files to evaluate on.")
        return corpus

    def make_context(self, corpus: AnyCorpus, model: Model, device: torch.device = CPU) -> RunContext:
        """Return the context for evaluating this model on the held-out part of this corpus."""
        recipe, tokenizer, card = self.recipe, self.tokenizer, self.card
        held_out = token_store(recipe.task, corpus, tokenizer, card.labels, held_out=True)
        return RunContext(recipe, corpus, tokenizer, None, held_out, model.to(device), device, card)


class LearnedFrom(BaseModel):
    """A file that a run was trained on, as corpus.json keeps it."""

    path: str
    sha256: str


class KeptCard(BaseModel):
    """A Card as corpus.json keeps it."""

    labels: list[str] = []
    max_source_tokens: PositiveInt | None = None
    languages: tuple[str, str] | None = None  # missing in older runs


class CorpusRecord(BaseModel):
    """The content of corpus.json: what a run was trained on."""

    fingerprint: str
    files: list[LearnedFrom]
    card: KeptCard
    trained_from: str | None = None  # missing in older runs
    columns: dict[str, tuple[tuple[str, PositiveInt], ...]] = {}  # by role; missing in older runs


def corpus_record(run: Run) -> CorpusRecord:
    """Return what a run was trained on. Raise PenwrightError if the run stopped too early to know, or is damaged."""
    path = run.folder / CORPUS
    if not os.path.lexists(path):
        raise PenwrightError(f"{run.folder} was stopped before its training began. Run the command that began it again")
    try:
        return CorpusRecord.model_validate(run.read_json(CORPUS))
    except ValidationError as error:
        raise PenwrightError(f"{path} is damaged: {first_problem(error)}. Restore the original file") from None


def columns_of_training(run: Run) -> Roles:
    """Return the columns that a run was trained on, by role; none for runs that did not record them."""
    return corpus_record(run).columns


def require_unchanged(run: Run, corpus: AnyCorpus, advice: str) -> None:
    """Raise PenwrightError unless this is what the run was trained on, with the same part held out."""
    before = corpus_record(run)
    if before.fingerprint == corpus.fingerprint:
        return
    known, found = ({file.sha256 for file in before.files}, {file.sha256 for file in corpus.files})
    changed = [str(file.path) for file in corpus.files if file.sha256 not in known]
    changed = changed or [file.path for file in before.files if file.sha256 not in found]
    names = {Path(file.path).name for file in before.files}
    if changed and not names & {Path(path).name for path in changed}:
        named = ", ".join(file.path for file in before.files)
        raise PenwrightError(f"{run.folder} was trained on {named}, not on {', '.join(changed)}. {advice}")
    what = ", ".join(changed) if changed else "how the data is read (a [data] setting, or a newer Penwright)"
    raise PenwrightError(f"{run.folder} was trained on other data: {what} changed since then. {advice}")


def open_run(folder: str | Path) -> OpenedRun:
    """Open a run, or one checkpoint (a folder in its checkpoints/). Raise PenwrightError if there is none."""
    folder = Path(folder)
    home = folder.parent.parent
    is_inside = folder.parent.name == "checkpoints" and (home / "recipe.toml").is_file()
    kept = [each for each in (Run(home).first(), *Run(home).checkpoints()) if each] if is_inside else []
    checkpoint = next((each for each in kept if each.folder == folder), None)
    if is_inside and not checkpoint:
        there = ", ".join(each.folder.name for each in kept) or "none yet"
        raise PenwrightError(f"{home} has no checkpoint {folder.name}. Available: {there}")
    run = Run.open(home if checkpoint else folder)
    run.warn_of_edits()
    card = corpus_record(run).card
    made = ModelCard(tuple(card.labels), card.max_source_tokens, Languages(*card.languages) if card.languages else None)
    return OpenedRun(run, recipe_here(run), Tokenizer.load(run.tokenizer_path), made, checkpoint)


def recipe_here(run: Run) -> Recipe:
    """Return the recipe of a run with the paths of its files resolved from the folder that it was trained in."""
    recipe, origin = run.recipe, corpus_record(run).trained_from
    if origin is None:  # not recorded by older runs
        return recipe

    def here(paths: Sequence[str]) -> tuple[str, ...]:
        return tuple(resolve_from(run.real_folder / origin, path) for path in paths)

    data, distillation = recipe.data, recipe.distillation
    data = data.model_copy(update={"train": here(data.train), "validation": here(data.validation)})
    if distillation is not None:
        distillation = distillation.model_copy(update={"teachers": here(distillation.teachers)})
    return recipe.model_copy(update={"data": data, "distillation": distillation})


def load(folder: str | Path, device: str = "cpu", precision: Precision | None = None) -> Application:
    """Load the best model of a run, or the model of a checkpoint: a Generator, a Translator or a Classifier.

    Weights are in float32, unless `precision` is given, or `optimize` found another one to be as good.
    """
    here, opened_run = usable_device(device), open_run(folder)
    kept = _kept_precision(opened_run.run, here)
    model = opened_run.model(precision or kept or "float32")
    if precision is None and (why := _why_slow(opened_run.run, kept, model, here)):
        slow = f"{folder} is slower than it could be: {why}. Run: penwright optimize {quote(str(folder))}"
        warn(slow, PenwrightWarning, stacklevel=2)
    return make_application(model.to(here), opened_run.tokenizer, opened_run.recipe, opened_run.card)


def load_generator(folder: Path, device: str = "cpu", precision: Precision | None = None) -> Generator:
    """Load a run that generates text. Raise UsageError for any other run."""
    application = load(folder, device, precision)
    if not isinstance(application, Generator):
        raise _wrong_kind(folder, application, "generate", "needs a writer")
    return application


def load_translator(
    folder: Path, device: str = "cpu", precision: Precision | None = None, verb: str = "translate"
) -> Translator:
    """Load a run that translates. Raise UsageError, which names the command `verb`, for any other run."""
    application = load(folder, device, precision)
    if not isinstance(application, Translator):
        raise _wrong_kind(folder, application, verb, "needs a translator")
    return application


def load_classifier(folder: Path, device: str = "cpu") -> Classifier:
    """Load a run that classifies. Raise UsageError for any other run."""
    application = load(folder, device)
    if not isinstance(application, Classifier):
        raise _wrong_kind(folder, application, "classify", "needs a classifier")
    return application


def _wrong_kind(folder: Path, application: Application, verb: str, need: str) -> UsageError:
    right = {"writer": "generate", "translator": "translate", "classifier": "classify"}[application.kind]
    return UsageError(
        f'{folder} holds a {application.kind}; `{verb}` {need}. Try: penwright {right} {quote(str(folder))} "..."'
    )


def evaluate(
    folder: Path,
    paths: Sequence[str] = (),
    changes: Table | None = None,
    device: str = "cpu",
    *,
    beam_size: int | None = None,
    output: Path | None = None,
    precision: Precision | None = None,
    say: Say = say_nothing,
) -> Sequence[Score]:
    """Score a run's best model, with baselines, on its held-out part or on all of these files.

    `changes` to [data] say how the files are read. The model is evaluated as load() uses it: in the precision that
    `optimize` chose, unless one is given. Unlike while training, a translator is scored with beam search. Its
    translations can be written to `output`.
    """
    here, own = usable_device(device), open_run(folder)
    recipe = validate(Recipe, merge(own.recipe.model_dump(exclude_none=True), changes or {}), str(folder))
    opened_run = own._replace(recipe=recipe)
    corpus = opened_run.corpus(paths)
    if paths:
        opened_run, corpus = _in_trained_direction(opened_run, corpus, paths)
        for note in corpus.report.notes:
            say(note)
    bench = opened_run.make_context(
        corpus, opened_run.model(precision or _kept_precision(opened_run.run, here) or "float32"), here
    )
    n_examples = len(bench.corpus.held_out)
    if recipe.task == "translate":
        beam_size = beam_size or recipe.decoding.beam_size
        say(f"translating {n_examples:,} sources with {beam_size} {'beam' if beam_size == 1 else 'beams'}")
        scores = translation.evaluate(bench, beam_size, output)
    else:
        say(f"evaluating on {count(n_examples, bench.corpus.report.unit)}")
        scores = TASKS[recipe.task].evaluate(bench)
    return _with_baselines(_baselines(own, bench, say), scores)


def _baselines(own: OpenedRun, bench: RunContext, say: Say) -> Sequence[Score]:
    """Compute the baselines of the scores. A writer's baselines need the tokens of its training text."""
    recipe = own.recipe
    if recipe.task == "generate":
        given = corpus_record(own.run).fingerprint, own.tokenizer, own.card.labels
        bench.training = kept_training_tokens(*given)
    if recipe.task == "generate" and bench.training is None:
        try:
            corpus = own.corpus()
        except PenwrightError as error:
            say(f"no baselines, since they need the training text: {error}")
            return ()
        say("reading the training text for the baselines")
        bench.training = token_store(recipe.task, corpus, own.tokenizer, own.card.labels, held_out=False)
    return TASKS[recipe.task].baselines(bench, True)


def _with_baselines(baselines: Sequence[Score], scores: Sequence[Score]) -> list[Score]:
    """Attach to each score the baselines of the same name."""
    return [
        score._replace(baselines=tuple(Baseline(b.note, b.value) for b in baselines if b.name == score.name))
        for score in scores
    ]


def _in_trained_direction(
    opened_run: OpenedRun, corpus: AnyCorpus, paths: Sequence[str]
) -> tuple[OpenedRun, AnyCorpus]:
    """Swap source and target, with a warning, if the names of the pairs say so. Warn of other languages."""
    trained, found = languages_of(opened_run.recipe, opened_run.card), languages_between(corpus.names)
    if opened_run.recipe.task != "translate" or trained is None or found is None or _same_languages(trained, found):
        return opened_run, corpus
    direction = f"{opened_run.run.folder} translates from {trained.source} to {trained.target}"
    data = opened_run.recipe.data
    if not _same_languages(trained, Languages(found.target, found.source)) or data.source or data.target:
        other = f"{direction}, but {', '.join(paths)} are read as {found.source} to {found.target}"
        warn(other, PenwrightWarning, stacklevel=3)
        return opened_run, corpus
    warn(
        f"{direction}, but {', '.join(paths)} are the other way round ({found.source}, {found.target}): "
        f"reading {found.target} as the source",
        PenwrightWarning,
        stacklevel=3,
    )
    data = data.model_copy(update={"source": corpus.names[1], "target": corpus.names[0]})
    opened_run = opened_run._replace(recipe=opened_run.recipe.model_copy(update={"data": data}))
    return opened_run, opened_run.corpus(paths)


def _same_languages(first: Languages, second: Languages) -> bool:
    """Return whether both are the same, regardless of region."""
    return [code.split("-")[0] for code in first] == [code.split("-")[0] for code in second]


def kept_precision(folder: str | Path, device: str = "cpu") -> Precision:
    """Return the precision that a run is used in by default: what `optimize` chose, or float32."""
    return _kept_precision(open_run(folder).run, usable_device(device)) or "float32"


def _kept_precision(run: Run, device: torch.device) -> Precision | None:
    """Return the precision that `optimize` chose for the best model on a CPU, or None."""
    finding = run.finding(QUICKENED, OptimizeRecord) if device.type == "cpu" else None
    return finding["precision"] if finding else None


def _why_slow(run: Run, kept: Precision | None, model: Model, device: torch.device) -> str:
    """Return why an optimized run is slower than it could be; "" if it is not, or was never optimized."""
    if device.type != "cpu" or not (run.folder / QUICKENED).is_file():
        return ""
    if kept is None:
        return "it was trained further since it was optimized"
    return "" if are_steps_kept(model) else "its compiled code is missing"


def export(folder: Path, to: Format, output: Path, precision: Precision = "float32") -> None:
    """Write a run's best model to a new folder in the format of another engine. See the modules of `formats`."""
    opened_run = open_run(folder)
    save_as(to, opened_run.model(), opened_run.tokenizer, output, precision)


def novelty(folder: Path, texts: Sequence[str]) -> NoveltyReport:
    """Measure how much of these texts also occurs in a writer's training text, compared with held-out passages."""
    opened_run = open_run(folder)
    if opened_run.recipe.task != "generate":
        raise UsageError(f"{folder} does not generate text, so there is no novelty to measure")
    corpus = opened_run.corpus()
    training, held_out = (
        [document for document in part if isinstance(document, Document)] for part in (corpus.training, corpus.held_out)
    )
    pieces = passages(held_out, int(median(map(len, texts))) or 1) if texts else []
    measured = tuple(measure([*texts, *pieces], training))
    return NoveltyReport(measured[: len(texts)], measured[len(texts) :])
