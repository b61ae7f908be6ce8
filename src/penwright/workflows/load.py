"""What a run is good for: load its model, measure it, take it elsewhere."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from statistics import median
from typing import NamedTuple
from warnings import warn

import torch

from penwright.classification.classifier import Classifier
from penwright.config import Precision, Recipe, Table, merge, validate
from penwright.data.corpora import Document
from penwright.data.languages import Languages
from penwright.data.paths import found_from
from penwright.data.report import count
from penwright.decoding.engine import are_steps_kept
from penwright.devices import CPU, keep_freed_memory, usable_device
from penwright.errors import PenwrightError, PenwrightWarning, Say, UsageError, say_nothing
from penwright.evaluation.novelty import NoveltyReport, measure, passages
from penwright.evaluation.scores import Score
from penwright.formats.export import Format, save_as
from penwright.generation.generator import Generator
from penwright.model import Model, make_model
from penwright.model.attention import avoid_planned_attention
from penwright.model.quantised import to_precision
from penwright.model.weights import load_weights
from penwright.run.folder import WEIGHTS, Checkpoint, Record, Run
from penwright.tasks import TASKS, AnyCorpus, Application, Card, RunContext, make_application, reading_of, translation
from penwright.tasks.token_stores import token_store
from penwright.tokenizers import Tokenizer
from penwright.translation.translator import Translator

CORPUS = "corpus.json"  # in a run folder: what it was trained on
QUICKENED = "quickened.json"  # in a run folder: the precision to use it in


class Opened(NamedTuple):
    """A run folder with what every use of it needs."""

    run: Run
    recipe: Recipe
    tokenizer: Tokenizer
    card: Card
    checkpoint: Checkpoint | None = None  # the one that was asked for

    def model(self, precision: Precision = "float32") -> Model:
        """Its best model, or that of its checkpoint; warns of damaged checkpoints that were passed over."""
        keep_freed_memory()
        avoid_planned_attention()
        if self.checkpoint is not None:
            self.checkpoint.verify(WEIGHTS)
        checkpoint, warnings = (self.checkpoint, []) if self.checkpoint else self.run.best()
        for warning in warnings:
            warn(warning, PenwrightWarning, stacklevel=3)
        model = make_model(self.recipe.task, self.tokenizer.vocab_size, self.recipe.model, len(self.card.labels)).eval()
        load_weights(model, checkpoint.weights(), str(checkpoint.folder))
        to_precision(model, precision)
        return model

    def corpus(self, paths: Sequence[str] = ()) -> AnyCorpus:
        """Its own, or all of these files to measure on.

        Raises PenwrightError where its own has changed since: what is held out of it now may have been trained on.
        """
        parts, reading = TASKS[self.recipe.task], reading_of(self.recipe)
        if paths:
            return parts.open_measured(paths, reading)
        corpus = parts.open_corpus(self.recipe.data.train, reading)
        require_unchanged(self.run, corpus, "Put the old content back, or name other files to measure on.")
        return corpus

    def bench(self, corpus: AnyCorpus, model: Model, device: torch.device = CPU) -> RunContext:
        """All parts laid out, to measure this model on the held-out part of this corpus."""
        recipe, tokenizer, card = self.recipe, self.tokenizer, self.card
        held_out = token_store(recipe.task, corpus, tokenizer, card.labels, held_out=True)
        return RunContext(recipe, corpus, tokenizer, None, held_out, model.to(device), device, card)


def corpus_record(run: Run) -> Record:
    """What a run was trained on; raises PenwrightError where it was stopped before that was known."""
    if not (run.folder / CORPUS).exists():
        raise PenwrightError(
            f"{run.folder} was stopped before its training began: give the command that began it once more"
        )
    return run.read_json(CORPUS)


def require_unchanged(run: Run, corpus: AnyCorpus, advice: str) -> None:
    """Raises PenwrightError unless this is what the run was trained on, with the same part held out."""
    before = corpus_record(run)
    if before["fingerprint"] == corpus.fingerprint:
        return
    known, found = ({file["sha256"] for file in before["files"]}, {file.sha256 for file in corpus.files})
    changed = [str(file.path) for file in corpus.files if file.sha256 not in known]
    changed = changed or [file["path"] for file in before["files"] if file["sha256"] not in found]
    names = {Path(file["path"]).name for file in before["files"]}
    if changed and not names & {Path(path).name for path in changed}:
        named = ", ".join(file["path"] for file in before["files"])
        raise PenwrightError(f"{run.folder} was trained on other data than {', '.join(changed)}: on {named}. {advice}")
    what = ", ".join(changed) if changed else "how the data is read (a [data] setting, or a newer Penwright)"
    raise PenwrightError(f"{run.folder} was trained on other data: {what} changed since. {advice}")


def opened(folder: str | Path) -> Opened:
    """A run, or one checkpoint (a folder of its checkpoints/); raises PenwrightError where there is none."""
    folder = Path(folder)
    home = folder.parent.parent
    is_inside = folder.parent.name == "checkpoints" and (home / "recipe.toml").is_file()
    kept = Run(home).checkpoints() if is_inside else []
    checkpoint = next((each for each in kept if each.folder == folder), None)
    if is_inside and not checkpoint:
        there = ", ".join(each.folder.name for each in kept) or "none yet"
        raise PenwrightError(f"{home} has no checkpoint {folder.name}; there are: {there}")
    run = Run.open(home if checkpoint else folder)
    card = corpus_record(run)["card"]
    languages = Languages(*card["languages"]) if card.get("languages") else None  # older runs do not say
    made = Card(tuple(card["labels"]), card["max_source_tokens"], languages)
    return Opened(run, recipe_here(run), Tokenizer.load(run.tokenizer_path), made, checkpoint)


def recipe_here(run: Run) -> Recipe:
    """Its recipe as it can be followed from any folder: files are those that it found where it was trained."""
    recipe, origin = run.recipe, corpus_record(run).get("trained_from")
    if origin is None:  # older runs do not say
        return recipe

    def here(paths: Sequence[str]) -> tuple[str, ...]:
        return tuple(found_from(run.folder / origin, path) for path in paths)

    data, distillation = recipe.data, recipe.distillation
    data = data.model_copy(update={"train": here(data.train), "validation": here(data.validation)})
    if distillation is not None:
        distillation = distillation.model_copy(update={"teachers": here(distillation.teachers)})
    return recipe.model_copy(update={"data": data, "distillation": distillation})


def load(folder: str | Path, device: str = "cpu", precision: Precision | None = None) -> Application:
    """The best model of a run, or that of a checkpoint, ready to use: a Generator, a Translator or a Classifier.

    Weights are in float32, unless `quicken` has found another precision to be as good, or one is asked for.
    """
    here, it = usable_device(device), opened(folder)
    model = it.model(precision or _kept_precision(it.run, here))
    if precision is None and (why := _why_slow(it.run, model, here)):
        slow = f"{folder} is slower than it could be until `penwright quicken {quote(str(folder))}`: {why}"
        warn(slow, PenwrightWarning, stacklevel=2)
    return make_application(model.to(here), it.tokenizer, it.recipe, it.card)


def load_generator(folder: Path, device: str = "cpu", precision: Precision | None = None) -> Generator:
    """A run that writes; raises UsageError for one that does something else."""
    application = load(folder, device, precision)
    if not isinstance(application, Generator):
        raise _wrong_kind(folder, application, "generate", "needs a writer")
    return application


def load_translator(
    folder: Path, device: str = "cpu", precision: Precision | None = None, verb: str = "translate"
) -> Translator:
    """A run that translates; raises UsageError, which calls the wish `verb`, for one that does something else."""
    application = load(folder, device, precision)
    if not isinstance(application, Translator):
        raise _wrong_kind(folder, application, verb, "needs a translator")
    return application


def load_classifier(folder: Path, device: str = "cpu") -> Classifier:
    """A run that classifies; raises UsageError for one that does something else."""
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
    """The scores of a run's best model on its held-out part, or on all of these files, read with `changes` of [data].

    It is measured as load() uses it: in the precision that `quicken` has found, unless one is asked for. A translator
    is scored with its beam, unlike on the way in training; its translations can be kept in `output`.
    """
    here, it = usable_device(device), opened(folder)
    recipe = validate(Recipe, merge(it.recipe.model_dump(exclude_none=True), changes or {}), str(folder))
    it = it._replace(recipe=recipe)
    bench = it.bench(it.corpus(paths), it.model(precision or _kept_precision(it.run, here)), here)
    n_examples = len(bench.corpus.held_out)
    if recipe.task == "translate":
        beam_size = beam_size or recipe.decoding.beam_size
        say(f"translating {n_examples:,} sources with {beam_size} {'beam' if beam_size == 1 else 'beams'}")
        return translation.evaluate(bench, beam_size, output)
    say(f"measuring on {count(n_examples, bench.corpus.report.unit)}")
    return TASKS[recipe.task].evaluate(bench)


def kept_precision(folder: str | Path, device: str = "cpu") -> Precision:
    """The precision that a run is used in where none is asked for: what `quicken` has found, or float32."""
    return _kept_precision(opened(folder).run, usable_device(device))


def _kept_precision(run: Run, device: torch.device) -> Precision:
    finding = run.finding(QUICKENED) if device.type == "cpu" else None  # which it was found for
    return finding["precision"] if finding else "float32"


def _why_slow(run: Run, model: Model, device: torch.device) -> str:
    """Why a run that was quickened is not as quick as it was; "" where it is, or never was."""
    if device.type != "cpu" or not (run.folder / QUICKENED).is_file():
        return ""
    if run.finding(QUICKENED) is None:
        return "it has learned more since the last time"
    return "" if are_steps_kept(model) else "its steps are not kept"


def export(folder: Path, to: Format, output: Path, precision: Precision = "float32") -> None:
    """Write a run's best model to a new folder, as another engine reads it; see the modules of `formats`."""
    it = opened(folder)
    save_as(to, it.model(), it.tokenizer, output, precision)


def novelty(folder: Path, texts: Sequence[str]) -> NoveltyReport:
    """How much of these texts stands in the text that a writer learned from, beside passages that were held out."""
    it = opened(folder)
    if it.recipe.task != "generate":
        raise UsageError(f"{folder} does not write texts of its own, so that there is no novelty to measure")
    corpus = it.corpus()
    training, held_out = (
        [document for document in part if isinstance(document, Document)] for part in (corpus.training, corpus.held_out)
    )
    pieces = passages(held_out, int(median(map(len, texts))) or 1) if texts else []
    measured = tuple(measure([*texts, *pieces], training))
    return NoveltyReport(measured[: len(texts)], measured[len(texts) :])
