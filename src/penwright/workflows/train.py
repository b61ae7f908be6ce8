"""Training of a run: from a plan, or resumed."""

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from shlex import quote
from warnings import catch_warnings, simplefilter

import torch

from penwright.application import Application
from penwright.config import BUDGETS, Recipe, Table, merge, one_or_more, require_writable_cache, validate
from penwright.data.paths import relative_to_folder
from penwright.data.report import count
from penwright.devices import advise_on_out_of_memory
from penwright.errors import PenwrightError, UsageError
from penwright.evaluation.scores import Score
from penwright.model import Model, make_model
from penwright.run.checkpoints import Checkpoint
from penwright.run.folder import METRICS, Run
from penwright.run.stop_file import clear_stop_files
from penwright.tasks import TASKS, AnyCorpus, RunContext, make_card, reading_of
from penwright.tasks.token_stores import token_store
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.training.auto.machine import Machine, choose_machine
from penwright.training.compilation import choose_compilation
from penwright.training.distributed import join
from penwright.training.loop import OVER_FITTED, Observer, Session, notify
from penwright.training.signals import STOP_SIGNALS
from penwright.training.tensorboard import StepLog
from penwright.training.trainer import Trainer
from penwright.workflows.consistency import made_with, require_made_with, require_shapes
from penwright.workflows.evaluate import columns_of_training, recipe_here, require_unchanged
from penwright.workflows.load import CORPUS, corpus_record, load
from penwright.workflows.plan import Prepared, apply_changes

CHANGEABLE = {"training", "data", "decoding"}  # tables of a recipe that may change when a run is resumed


def train(prepared: Prepared, folder: Path, observers: Sequence[Observer] = ()) -> Application:
    """Train what was prepared in a new run folder; return the best model of the run, ready to use."""
    run = Run.create(folder)
    with run.lock():
        return _train(prepared, run, observers)


def _train(prepared: Prepared, run: Run, observers: Sequence[Observer]) -> Application:
    recipe, machine = _resolve(prepared.plan.recipe, prepared.machine), prepared.machine
    parts, corpus = TASKS[recipe.task], prepared.corpus
    clear_stop_files(run)
    torch.manual_seed(recipe.seed)
    tokenizer = _tokenizer(recipe, corpus, observers)
    tokenizer.save(run.tokenizer_path)
    run.save_recipe(recipe)
    bench = _make_context(recipe, corpus, tokenizer, machine.device)
    _save_corpus_record(run, bench)
    trainer = _trainer(bench, machine)
    if trainer.batches.n_left_out:
        _say(observers, _left_out_message(trainer.batches.n_left_out, recipe))
    if trainer.batches.n_cut:
        _say(observers, _cut_message(trainer.batches.n_cut, recipe))
    baselines = parts.baselines(bench, False)
    for score in baselines:
        _say(observers, f"to beat: {score.name} {score.value:.3f} ({score.note})")
    return _fit(run, bench, trainer, observers, baselines)


def _left_out_message(n: int, recipe: Recipe) -> str:
    reach = recipe.model.context_length
    return f"left out: {n:,} pairs of more than {reach} tokens, the limit of the model's learned positions"


def _cut_message(n: int, recipe: Recipe) -> str:
    reach = recipe.model.context_length
    return f"{count(n, 'text')} longer than the context of {reach} tokens: each epoch learns from another part of it"


def _tokenizer(recipe: Recipe, corpus: AnyCorpus, observers: Sequence[Observer]) -> Tokenizer:
    """Load the tokenizer of the teachers, if there are any, since a student must use their tokens; else train one."""
    if recipe.distillation:
        return Tokenizer.load(Run.open(Path(recipe.distillation.teachers[0])).tokenizer_path)
    _say(observers, f"training a tokenizer ({recipe.tokenizer.type}) on the text")
    wanted, texts = recipe.tokenizer, TASKS[recipe.task].texts(corpus)
    tokenizer = train_tokenizer(wanted.type, texts, wanted.vocab_size, prefix_space=wanted.prefix_space)
    for note in tokenizer.notes:
        _say(observers, note)
    return tokenizer


def resume(folder: Path, changes: Table, observers: Sequence[Observer] = ()) -> Application:
    """Resume a run bit for bit where it stopped, or with `changes`: more budget, or a new place of the same data."""
    run = Run.open(folder)
    if run.checkpoints() and corpus_record(run).imported:
        raise UsageError(f"{folder} was imported: there is no training to resume")
    with run.lock():
        return _resume(run, changes, observers)


def _resume(run: Run, changes: Table, observers: Sequence[Observer]) -> Application:
    folder = run.folder
    if set(changes) - CHANGEABLE:
        raise UsageError("a resumed run keeps its model: only [training], [data] and [decoding] can change")
    require_writable_cache()  # before the text is read
    clear_stop_files(run)  # old requests; one that comes while the text is read is obeyed at the first step
    more = {name: value for name, value in changes.get("training", {}).items() if name in BUDGETS}
    recipe, here = (
        apply_changes(run.recipe, _as_stored(changes, run), folder),
        apply_changes(recipe_here(run, run.recipe), changes, folder),
    )
    run.warn_of_edits()
    machine = choose_machine(recipe.training)
    newest_found = run.newest() if run.checkpoints() else None  # None: the seed gives the same beginning again
    bench = _reopened(run, here, machine, newest_found[0] if newest_found else None)
    trainer = _trainer(bench, machine)
    if newest_found:
        checkpoint, warnings = newest_found
        for warning in warnings:
            _say(observers, warning)
        trainer.load(checkpoint)
        for notice in _other_processes(checkpoint.state().get("processes"), machine.ranks.size):
            _say(observers, notice)
    run.delete_after(trainer.state.step)
    if more and trainer.state.step:
        best = run.best_step() or trainer.state.step
        if _is_over_fitted(run, best):
            _say(observers, f"overfitting since step {best:,}: more text or a higher model.dropout would help more")
        trainer.extend()
    if changes:
        run.save_recipe(recipe)
    state = trainer.state
    if state.stopped_early or (state.total_steps is not None and state.step >= state.total_steps):
        where = "stopped early, at" if state.stopped_early else "is already at"
        raise PenwrightError(
            f"{folder} {where} step {state.step:,} of {state.total_steps or state.step:,}. "
            f"To train longer, add a budget: penwright train --resume {quote(str(folder))} --minutes 5"
        )
    _say(observers, f"resuming from step {state.step:,}")
    if more and "compile" not in changes.get("training", {}):
        _suggest_compiling(recipe, machine, observers)
    return _fit(run, bench, trainer, observers)


def _other_processes(before: int | None, now: int) -> Iterator[str]:
    """Yield a notice if a run is resumed with another number of processes."""
    if before not in (None, now):
        processes = "1 process" if before == 1 else f"{before} processes"
        yield (
            f"this run was trained with {processes}; with {now}, dropout draws other numbers. Results are equivalent, "
            f"but not bit for bit the same as with --processes {before}"
        )


def _reopened(run: Run, recipe: Recipe, machine: Machine, checkpoint: Checkpoint | None) -> RunContext:
    """Open what the run began with. Raise PenwrightError if its text has changed or its files do not match."""
    torch.manual_seed(recipe.seed)
    if checkpoint:
        require_made_with(checkpoint, run, recipe)
    corpus = TASKS[recipe.task].open_corpus(recipe.data.train, reading_of(recipe, columns_of_training(run)))
    require_unchanged(run, corpus, "Restore the original data to resume, or train a new run with another --run.")
    tokenizer = Tokenizer.load(run.tokenizer_path)
    if checkpoint:
        require_shapes(checkpoint, recipe, tokenizer.vocab_size, len(corpus.labels))
    return _make_context(recipe, corpus, tokenizer, machine.device)


def follow() -> bool:
    """Train along with rank 0 until it has finished, and return True; in rank 0 itself, return False at once.

    Only rank 0 obeys stop signals: it saves, and then tells the other ranks that the work is over.
    """
    ranks = join()
    if ranks.leads:
        return False
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    while (work := ranks.receive()) is not None:
        _follow_run(Run.open(Path(work["run"])), validate(Recipe, work["recipe"], "the settings"), work["step"])
    return True


def _follow_run(run: Run, recipe: Recipe, step: int) -> None:
    """Train one run as a rank that follows rank 0."""
    machine = choose_machine(recipe.training)
    checkpoint = run.newest()[0] if step else None
    trainer = _trainer(_reopened(run, recipe, machine, checkpoint), machine)
    if checkpoint:
        trainer.load(checkpoint)
    machine.ranks.barrier()
    with advise_on_out_of_memory():
        trainer.follow()


def _suggest_compiling(recipe: Recipe, machine: Machine, observers: Sequence[Observer]) -> None:
    """Suggest compilation if a short run is resumed for long: it may pay now."""
    seconds = 60 * (recipe.training.minutes or 0.0)
    if recipe.training.compile == "off" and choose_compilation(machine.device, recipe.task, seconds)[0]:
        _say(observers, "steps are not compiled; --set training.compile=on would save about a third of the time")


def _as_stored(changes: Table, run: Run) -> Table:
    """Return the changes as the recipe keeps them, with paths relative to the folder that the run was trained in."""
    place = run.real_folder
    origin = place / (corpus_record(run).trained_from or os.path.relpath(Path.cwd(), place))
    data = changes.get("data", {})
    parts = [part for part in ("train", "validation") if part in data]
    paths = {part: [relative_to_folder(origin, path) for path in one_or_more(data[part])] for part in parts}
    return merge(changes, {"data": paths}) if paths else changes


def _resolve(recipe: Recipe, machine: Machine) -> Recipe:
    """Record what was chosen for this machine, so that a resumed run does the same."""
    training = recipe.training.model_copy(update={"precision": str(machine.precision).removeprefix("torch.")})
    return recipe.model_copy(update={"training": training})


def _make_context(recipe: Recipe, corpus: AnyCorpus, tokenizer: Tokenizer, device: torch.device) -> RunContext:
    training = token_store(recipe.task, corpus, tokenizer, corpus.labels, held_out=False)
    held_out = token_store(recipe.task, corpus, tokenizer, corpus.labels, held_out=True)
    model = make_model(recipe.task, tokenizer.vocab_size, recipe.model, len(corpus.labels))
    card = make_card(corpus, training)
    return RunContext(recipe, corpus, tokenizer, training, held_out, model.to(device), device, card)


def _save_corpus_record(run: Run, bench: RunContext) -> None:
    corpus = bench.corpus
    files = [{"path": str(file.path), "bytes": file.n_bytes, "sha256": file.sha256} for file in corpus.files]
    record = {"fingerprint": corpus.fingerprint, "files": files, "report": corpus.report.as_dict()}
    here = os.path.relpath(Path.cwd(), run.real_folder)  # relative, so that a run and its text can be moved together
    places = {"trained_from": Path(here).as_posix(), "card": asdict(bench.card)}
    run.write_json(CORPUS, {**record, **places, "columns": corpus.roles})


def _trainer(bench: RunContext, machine: Machine) -> Trainer:
    assert bench.training is not None
    batches = TASKS[bench.recipe.task].batches(bench, bench.training)
    return Trainer(bench.model, batches, bench.recipe, machine, _teachers(bench))


def _teachers(bench: RunContext) -> list[Model]:
    """Load the best models of the runs that teach this one. Raise PenwrightError if one cannot."""
    teachers = []
    for folder in bench.recipe.distillation.teachers if bench.recipe.distillation else ():
        teacher = load(folder, str(bench.device))
        if teacher.tokenizer.fingerprint != bench.tokenizer.fingerprint:
            raise PenwrightError(f"{folder} cannot teach this model: it has another tokenizer")
        if type(teacher.model) is not type(bench.model) or getattr(teacher, "labels", ()) != bench.card.labels:
            raise PenwrightError(f"{folder} cannot teach this model: it has another task or other labels")
        if corpus_record(Run.open(Path(folder))).fingerprint != bench.corpus.fingerprint:
            raise PenwrightError(
                f"{folder} cannot teach this model: it was trained on other data, or on texts that are held out here. "
                "Train it on the same data with the same data.seed"
            )
        if teacher.model.settings.context_length < bench.recipe.model.context_length:
            raise PenwrightError(
                f"{folder} cannot teach this model: its context is {teacher.model.settings.context_length} tokens. "
                f"Add --set model.context_length={teacher.model.settings.context_length}"
            )
        teachers.append(teacher.model)
    return teachers


def _fit(
    run: Run, bench: RunContext, trainer: Trainer, observers: Sequence[Observer], to_beat: Sequence[Score] = ()
) -> Application:
    parts = TASKS[bench.recipe.task]
    run.made_with = made_with(run, bench.recipe)
    watching = [StepLog(run), *observers]
    session = Session(run, trainer, lambda: parts.look(bench), lambda: parts.sample(bench), watching)
    recipe = bench.recipe.model_dump(mode="json", exclude_none=True)
    work = {"run": str(run.folder.absolute()), "recipe": recipe, "step": trainer.state.step}
    with advise_on_out_of_memory(), trainer.ranks.leading(work):
        session.fit()
    best, warnings = run.best()
    for warning in warnings:
        _say(observers, warning)
    for baseline in _unbeaten(run, best.step, to_beat):
        advice = "It needs more text" if _is_over_fitted(run, best.step) else "It needs more minutes, or more text"
        _say(observers, f"not beaten: {baseline.name} {baseline.value:.3f} ({baseline.note}). {advice}")
    with catch_warnings():
        simplefilter("ignore")  # the warnings above, once more
        return load(run.folder, str(bench.device))  # loaded again, because a model compiled for training decodes slowly


def _unbeaten(run: Run, step: int, baselines: Sequence[Score]) -> Iterator[Score]:
    """Yield the baselines that the model of this step does not beat."""
    scores = next((record for record in run.records(METRICS) if record["step"] == step), {})
    for baseline in baselines:
        if baseline.name in scores and not baseline._replace(value=scores[baseline.name]).beats(baseline.value):
            yield baseline


def _is_over_fitted(run: Run, best_step: int) -> bool:
    """Return whether the held-out nats of the last model are clearly higher than the nats of the best."""
    records = run.records(METRICS)
    nats = {record["step"]: value for record in records for name, value in record.items() if name.startswith("nats")}
    return bool(nats.get(run.last_step(), 0.0) > nats.get(best_step, inf) * (1 + OVER_FITTED))


def _say(observers: Sequence[Observer], text: str) -> None:
    for observer in observers:
        notify(observer.said, text)
