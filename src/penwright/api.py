"""The Python door: plan, train, resume, load and evaluate, in the order in which a run is made."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from warnings import warn

import torch

from penwright.config import BUDGETS, Recipe, Table, Task, merge, read_toml, validate
from penwright.data.corpora import detect_task
from penwright.data.store import TokenStore, cached_store, store_key
from penwright.data.store_writer import write_store
from penwright.decoding import Classifier, Generator, Translator
from penwright.errors import PenwrightError, UsageError
from penwright.evaluation.scores import Score
from penwright.models import Model, make_model
from penwright.models.weights import load_weights
from penwright.runs import Run
from penwright.tasks import (
    TASKS,
    AnyCorpus,
    Application,
    Card,
    Workbench,
    make_application,
    make_card,
)
from penwright.tasks.translating import score_translations
from penwright.tokenizers import Tokenizer, train_tokenizer
from penwright.training.machine import Machine, choose_machine
from penwright.training.planning import Facts, Plan, make_plan, measure_speed
from penwright.training.session import Observer, Session
from penwright.training.trainer import Trainer

SEEN_FOR_FACTS = 2_000_000  # characters read to see which distinct ones there are


@dataclass(frozen=True)
class Prepared:
    """A plan with the corpus and the machine that it was made for; nothing is written yet."""

    plan: Plan
    corpus: AnyCorpus
    machine: Machine
    reason: str  # for the task


def read_recipe(path: Path, above: Table) -> Table:
    """A recipe's tables; without its budget when `above`, which will be laid over it, gives another."""
    table = read_toml(path)
    if any(name in above.get("training", {}) for name in BUDGETS) and "training" in table:
        table["training"] = {key: value for key, value in table["training"].items() if key not in BUDGETS}
    return table


def prepare(given: Table) -> Prepared:
    """Open the corpus, look at the machine, choose what is not `given` (the tables of a recipe)."""
    data = given.get("data", {})
    paths = tuple(data.get("train", ()))
    if not paths:
        raise UsageError("nothing to train on: name a file, a folder or hub:NAME")
    task, reason = (given["task"], "as asked") if "task" in given else detect_task(paths)
    if task not in TASKS:
        raise UsageError(f"there is no task '{task}'; the tasks are {', '.join(TASKS)}")
    first = validate(Recipe, merge({"model": {}, "training": _budget(given)}, given, {"task": task}), "the settings")
    corpus = TASKS[first.task].open_corpus(first.data, first.seed)
    machine = choose_machine(first.training, expected_minutes=first.training.minutes)
    facts = _facts(first.task, corpus)
    plan = make_plan(facts, given, measure_speed(machine.device, machine.precision))
    return Prepared(plan, corpus, machine, reason)


def _budget(given: Table) -> Table:
    """Any budget, so that the settings can be checked before the real one is chosen."""
    return {} if any(name in given.get("training", {}) for name in BUDGETS) else {"steps": 1}


def _facts(task: Task, corpus: AnyCorpus) -> Facts:
    distinct: set[str] = set()
    seen = 0
    for text in TASKS[task].texts(corpus):
        distinct.update(text)
        seen += len(text)
        if seen > SEEN_FOR_FACTS:
            break
    return Facts(task, corpus.n_training, corpus.training_bytes, len(distinct), len(corpus.labels))


def train(prepared: Prepared, folder: Path, observers: Sequence[Observer] = ()) -> Application:
    """Train what was prepared, in a new run folder; returns the best model of the run, ready to use."""
    recipe, machine = _resolve(prepared.plan.recipe, prepared.machine), prepared.machine
    parts, corpus = TASKS[recipe.task], prepared.corpus
    run = Run.create(folder)
    torch.manual_seed(recipe.seed)
    _say(observers, f"training a tokenizer ({recipe.tokenizer.type}) on the text")
    tokenizer = train_tokenizer(recipe.tokenizer.type, parts.texts(corpus), recipe.tokenizer.vocab_size)
    for note in tokenizer.notes:
        _say(observers, note)
    tokenizer.save(run.tokenizer_path)
    run.save_recipe(recipe)
    bench = _lay_out(recipe, corpus, tokenizer, machine.device)
    _keep_corpus(run, bench)
    trainer = _trainer(bench, machine)
    for score in parts.baselines(bench):
        _say(observers, f"to beat: {score.name} {score.value:.3f} ({score.note})")
    return _fit(run, bench, trainer, observers)


def resume(folder: Path, changes: Table, observers: Sequence[Observer] = ()) -> Application:
    """Go on where a run stopped, bit for bit; or with `changes`: a further budget, another place of the same data."""
    run = Run.open(folder)
    more = {name: value for name, value in changes.get("training", {}).items() if name in BUDGETS}
    table = run.recipe.model_dump(exclude_none=True)
    if more:
        table["training"] = {key: value for key, value in table["training"].items() if key not in BUDGETS}
    recipe = validate(Recipe, merge(table, changes), str(folder))
    machine = choose_machine(recipe.training)
    torch.manual_seed(recipe.seed)
    corpus = TASKS[recipe.task].open_corpus(recipe.data, recipe.seed)
    _check_unchanged(run, corpus)
    bench = _lay_out(recipe, corpus, Tokenizer.load(run.tokenizer_path), machine.device)
    trainer = _trainer(bench, machine)
    if run.checkpoints():  # else it was stopped before its first one, and the seed gives the same beginning again
        checkpoint, warnings = run.newest()
        for warning in warnings:
            _say(observers, warning)
        trainer.load(checkpoint)
    run.forget_after(trainer.state.step)
    if more and trainer.state.step:
        trainer.extend()
    if more:
        run.save_recipe(recipe)
    state = trainer.state
    if state.total_steps is not None and state.step >= state.total_steps:
        raise PenwrightError(
            f"{folder} is already at step {state.step:,} of {state.total_steps:,}. "
            f"To train further, give a further budget: penwright train --resume {folder} --minutes 5"
        )
    _say(observers, f"going on from step {state.step:,}")
    return _fit(run, bench, trainer, observers)


def load(folder: str | Path, device: str = "cpu") -> Application:
    """The best model of a run, ready to use: a Generator, a Translator or a Classifier."""
    run = Run.open(Path(folder))
    recipe, tokenizer, card = run.recipe, Tokenizer.load(run.tokenizer_path), _card(run)
    model, warnings = _best_model(run, recipe, tokenizer, card)
    for warning in warnings:
        warn(warning, stacklevel=2)
    return make_application(model.to(device).eval(), tokenizer, recipe, card)


def _best_model(run: Run, recipe: Recipe, tokenizer: Tokenizer, card: Card) -> tuple[Model, list[str]]:
    checkpoint, warnings = run.best()
    model = make_model(recipe.task, tokenizer.vocab_size, recipe.model, len(card.labels))
    load_weights(model, checkpoint.weights(), str(checkpoint.folder))
    return model, warnings


def load_generator(folder: Path, device: str = "cpu") -> Generator:
    """A run that writes; raises UsageError for one that does something else."""
    application = load(folder, device)
    if not isinstance(application, Generator):
        raise _wrong_kind(folder, application, "generate", "continues text with a generator")
    return application


def load_translator(folder: Path, device: str = "cpu") -> Translator:
    """A run that translates; raises UsageError for one that does something else."""
    application = load(folder, device)
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
) -> Sequence[Score]:
    """The scores of a run's best model on its held-out part, or on all of these files, read with `changes` of [data].

    A translator is scored with its beam, unlike on the way in training; its translations can be kept in `output`.
    """
    run = Run.open(folder)
    recipe = validate(Recipe, merge(run.recipe.model_dump(exclude_none=True), changes or {}), str(folder))
    parts, tokenizer, card = TASKS[recipe.task], Tokenizer.load(run.tokenizer_path), _card(run)
    corpus = parts.open_measured(recipe.data, paths) if paths else parts.open_corpus(recipe.data, recipe.seed)
    held_out = _store(recipe, corpus, tokenizer, card.labels, held_out=True)
    model = _best_model(run, recipe, tokenizer, card)[0].to(device)
    bench = Workbench(recipe, corpus, tokenizer, None, held_out, model, torch.device(device), card)
    if recipe.task == "translate":
        return score_translations(bench, beam_size or recipe.decoding.beam_size, output)
    return parts.evaluate(bench)


def new_run_folder(recipe: Recipe) -> Path:
    """A folder under runs/ named after the text, that does not exist yet."""
    name = Path(recipe.data.train[0].removeprefix("hub:")).name.split(".")[0] or "run"
    folders = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in range(1, 10_000))
    return next(folder for folder in folders if not folder.exists())


def _resolve(recipe: Recipe, machine: Machine) -> Recipe:
    """What was left to this machine is written down, so that resuming does the same."""
    training = recipe.training.model_copy(
        update={
            "precision": str(machine.precision).removeprefix("torch."),
            "compile": "on" if machine.compile else "off",
        }
    )
    return recipe.model_copy(update={"training": training})


def _lay_out(recipe: Recipe, corpus: AnyCorpus, tokenizer: Tokenizer, device: torch.device) -> Workbench:
    training = _store(recipe, corpus, tokenizer, corpus.labels, held_out=False)
    held_out = _store(recipe, corpus, tokenizer, corpus.labels, held_out=True)
    model = make_model(recipe.task, tokenizer.vocab_size, recipe.model, len(corpus.labels))
    card = make_card(corpus, training)
    return Workbench(recipe, corpus, tokenizer, training, held_out, model.to(device), device, card)


def _store(
    recipe: Recipe, corpus: AnyCorpus, tokenizer: Tokenizer, labels: Sequence[str], *, held_out: bool
) -> TokenStore:
    """The tokens of one part of the corpus, from the cache where they were made before."""
    parts, part = TASKS[recipe.task], corpus.held_out if held_out else corpus.training
    key = store_key(corpus.fingerprint, tokenizer.fingerprint, "held out" if held_out else "training", *labels)

    def build(folder: Path) -> None:
        write_store(folder, parts.columns, parts.rows(part, labels), tokenizer, key, parts.labels)

    return cached_store(_cache_folder(), key, build)


def _cache_folder() -> Path:
    chosen = os.environ.get("PENWRIGHT_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "penwright" / "tokens"


def _keep_corpus(run: Run, bench: Workbench) -> None:
    corpus = bench.corpus
    files = [{"path": str(file.path), "bytes": file.n_bytes, "sha256": file.sha256} for file in corpus.files]
    record = {"fingerprint": corpus.fingerprint, "files": files, "report": corpus.report.as_dict()}
    run.write_json("corpus.json", {**record, "card": asdict(bench.card)})


def _card(run: Run) -> Card:
    card = run.read_json("corpus.json")["card"]
    return Card(tuple(card["labels"]), card["max_source_tokens"])


def _check_unchanged(run: Run, corpus: AnyCorpus) -> None:
    before = run.read_json("corpus.json")
    if before["fingerprint"] == corpus.fingerprint:
        return
    known = {file["sha256"] for file in before["files"]}
    changed = [str(file.path) for file in corpus.files if file.sha256 not in known]
    what = ", ".join(changed) if changed else "how the data is read (a [data] setting)"
    raise PenwrightError(
        f"{run.folder} was trained on other data: {what} changed since. Put the old content back to resume, "
        f"or train anew with another --run."
    )


def _trainer(bench: Workbench, machine: Machine) -> Trainer:
    assert bench.training is not None
    batches = TASKS[bench.recipe.task].batches(bench, bench.training)
    return Trainer(bench.model, batches, bench.recipe, machine)


def _fit(run: Run, bench: Workbench, trainer: Trainer, observers: Sequence[Observer]) -> Application:
    parts = TASKS[bench.recipe.task]
    Session(run, trainer, lambda: parts.evaluate(bench), lambda: parts.sample(bench), observers).fit()
    checkpoint, _ = run.best()
    load_weights(bench.model, checkpoint.weights(), str(checkpoint.folder))
    bench.model.eval()
    return bench.application


def _say(observers: Sequence[Observer], text: str) -> None:
    for observer in observers:
        observer.said(text)
