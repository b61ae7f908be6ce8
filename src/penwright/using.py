"""What a run is good for: load its model, measure it, take it elsewhere."""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from warnings import warn

import torch

from penwright.config import Precision, Recipe, Table, merge, validate
from penwright.data.corpora import Document, Pair
from penwright.decoding import Aligner, Classifier, Generator, Head, Translator, choose_head
from penwright.decoding.step import compile_steps
from penwright.errors import PenwrightError, UsageError
from penwright.evaluation.novelty import NoveltyReport, measure, passages
from penwright.evaluation.perplexity import surprise
from penwright.evaluation.scores import Score
from penwright.evaluation.tuning import Tuning, tune, tuned
from penwright.formats.export import Format, save_as
from penwright.layers.quantised import to_precision
from penwright.models import Model, make_model
from penwright.models.weights import load_weights
from penwright.runs import Run
from penwright.tasks import TASKS, Application, Card, Workbench, make_application, reading_of
from penwright.tasks.stores import token_store
from penwright.tasks.translating import score_translations
from penwright.tokenizers import Tokenizer

QUICKENED = "quickened.json"  # in a run folder: the precision to use it in
QUICKEST_FIRST: tuple[Precision, ...] = ("int8", "bfloat16", "float32")
AS_GOOD = 0.005  # nats a token
MEASURED_BATCHES = 100
ALIGNMENT = "alignment.json"  # of a run: the head of attention that aligns best


def load(folder: str | Path, device: str = "cpu", precision: Precision | None = None) -> Application:
    """The best model of a run, ready to use: a Generator, a Translator or a Classifier.

    Weights are in float32, unless `quicken` has found another precision to be as good, or one is asked for.
    """
    run = Run.open(Path(folder))
    recipe, tokenizer, card = run.recipe, Tokenizer.load(run.tokenizer_path), _card(run)
    model = _best_model(run, recipe, tokenizer, card)
    to_precision(model, precision or _kept_precision(run, device))
    return make_application(model.to(device).eval(), tokenizer, recipe, card)


def load_generator(folder: Path, device: str = "cpu", precision: Precision | None = None) -> Generator:
    """A run that writes; raises UsageError for one that does something else."""
    application = load(folder, device, precision)
    if not isinstance(application, Generator):
        raise _wrong_kind(folder, application, "generate", "continues text with a generator")
    return application


def load_translator(folder: Path, device: str = "cpu", precision: Precision | None = None) -> Translator:
    """A run that translates; raises UsageError for one that does something else."""
    application = load(folder, device, precision)
    if not isinstance(application, Translator):
        raise _wrong_kind(folder, application, "translate", "needs a translator")
    return application


def load_classifier(folder: Path, device: str = "cpu") -> Classifier:
    """A run that classifies; raises UsageError for one that does something else."""
    application = load(folder, device)
    if not isinstance(application, Classifier):
        raise _wrong_kind(folder, application, "classify", "needs a classifier")
    return application


def _wrong_kind(folder: Path, application: Application, verb: str, need: str) -> UsageError:
    holds = type(application).__name__.lower()
    right = {"generator": "generate", "translator": "translate", "classifier": "classify"}[holds]
    return UsageError(f'{folder} holds a {holds}; `{verb}` {need}. Try: penwright {right} {folder} "..."')


def evaluate(
    folder: Path,
    paths: Sequence[str] = (),
    changes: Table | None = None,
    device: str = "cpu",
    *,
    beam_size: int | None = None,
    output: Path | None = None,
    precision: Precision = "float32",
) -> Sequence[Score]:
    """The scores of a run's best model on its held-out part, or on all of these files, read with `changes` of [data].

    A translator is scored with its beam, unlike on the way in training; its translations can be kept in `output`.
    """
    run = Run.open(folder)
    recipe = validate(Recipe, merge(run.recipe.model_dump(exclude_none=True), changes or {}), str(folder))
    parts, tokenizer, card = TASKS[recipe.task], Tokenizer.load(run.tokenizer_path), _card(run)
    reading = reading_of(recipe)
    corpus = parts.open_measured(paths, reading) if paths else parts.open_corpus(recipe.data.train, reading)
    held_out = token_store(recipe.task, corpus, tokenizer, card.labels, held_out=True)
    model = _best_model(run, recipe, tokenizer, card).eval()
    to_precision(model, precision)
    bench = Workbench(recipe, corpus, tokenizer, None, held_out, model.to(device), torch.device(device), card)
    if recipe.task == "translate":
        return score_translations(bench, beam_size or recipe.decoding.beam_size, output)
    return parts.evaluate(bench)


def quicken(folder: Path, precision: Precision | None = None) -> Mapping[Precision, float]:
    """Find the quickest precision whose nats a token stay within AS_GOOD of float32's, and compile its steps.

    From then on load() uses both. Gives the nats a token of each precision on (a part of) the held-out text; a
    precision that is asked for is taken whatever its nats are.
    """
    run = Run.open(folder)
    if run.recipe.task == "classify":
        raise UsageError(f"{folder} holds a classifier: it reads each text at once, and has no steps to compile")
    nats = {each: _held_out_nats(run, each) for each in QUICKEST_FIRST}
    good = [each for each in QUICKEST_FIRST if nats[each] <= nats["float32"] + AS_GOOD]
    chosen = precision or good[0]
    application = load(folder, precision=chosen)
    if not isinstance(application, Classifier):
        compile_steps(application.model)
    run.write_json(QUICKENED, {"precision": chosen, "nats": nats})
    return nats


def _held_out_nats(run: Run, precision: Precision) -> float:
    recipe, tokenizer, card = run.recipe, Tokenizer.load(run.tokenizer_path), _card(run)
    parts, cpu = TASKS[recipe.task], torch.device("cpu")
    corpus = parts.open_corpus(recipe.data.train, reading_of(recipe))
    held_out = token_store(recipe.task, corpus, tokenizer, card.labels, held_out=True)
    model = _best_model(run, recipe, tokenizer, card)
    to_precision(model, precision)
    bench = Workbench(recipe, corpus, tokenizer, None, held_out, model, cpu, card)
    return surprise(model, islice(parts.batches(bench, held_out).in_order(), MEASURED_BATCHES), cpu).mean


def _kept_precision(run: Run, device: str) -> Precision:
    """What quicken() has found for CPUs."""
    if torch.device(device).type != "cpu" or not (run.folder / QUICKENED).exists():
        return "float32"
    found: Precision = run.read_json(QUICKENED)["precision"]
    return found


def export(folder: Path, to: Format, output: Path, precision: Precision = "float32") -> None:
    """Write a run's best model to a new folder, as another engine reads it; see the modules of `formats`."""
    run = Run.open(folder)
    recipe, tokenizer = run.recipe, Tokenizer.load(run.tokenizer_path)
    save_as(to, _best_model(run, recipe, tokenizer, _card(run)).eval(), tokenizer, output, precision)


def novelty(folder: Path, texts: Sequence[str]) -> NoveltyReport:
    """How much of these texts stands in the text that a writer learned from, beside passages that were held out.

    Raises PenwrightError where that text is gone, or has changed since.
    """
    run = Run.open(folder)
    recipe = run.recipe
    if recipe.task != "generate":
        raise UsageError(f"{folder} does not write texts of its own, so that there is no novelty to measure")
    corpus = TASKS[recipe.task].open_corpus(recipe.data.train, reading_of(recipe))
    if run.read_json("corpus.json")["fingerprint"] != corpus.fingerprint:
        raise PenwrightError(
            f"{', '.join(recipe.data.train)} is not what {folder} was trained on: it has changed since. "
            "Put the old content back to measure what is copied from it."
        )
    training, held_out = (
        [document for document in part if isinstance(document, Document)] for part in (corpus.training, corpus.held_out)
    )
    pieces = passages(held_out, int(median(map(len, texts))) or 1) if texts else []
    measured = tuple(measure([*texts, *pieces], training))
    return NoveltyReport(measured[: len(texts)], measured[len(texts) :])


def tune_decoding(
    folder: Path, paths: Sequence[str] = (), device: str = "cpu", *, beam_size: int | None = None
) -> Tuning:
    """Try length and coverage penalties on the run's held-out pairs, or on all of these files.

    Where the best are better than those in use by more than chance, the run's recipe has them afterwards.
    """
    run, translator = Run.open(folder), load_translator(folder, device)
    if beam_size is not None:
        translator.defaults = translator.defaults.model_copy(update={"beam_size": beam_size})
    pairs = _pairs(run, paths)
    tuning = tune(translator, [pair.source for pair in pairs], [pair.target for pair in pairs])
    if tuning.is_better:
        recipe = run.recipe
        run.save_recipe(recipe.model_copy(update={"decoding": tuned(recipe.decoding, tuning.trials[0])}))
    return tuning


def load_aligner(folder: Path, device: str = "cpu", paths: Sequence[str] = ()) -> Aligner:
    """A run that translates, as one that aligns.

    Its head is chosen once, on the run's held-out pairs or on those of these files, and kept in alignment.json.
    """
    run, translator = Run.open(folder), load_translator(folder, device, "float32")
    if not (run.folder / ALIGNMENT).is_file():
        pairs = [(pair.source, pair.target) for pair in _pairs(run, paths)]
        best = choose_head(translator.model, translator.tokenizer, pairs)[0]
        run.write_json(ALIGNMENT, {**best.head._asdict(), "f1": best.f1, "n_pairs": len(pairs)})
    kept = run.read_json(ALIGNMENT)
    return Aligner(translator.model, translator.tokenizer, Head(kept["layer"], kept["head"], kept["shift"]))


def _pairs(run: Run, paths: Sequence[str]) -> list[Pair]:
    recipe = run.recipe
    reading, parts = reading_of(recipe), TASKS[recipe.task]
    corpus = parts.open_measured(paths, reading) if paths else parts.open_corpus(recipe.data.train, reading)
    return [pair for pair in corpus.held_out if isinstance(pair, Pair)]


def _best_model(run: Run, recipe: Recipe, tokenizer: Tokenizer, card: Card) -> Model:
    checkpoint, warnings = run.best()
    for warning in warnings:
        warn(warning, stacklevel=3)
    model = make_model(recipe.task, tokenizer.vocab_size, recipe.model, len(card.labels))
    load_weights(model, checkpoint.weights(), str(checkpoint.folder))
    return model


def _card(run: Run) -> Card:
    card = run.read_json("corpus.json")["card"]
    return Card(tuple(card["labels"]), card["max_source_tokens"])
