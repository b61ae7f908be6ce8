"""Train a new run from a plan. To resume a run from disk, see `resume.py`."""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any
from warnings import catch_warnings, simplefilter

import torch

from penwright.application import Application
from penwright.classification.linear import LinearClassifier
from penwright.config import Recipe
from penwright.devices import advise_on_out_of_memory, give_back_memory, with_threads
from penwright.errors import PenwrightError
from penwright.evaluation.scores import Score
from penwright.run.folder import BASELINES, CORPUS, LINEAR_FILE, Run
from penwright.run.provenance import made_with
from penwright.storage import remember
from penwright.tasks import TASKS, AnyCorpus, RunContext, generation, scoring_of
from penwright.tasks.linear import TOO_MANY_LABELS, fit_linear, refit_linear
from penwright.text import rounded
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.training.auto.choices import Plan
from penwright.training.auto.machine import Machine
from penwright.training.loop import Session
from penwright.training.observers import Observer, StepLog, notify
from penwright.training.trainer import Trainer
from penwright.workflows.background import compilation_note, compile_in_background, kill_compiler
from penwright.workflows.compile_training import compiling_beside
from penwright.workflows.finetune import origin_of_base
from penwright.workflows.load import load, open_base
from penwright.workflows.make_trainer import advice_on_memory, evaluates_first, make_context, make_trainer, skipped_text
from penwright.workflows.new_head import fit_head
from penwright.workflows.optimize import choose_precision, expected_precision
from penwright.workflows.plan import Prepared
from penwright.workflows.verdict import verdicts

WORTH_COMPILING = 5.0  # minimum budget in minutes for compiling the decoding steps during training
WATCHED, FIRST_STEPS = 0.1, 8  # fraction of the budget in which throughput is checked; number of first steps to ignore
CHECK_EVERY = 5.0  # seconds of training between two checks of the throughput
FASTER = 2.0  # plan again if the measured throughput is at least this many times the planned one
LINEAR_SHARE = 0.25  # maximum share of a budget in minutes for fitting linear classifiers on n-grams
FIRST_SHARE = 0.6  # fraction of LINEAR_SHARE for the first fit; a second fit then adds the held-out texts
LARGE = 50_000_000  # minimum size of the training text, in bytes, for caching a trained tokenizer


class _LargerModelFits(Exception):
    """An exception raised when the machine is so much faster than the plan assumed that a larger model fits."""

    def __init__(self, plan: Plan):
        super().__init__()
        self.plan = plan


def _width_and_depth(plan: Plan) -> tuple[int, int]:
    """Return the width and the depth. The vocabulary does not count, since it depends on the pace, too."""
    return plan.recipe.model.d_model, plan.recipe.model.n_layers


class _PaceCheck:
    """A check after each step that detects whether training is much faster than the plan assumed.

    Other programs may have slowed down the machine while it was timed for the plan.
    """

    def __init__(self, prepared: Prepared):
        plan, is_checked = prepared.plan, prepared.machine.ranks.size == 1
        self._plan, self._replan = plan, prepared.replan if is_checked else None
        # a classifier's steps count texts, not tokens
        self._n_planned = plan.epochs * prepared.corpus.n_training if plan.recipe.task == "classify" else plan.tokens
        self._n_steps = 0  # number of steps since compilation
        self._first, self._start = 0.0, (0, 0.0)

    def __call__(self, trainer: Trainer) -> None:
        """Compare real and planned throughput every few seconds, for a fraction WATCHED of the budget.

        Raises _LargerModelFits if a larger model fits into the rest of the budget.
        """
        minutes, state, replan = trainer.settings.minutes, trainer.state, self._replan
        self._n_steps = 0 if trainer.awaits_compilation else self._n_steps + 1
        if self._n_steps == FIRST_STEPS:  # the measurement starts late, because the first steps include compilation
            self._first, self._start = state.seconds, (state.targets, state.seconds)
        if replan is None or minutes is None or self._n_steps <= FIRST_STEPS:
            return
        targets, seconds = state.targets - self._start[0], state.seconds - self._start[1]
        left, is_last = minutes - state.seconds / 60, state.seconds - self._first >= WATCHED * 60 * minutes
        if seconds < CHECK_EVERY and not is_last:
            return
        is_fast = left > 0 and targets > FASTER * seconds * self._n_planned / (60 * minutes)
        self._start = (state.targets, state.seconds)
        if is_fast or is_last:
            self._replan = None
        if is_fast:
            plan = replan(left)
            if _width_and_depth(plan) > _width_and_depth(self._plan):
                raise _LargerModelFits(plan)


def train(prepared: Prepared, folder: Path, observers: Sequence[Observer] = ()) -> Application:
    """Train the prepared run in a new folder. Return the best model of the run, ready to use.

    If training is much faster than the plan assumed, it starts again with a larger model. The recipe of the run then
    contains the rest of the budget, and describes exactly what was trained. The linear classifier is not fitted again.

    Raises PenwrightError if the model does not fit in the memory of this machine.
    """
    if prepared.is_too_large:
        needed, advice = rounded(prepared.plan.size.training_bytes / 1e9), advice_on_memory(prepared.plan.recipe)
        raise PenwrightError(f"training needs about {needed} GB of memory, which this machine does not have. {advice}")
    run = Run.create(folder)
    with run.lock():
        run.clear_stop_files()
        try:
            return _train(prepared, run, observers)
        except _LargerModelFits as larger:
            plan = larger.plan
        gc.collect()  # free the smaller model and its CUDA graphs, which the exception kept alive
        size = f"{plan.size.parameters:,} parameters"
        notify(observers, "message", f"training is much faster than expected: starting again with {size}")
        run.clear()
        return _train(replace(prepared, plan=plan, replan=None), run, observers, is_first=False)


def _train(prepared: Prepared, run: Run, observers: Sequence[Observer], is_first: bool = True) -> Application:
    """Train the prepared run until its budget is spent, and return the best model."""
    context = _begin(prepared, run, observers)
    begin = monotonic()
    if context.recipe.task == "classify":
        if is_first:
            notify(observers, "message", "fitting a linear classifier on n-grams as a baseline")
        add_linear(context, run, observers, is_new=is_first)
    if context.has_new_head:
        fit_head(context, observers)
    trainer = make_trainer(context, prepared.machine, run, observers)
    for note in skipped_text(trainer, context.recipe):
        notify(observers, "message", note)
    baselines = scoring_of(context.recipe).baselines(context)
    trainer.state.seconds = monotonic() - begin  # computing the baselines counts towards the budget
    run.write_json(BASELINES, {"scores": [score._asdict() for score in baselines]})
    for score in baselines:
        notify(observers, "message", f"to beat: {score.name} {score.value:.3f} ({score.note})")
    return fit(run, context, trainer, observers, baselines, _PaceCheck(prepared))


def _begin(prepared: Prepared, run: Run, observers: Sequence[Observer]) -> RunContext:
    """Write the recipe, the tokenizer and the corpus record into the run folder."""
    recipe, corpus, machine = _with_precision(prepared.plan.recipe, prepared.machine), prepared.corpus, prepared.machine
    torch.manual_seed(recipe.seed)
    tokenizer = prepared.tokenizer or _tokenizer(recipe, corpus, observers)
    tokenizer.save(run.tokenizer_path)
    run.save_recipe(recipe)
    context = make_context(recipe, corpus, tokenizer, machine.device, is_new=True)
    _save_corpus_record(run, context)
    return context


def _with_precision(recipe: Recipe, machine: Machine) -> Recipe:
    """Return the recipe with the precision chosen for this machine. A resumed run keeps this precision."""
    training = recipe.training.model_copy(update={"precision": str(machine.precision).removeprefix("torch.")})
    return recipe.model_copy(update={"training": training})


def _tokenizer(recipe: Recipe, corpus: AnyCorpus, observers: Sequence[Observer]) -> Tokenizer:
    """Load the tokenizer of the base model or of the teachers. If there is neither, train a tokenizer."""
    if recipe.finetuning:
        return open_base(recipe).tokenizer
    if recipe.distillation:
        return Tokenizer.load(Run.open(Path(recipe.distillation.teachers[0])).tokenizer_path)
    settings, texts = recipe.tokenizer, TASKS[recipe.task].texts(corpus)

    def train() -> dict[str, Any]:
        notify(observers, "message", f"training a tokenizer ({settings.type}) on the text")
        tokenizer = train_tokenizer(settings.type, texts, settings.vocab_size, prefix_space=settings.prefix_space)
        return {"content": tokenizer.content.decode(), "notes": tokenizer.notes}

    key = [corpus.fingerprint, settings.type, settings.vocab_size, settings.prefix_space, version("tokenizers")]
    trained = train() if corpus.training_bytes < LARGE else remember(key, train)
    for note in trained["notes"]:
        notify(observers, "message", note)
    return Tokenizer.of_content(trained["content"].encode())


def add_linear(context: RunContext, run: Run, observers: Sequence[Observer], is_new: bool = False) -> None:
    """Add the linear classifier of the run to the context. Fit and save a classifier if the run is new or has none.

    The fits take at most LINEAR_SHARE of a budget in minutes. With too many labels, nothing is fitted. A run that
    stopped before its first checkpoint starts again, perhaps with other texts. The old classifier is then replaced.
    """
    path, labels = run.folder / LINEAR_FILE, context.card.labels
    if is_new or not os.path.lexists(path):
        corpus, recipe, begin, whole = context.corpus, context.recipe, monotonic(), None
        seconds = LINEAR_SHARE * 60 * (recipe.training.minutes or inf)
        has_second = recipe.model.ngrams and not recipe.data.validation
        end_of_first = begin + (FIRST_SHARE if has_second else 1) * seconds
        linear = fit_linear(context, corpus, end_of_first)
        if linear is None:
            notify(observers, "message", f"no linear classifier of n-grams: {TOO_MANY_LABELS}")
            return
        if has_second:
            whole = refit_linear(linear, context, begin + seconds)
        for note in linear.notes:
            notify(observers, "message", f"linear classifier of n-grams: {note}")
        linear.save(path, whole)
    context.linear = LinearClassifier.load(path, len(labels), problem=context.recipe.model.problem_type)


def _save_corpus_record(run: Run, context: RunContext) -> None:
    corpus = context.corpus
    files = [{"path": str(file.path), "bytes": file.n_bytes, "sha256": file.sha256} for file in corpus.files]
    record = {"fingerprint": corpus.fingerprint, "files": files, "report": corpus.report.as_dict()}
    origin = os.path.relpath(Path.cwd(), run.real_folder)  # a relative path: run and text can be moved together
    location = {"trained_from": Path(origin).as_posix(), "card": asdict(context.card)}
    run.write_json(CORPUS, {**record, **location, "columns": corpus.roles, **origin_of_base(context.recipe)})


def fit(
    run: Run,
    context: RunContext,
    trainer: Trainer,
    observers: Sequence[Observer],
    to_beat: Sequence[Score] = (),
    check: Callable[[Trainer], object] = lambda trainer: None,
) -> Application:
    """Train until the budget is spent. Report baselines that the best model does not beat, and return this model.

    `check` is called after each step, and may end the training by an exception.
    """
    run.checkpoints.made_with = made_with(run, context.recipe)
    watching = [StepLog(run), *observers]
    evaluate = partial(_evaluate, context, trainer, observers)
    session = Session(run, trainer, evaluate, lambda: TASKS[context.recipe.task].sample(context), watching)
    if context.recipe.finetuning and evaluates_first(context, resumes=bool(run.checkpoints.all())):
        start = session.evaluate_now()  # saves the checkpoint of step 0, which is the best so far
        note = f"{context.recipe.finetuning.base}, before fine-tuning"
        for score in dict.fromkeys([start[0], start[-1]]) if not context.skips_training else ():  # for ranking; nats
            to_beat = [*to_beat, score._replace(note=note)]
            notify(observers, "message", f"to beat: {score.name} {score.value:.3f} ({note})")
    n_threads = trainer.machine.decoding_threads or torch.get_num_threads()
    with (
        _compiling_early(run, context, n_threads, observers),
        compiling_beside(run, trainer, observers) as switch,
        advise_on_out_of_memory(),
    ):
        session.checks = [switch, check]
        session.fit()
    if context.recipe.lora:  # free the memory of the base model, which is large and is loaded again below
        context.model.to("meta")
        give_back_memory()
    best, warnings = run.checkpoints.best()
    for message in (*warnings, *verdicts(run, context, best.step, to_beat)):
        notify(observers, "message", message)
    if note := choose_precision(run, context):
        notify(observers, "message", note)
    torch.set_num_threads(n_threads)
    with catch_warnings():
        simplefilter("ignore")  # loading the run would repeat earlier warnings
        trained = load(run.folder, str(context.device))  # reload: a model compiled for training would decode slowly
    if context.device.type == "cpu" and (note := compilation_note(trained.model)):
        notify(observers, "message", note)
    return trained


def _evaluate(context: RunContext, trainer: Trainer, observers: Sequence[Observer]) -> Sequence[Score]:
    """Score the model. At the end of training, calibrate a writer first, unless its weights are sharded."""
    is_last = 0 < trainer.state.step == trainer.state.total_steps
    may_calibrate = is_last and context.recipe.task == "generate" and not trainer.is_sharded
    if may_calibrate and (note := generation.calibrate(context)):
        notify(observers, "message", note)
    return scoring_of(context.recipe).quick_evaluate(context)


@contextmanager
def _compiling_early(run: Run, context: RunContext, n_threads: int, observers: Sequence[Observer]) -> Iterator[None]:
    """Compile the decoding steps in the background while a long run trains, but not those of slow imported models.

    The compilation is stopped if training starts again with a larger model.
    """
    compiler = None
    is_long = (context.recipe.training.minutes or 0) >= WORTH_COMPILING
    if is_long and context.recipe.task != "classify" and not context.is_slow:  # imported models take minutes to compile
        with with_threads(n_threads):  # compiled code depends on the number of threads
            precision = expected_precision(context.model, context.device)
            compiler = compile_in_background(run, precision, waits=True)
    if compiler:
        notify(observers, "message", "compiling the decoding steps in the background")
    try:
        yield
    except _LargerModelFits:
        if compiler:
            kill_compiler(compiler)
        raise
