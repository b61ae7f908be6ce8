"""The texts that the base of a fine-tuned run was trained on, which `finetuning.keep_old` mixes into the new text."""

import hashlib
from dataclasses import replace
from itertools import chain, compress, pairwise
from typing import Any, NamedTuple

import numpy as np

from penwright.config import Recipe
from penwright.data.batches import Batches, MixedBatches
from penwright.data.bucketing import AnyBatches
from penwright.data.corpus import Corpus, LabelKind
from penwright.data.repeats import keys_of
from penwright.errors import PenwrightError, Say
from penwright.formats.pretrained import listed
from penwright.run.folder import RECIPE, Run
from penwright.run.provenance import corpus_record
from penwright.tasks import TASKS, AnyCorpus, RunContext, reading_of, token_store
from penwright.text import count
from penwright.workflows.evaluate import require_unchanged, with_resolved_paths
from penwright.workflows.load import OpenedRun, open_base, open_run


class OldText(NamedTuple):
    """The text that an earlier run was trained on, and its recipe, with resolved paths."""

    run: Run
    recipe: Recipe
    corpus: AnyCorpus


def require_old_text(recipe: Recipe, base: OpenedRun, corpus: AnyCorpus, say: Say) -> None:
    """Raise PenwrightError if the text of the base model cannot be mixed in. Name older texts that are mixed in, too.

    Writers and chat models predict the next token of both kinds of text.
    """
    refused, task = f"--keep-old cannot mix in the text of {base.run.folder}", base.recipe.task
    if task != recipe.task and not {task, recipe.task} <= {"generate", "chat"}:
        raise PenwrightError(f"{refused}: its task is {task}, and the task of this run is {recipe.task}")
    if base.card.labels != corpus.labels:
        raise PenwrightError(f"{refused}: its labels ({listed(base.card.labels)}) differ from those of this text")
    theirs, own = base.recipe.model.problem_type, (corpus.label_kind or LabelKind()).problem_type
    if theirs != own:
        raise PenwrightError(f"{refused}: its model.problem_type is {theirs}, and that of this text is {own}")
    found = old_texts(recipe)
    for old in found:
        n, n_mixed_in = (len(part) for part in (old.corpus.training, _without_held_out(old, corpus).training))
        if not n_mixed_in:
            raise PenwrightError(f"{refused}: all of its texts are now held out. Leave out --keep-old")
        if n_mixed_in < n:
            said = f"{n - n_mixed_in:,} of {count(n, old.corpus.report.unit)} of {old.run.folder}"
            say(f"{said} are not mixed in, because they are now held out")
    for newer, older in pairwise(found):
        say(f"the text of {older.run.folder} is mixed in, too: {newer.run.folder} was trained with --keep-old")


def with_old_text(context: RunContext, batches: AnyBatches) -> AnyBatches:
    """Mix batches of the base model's training text into the given batches if the recipe sets `finetuning.keep_old`.

    If the base model was trained with `keep_old`, too, its text has its own share of an older text.
    """
    mixed: Batches[Any] | None = None
    for old in reversed(old_texts(context.recipe)):
        corpus = _without_held_out(old, context.corpus)
        store = token_store(old.recipe.task, corpus, context.tokenizer, corpus.labels, held_out=False)
        recipe = context.recipe.model_copy(update={"chat": old.recipe.chat})  # the base may have another one
        theirs = replace(context, corpus=corpus, recipe=recipe)
        own: Batches[Any] = TASKS[old.recipe.task].batches(theirs, store)
        mixed = _mixed(own, mixed, old.recipe)
    new: Batches[Any] = batches
    return _mixed(new, mixed, context.recipe)


def _without_held_out(old: OldText, new: AnyCorpus) -> AnyCorpus:
    """Return the old corpus without training rows that share a text with the new held-out set.

    Running text stays whole. The sizes of the corpus in characters and bytes, which batches do not need, stay the same.
    """
    if old.recipe.task in ("generate", "encode"):
        return old.corpus
    corpus: Corpus[Any] = old.corpus
    part = corpus.training
    held_out = set(chain.from_iterable(map(keys_of, new.held_out)))
    keep = np.fromiter((held_out.isdisjoint(keys_of(example)) for example in part), dtype=np.bool_, count=len(part))
    if keep.all():
        return corpus
    mixed_in = replace(part, read=lambda: compress(part, keep.tobytes()), n_examples=int(keep.sum()), groups=None)
    fingerprint = hashlib.sha256(corpus.fingerprint.encode() + keep.tobytes()).hexdigest()
    return replace(corpus, training=mixed_in, fingerprint=fingerprint)


def _mixed(new: Batches[Any], old: Batches[Any] | None, recipe: Recipe) -> Batches[Any]:
    return new if old is None or recipe.finetuning is None else MixedBatches(new, old, recipe.finetuning.keep_old)


def old_texts(recipe: Recipe) -> list[OldText]:
    """Open the text of the base model and, as long as the base was trained with `keep_old`, that of its own base.

    The newest text is the first. Raises PenwrightError if a text is missing or has changed.
    """
    found = list[OldText]()
    while recipe.finetuning and recipe.finetuning.keep_old:
        base = _open_older(found[-1]) if found else open_base(recipe)
        if any(base.run.folder.resolve() == old.run.folder.resolve() for old in found):
            raise PenwrightError(f"{base.run.folder} names itself as its base. Restore its {RECIPE}")
        recipe = with_resolved_paths(base.run, base.recipe)
        found.append(OldText(base.run, recipe, _old_corpus(base.run, recipe)))
    return found


def _open_older(newer: OldText) -> OpenedRun:
    """Open the base of an earlier run. It may have been trained further since then: only its text is needed."""
    assert newer.recipe.finetuning is not None
    base = newer.recipe.finetuning.base
    try:
        return open_run(base)
    except PenwrightError as error:
        raise PenwrightError(
            f"--keep-old also needs the text of {base}, since {newer.run.folder} was trained with --keep-old. Restore "
            f"this run, or leave out --keep-old: {error}"
        ) from None


def _old_corpus(run: Run, theirs: Recipe) -> AnyCorpus:
    """Open the text that a run was trained on. Raise PenwrightError if the text is missing or has changed."""
    record, advice = corpus_record(run), "Restore the text, or leave out --keep-old"
    if record.is_untrained:
        raise PenwrightError(f"{run.folder} was imported without its training text: leave out --keep-old")
    try:
        corpus = TASKS[theirs.task].open_corpus(theirs.data.train, reading_of(theirs, record.columns))
    except PenwrightError as error:
        raise PenwrightError(f"--keep-old needs the text that {run.folder} was trained on: {error}. {advice}") from None
    require_unchanged(run, corpus, f"{advice}.")
    return corpus
