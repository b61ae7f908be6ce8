"""Evaluate a trained run: open its corpus, compute scores and baselines, and measure copying from the training text."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from warnings import warn

import numpy as np
import torch

from penwright.application import languages_of
from penwright.config import Precision, Recipe, Table, merge, validate
from penwright.data.detection import detect_task
from penwright.data.paths import files_to_evaluate, is_pattern, resolve_from
from penwright.data.readers.hub import is_hub
from penwright.data.repeats import find_repeats
from penwright.devices import CPU, usable_device
from penwright.errors import PenwrightError, PenwrightWarning, Say, UsageError, say_nothing
from penwright.evaluation.scores import Baseline, Mistake, Score
from penwright.languages import are_reversed, languages_between, same_languages
from penwright.model import Model
from penwright.run.folder import Run
from penwright.run.provenance import CorpusRecord, corpus_record
from penwright.tasks import (
    TASKS,
    AnyCorpus,
    RunContext,
    classification,
    kept_training_tokens,
    reading_of,
    scoring_of,
    token_store,
    translation,
)
from penwright.tasks.linear import fit_linear
from penwright.text import count
from penwright.workflows.load import OpenedRun, best_precision, open_run

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def open_corpus_of(opened_run: OpenedRun, paths: Sequence[str] = ()) -> AnyCorpus:
    """Open the corpus of the run or, if paths are given, open these files as held-out text.

    Raises PenwrightError if the run's own data has changed, since the model may have seen texts that are now held out.
    """
    recipe = with_resolved_paths(opened_run.run, opened_run.recipe)
    parts, reading = TASKS[recipe.task], reading_of(recipe, corpus_record(opened_run.run).columns)
    if paths:
        return parts.open_evaluation(paths, reading)
    if corpus_record(opened_run.run).is_untrained:
        raise UsageError(f"{opened_run.run.folder} was imported, so it has no held-out text. Name files to use instead")
    files = [path for path in recipe.data.train if not (is_hub(path) or is_pattern(path))]
    if missing := [path for path in files if not os.path.exists(path)]:
        needed = f"the text that {opened_run.run.folder} was trained on is needed, but {missing[0]} does not exist"
        raise PenwrightError(f"{needed}. Put it back, or name files to use instead")
    corpus = parts.open_corpus(recipe.data.train, reading)
    require_unchanged(opened_run.run, corpus, "Restore the original data, or name different files to evaluate on.")
    return corpus


def evaluation_context(
    opened_run: OpenedRun, corpus: AnyCorpus, model: Model, device: torch.device = CPU
) -> RunContext:
    """Return the context for evaluating this model on the held-out set of this corpus."""
    recipe, tokenizer, card = opened_run.recipe, opened_run.tokenizer, opened_run.card
    held_out = token_store(recipe.task, corpus, tokenizer, card.labels, held_out=True)
    return RunContext(recipe, corpus, tokenizer, None, held_out, model.to(device), device, card, opened_run.linear())


def with_resolved_paths(run: Run, recipe: Recipe) -> Recipe:
    """Return the recipe of a run, with paths resolved from the folder in which the run was trained."""
    origin = corpus_record(run).trained_from
    if origin is None:  # older runs do not record the folder in which they were trained
        return recipe

    def resolved(paths: Sequence[str]) -> tuple[str, ...]:
        return tuple(resolve_from(run.real_folder / origin, path) for path in paths)

    data, distillation, finetuning = recipe.data, recipe.distillation, recipe.finetuning
    data = data.model_copy(update={"train": resolved(data.train), "validation": resolved(data.validation)})
    if data.dictionary is not None:
        data = data.model_copy(update={"dictionary": resolved([data.dictionary])[0]})
    if distillation is not None:
        distillation = distillation.model_copy(update={"teachers": resolved(distillation.teachers)})
    if finetuning is not None:
        finetuning = finetuning.model_copy(update={"base": resolved([finetuning.base])[0]})
    return recipe.model_copy(update={"data": data, "distillation": distillation, "finetuning": finetuning})


def is_trained_on(record: CorpusRecord, corpus: AnyCorpus) -> bool:
    """Return whether a run with this record was trained on this corpus, with the same held-out set.

    Another version of Penwright may describe the chosen columns in other words, which changes the fingerprint. The
    corpus is then the same if its files, columns, numbers of examples and split are: the numbers in its description.
    A version that did not record the columns named them in its notes.
    """
    if record.fingerprint == corpus.fingerprint:
        return True
    before, now = record.report, corpus.report
    are_named = not record.columns and before is not None and bool(before.notes) and {*before.notes} <= {*now.notes}
    return (
        before is not None
        and [file.sha256 for file in record.files] == [file.sha256 for file in corpus.files]
        and (record.columns == corpus.roles or are_named)
        and (before.n_read, before.n_kept) == (now.n_read, now.n_kept)
        and NUMBER.findall(before.split) == NUMBER.findall(now.split)
    )


def require_unchanged(run: Run, corpus: AnyCorpus, advice: str) -> None:
    """Raise PenwrightError unless the run was trained on this corpus, with the same held-out set."""
    before = corpus_record(run)
    if is_trained_on(before, corpus):
        return
    known, current = ({file.sha256 for file in before.files}, {file.sha256 for file in corpus.files})
    changed = [str(file.path) for file in corpus.files if file.sha256 not in known]
    changed = changed or [file.path for file in before.files if file.sha256 not in current]
    names = {Path(file.path).name for file in before.files}
    if changed and not names & {Path(path).name for path in changed}:
        named = ", ".join(file.path for file in before.files)
        raise PenwrightError(f"{run.folder} was trained on {named}, not on {', '.join(changed)}. {advice}")
    what = ", ".join(changed) if changed else "how the data is read (a [data] setting, or the version of Penwright)"
    raise PenwrightError(f"{run.folder} was trained on different data: {what} changed since then. {advice}")


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
    """Score a run's best model, with baselines, on the run's held-out set or on the files at `paths`.

    `changes` to [data] control how the files are read. The default precision is the one that `optimize` chose, as for
    load(). Translators are scored with beam search; during training, they are scored with greedy search. If `output` is
    given, the translations are written to this file.
    """
    if output is not None and not output.parent.is_dir():
        raise UsageError(f"{output} cannot be written: there is no folder {output.parent}")
    torch_device, original = usable_device(device), open_run(folder)
    recipe = validate(Recipe, merge(original.recipe.model_dump(exclude_none=True), changes or {}), str(folder))
    files = [file for path in paths for file in files_to_evaluate(path)]
    recipe = _for_answers(recipe, files, say)
    opened_run = original._replace(recipe=recipe)
    if files != [*paths]:
        say(f"evaluating on the held-out files: {', '.join(files[:3])}{' and more' if len(files) > 3 else ''}")
    corpus = open_corpus_of(opened_run, files)
    if paths:
        opened_run, corpus = _in_trained_direction(opened_run, corpus, files)
        for note in filter(None, [corpus.report.losses, *corpus.report.notes, *_repeated_texts(original, corpus)]):
            say(note)
    loaded = opened_run if recipe.task == original.recipe.task else original
    context = evaluation_context(
        opened_run,
        corpus,
        loaded.model(precision or best_precision(opened_run.run, torch_device) or "float32"),
        torch_device,
    )
    if paths and context.linear is not None:
        context.whole_linear = original.linear(whole=True)
    n_examples = len(context.corpus.held_out)
    if recipe.task == "translate":
        beam_size = beam_size or recipe.decoding.beam_size
        say(f"translating {n_examples:,} sources with {beam_size} {'beam' if beam_size == 1 else 'beams'}")
        scores = translation.evaluate(context, beam_size, output)
    else:
        say(f"evaluating on {count(n_examples, context.corpus.report.unit)}")
        scores = scoring_of(recipe).evaluate(context)
    return _with_baselines(_baselines(original, context, say), scores)


def _for_answers(recipe: Recipe, files: Sequence[str], say: Say) -> Recipe:
    """Return the recipe with the task `chat` if a writer with a chat template is scored on prompts and answers."""
    if not files or recipe.task != "generate" or recipe.chat is None or recipe.data.text:
        return recipe
    try:
        task, reason = detect_task(files, encoding=recipe.data.encoding)
    except PenwrightError:  # then the file is read as running text
        return recipe
    if task != "chat":
        return recipe
    say(f"{reason}: scoring the answers, with the chat template. To score a column as text: --set data.text=COLUMN")
    return recipe.model_copy(update={"task": task})


def _repeated_texts(original: OpenedRun, corpus: AnyCorpus) -> Iterator[str]:
    """Yield a note if evaluated texts also occur in the data of the run. For running text, only whole files count."""
    suspicion = "in the data of the run, so the scores may be too optimistic"
    if original.recipe.task in ("generate", "encode"):
        known_files = {file.sha256 for file in corpus_record(original.run).files}
        again = [str(file.path) for file in corpus.files if file.sha256 in known_files]
        yield from [f"part of the text is {suspicion}: {', '.join(again)}"] if again else []
        return
    try:
        trained = open_corpus_of(original)
    except PenwrightError:
        return
    repeats = find_repeats(corpus.held_out, trained.training, trained.held_out)
    if repeats.are_many:
        yield f"{repeats.describe()} also occur {suspicion}"
    own, groups = corpus.held_out.groups, [part.groups for part in (trained.training, trained.held_out)]
    known_groups = np.concatenate([each for each in groups if each is not None] or [np.zeros(0, np.uint64)])
    if own is not None and (n := int(np.isin(own, known_groups).sum())):
        yield f"{n:,} of {count(len(own), 'text')} are of groups that also occur {suspicion}"


def check_labels(folder: Path, say: Say = say_nothing) -> list[Mistake]:
    """Return the labelled texts that may have a wrong label, most doubtful first. The run must be a classifier."""
    opened_run = open_run(folder)
    if not opened_run.recipe.gives_one_label:
        raise UsageError(f"{folder} is not a classifier with one label for each text, so there are no labels to check")
    corpus = open_corpus_of(opened_run)
    context = evaluation_context(opened_run, corpus, opened_run.model())
    n_texts = len(corpus.training) + len(corpus.held_out)
    say(f"fitting linear classifiers on n-grams to check the labels of {count(n_texts, 'text')}")
    found, n_checked = classification.doubtful_labels(context, corpus)
    part = f"a sample of {n_checked:,} of " if n_checked < n_texts else ""
    say(f"{count(len(found), 'doubtful label')} in {part}{count(n_texts, 'text')}")
    return found


def _baselines(original: OpenedRun, context: RunContext, say: Say) -> Sequence[Score]:
    """Compute the baselines of the scores. Most baselines need the training text."""
    recipe = original.recipe
    if recipe.task != context.recipe.task:  # the training text is of another kind
        return ()
    if recipe.task == "classify" and context.linear is None:
        try:
            corpus = open_corpus_of(original)
        except PenwrightError as error:
            say(f"evaluating without the linear baseline, which needs the training text: {error}")
        else:
            say("fitting a linear classifier on n-grams of the training text as a baseline")
            context.linear = fit_linear(context, corpus)
    if recipe.task == "translate" and not len(context.corpus.training):
        try:
            context.dictionary = translation.learn_dictionary_of(open_corpus_of(original).training)
        except PenwrightError as error:
            say(f"evaluating without the dictionary baseline, which needs the training text: {error}")
    needs_training = recipe.task in ("generate", "chat", "encode")
    if needs_training:
        key = corpus_record(original.run).fingerprint, original.tokenizer, original.card.labels
        context.training = kept_training_tokens(*key)
    if needs_training and context.training is None:
        try:
            corpus = open_corpus_of(original)
        except PenwrightError as error:
            say(f"no baselines, since they need the training text: {error}")
            return ()
        say("reading the training text for the baselines")
        context.training = token_store(recipe.task, corpus, original.tokenizer, original.card.labels, held_out=False)
    return scoring_of(recipe).baselines(context, whole=True)


def _with_baselines(baselines: Sequence[Score], scores: Sequence[Score]) -> list[Score]:
    """Return each score with the baselines of the same metric."""
    return [
        score._replace(baselines=tuple(Baseline(b.note, b.value) for b in baselines if b.name == score.name))
        for score in scores
    ]


def _in_trained_direction(
    opened_run: OpenedRun, corpus: AnyCorpus, paths: Sequence[str]
) -> tuple[OpenedRun, AnyCorpus]:
    """Swap source and target, with a warning, if the translator was trained in the opposite direction.

    Also warn if the pairs are in languages that the translator was not trained on.
    """
    trained, actual = languages_of(opened_run.recipe, opened_run.card), languages_between(corpus.names)
    if opened_run.recipe.task != "translate" or trained is None or actual is None or same_languages(trained, actual):
        return opened_run, corpus
    direction = f"{opened_run.run.folder} translates from {trained.source} to {trained.target}"
    data = opened_run.recipe.data
    if not are_reversed(trained, actual) or data.source or data.target:
        other = f"{direction}, but the pairs in {', '.join(paths)} are read as {actual.source} to {actual.target}"
        warn(other, PenwrightWarning, stacklevel=3)
        return opened_run, corpus
    warn(
        f"{direction}, but the pairs in {', '.join(paths)} are the other way round ({actual.source}, {actual.target}): "
        f"reading {actual.target} as the source",
        PenwrightWarning,
        stacklevel=3,
    )
    data = data.model_copy(update={"source": corpus.names[1], "target": corpus.names[0]})
    opened_run = opened_run._replace(recipe=opened_run.recipe.model_copy(update={"data": data}))
    return opened_run, open_corpus_of(opened_run, paths)
