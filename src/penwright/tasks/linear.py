"""The linear classifier of a run, fitted on the n-grams of the training texts or of a sample of them."""

from collections.abc import Sequence
from itertools import compress
from math import inf
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch

from penwright.classification.fitting import HeldOut
from penwright.classification.linear import LinearClassifier
from penwright.data.splits import Groups
from penwright.tasks.context import AnyCorpus, AnyPart, RunContext
from penwright.tasks.labelled import MOST_EVALUATED, Targets, rows, target_table
from penwright.text import count

MOST_LOGITS = 50_000_000  # maximum number of logits (texts x labels) for fitting the linear classifier
MOST_CHARACTERS = 20_000_000  # maximum number of characters for fitting the linear classifier
CHECKED_PER_SECOND = 100_000  # maximum number of characters of validation texts per second of time for a fit
TOO_MANY_LABELS = "the sample that fits in memory has fewer texts than labels"
MOST_REFITTED = 20_000  # maximum number of texts in a corpus for refitting the linear classifier with held-out texts


class SomeTexts(NamedTuple):
    """Texts of a split, with their targets."""

    texts: list[str]
    targets: Targets
    groups: Groups
    rows: list[int]  # index of each text in the split


def sample_size(n_texts: int, n_characters: int, n_labels: int, share: float = 1.0) -> int:
    """Return how many texts of a split can be used for a fit. `share` lowers the limit, for several splits together."""
    fitting = int(share * n_texts * MOST_CHARACTERS / max(1, n_characters))
    return max(1, min(n_texts, fitting, int(share * MOST_LOGITS) // max(1, n_labels)))


def use_linear(n_texts: int, n_characters: int, n_labels: int) -> tuple[bool, str]:
    """Return whether a classifier of these texts should have a linear classifier, and why."""
    if sample_size(n_texts, n_characters, n_labels) < min(n_texts, n_labels):
        return False, f"too many labels: {TOO_MANY_LABELS}"
    return True, "adds a linear classifier, which learns fast"


def fit_linear(context: RunContext, corpus: AnyCorpus, until: float = inf) -> LinearClassifier | None:
    """Fit a linear classifier on n-grams of the training texts. If there are many texts, use a random sample.

    If the recipe has validation files, their texts tune the regularization. The less time there is, the fewer texts.
    Return None if there are too many labels, unless the model needs the linear classifier.
    """
    n_labels, seed, model = len(context.card.labels), context.recipe.seed, context.recipe.model
    if not model.ngrams and not use_linear(len(corpus.training), corpus.training.n_characters, n_labels)[0]:
        return None
    texts, targets, groups, _ = some_texts(context, corpus, corpus.training, seed)
    share = min(1.0, CHECKED_PER_SECOND * (until - monotonic()) / MOST_CHARACTERS)
    validation = (
        some_texts(context, corpus, corpus.held_out, seed, share)[:2] if context.recipe.data.validation else None
    )
    kind, balanced, held_out = model.problem_type, model.balanced, HeldOut(groups, validation)
    fitted = LinearClassifier.fit(texts, targets, n_labels, seed, until, kind, balanced=balanced, held_out=held_out)
    if len(texts) < len(corpus.training):
        sampled = f"fitted on a sample of {len(texts):,} of {count(len(corpus.training), 'text')} to save memory"
        fitted = fitted._replace(notes=(sampled, *fitted.notes))
    return fitted


def refit_linear(linear: LinearClassifier, context: RunContext, until: float = inf) -> LinearClassifier | None:
    """Fit a linear classifier on all texts, held-out ones included.

    Return None for a large corpus, to which the held-out texts add little, or if there is not enough time before
    the deadline `until` (a value of `time.monotonic()`). Use the classifier only for texts outside the corpus: its
    scores for the held-out texts are too optimistic.
    """
    corpus = context.corpus
    if len(corpus.training) + len(corpus.held_out) > MOST_REFITTED:
        return None
    both = [some_texts(context, corpus, part, 0) for part in (corpus.training, corpus.held_out)]
    return linear.refit([*both[0].texts, *both[1].texts], torch.cat([each.targets for each in both]), until)


def some_texts(context: RunContext, corpus: AnyCorpus, part: AnyPart, seed: int, share: float = 1.0) -> SomeTexts:
    """Return the texts of a split with their targets and groups.

    If there are many texts, return a random sample. `share` lowers the limit, for several splits together.
    """
    values, table = corpus.label_values or context.card.labels, target_table(context, corpus)
    sample = _sampled(part, values, len(context.card.labels), seed, share)
    return sample if table is None else sample._replace(targets=table[sample.targets])


def linear_accuracy(corpus: AnyCorpus, until: float) -> float:
    """Return the accuracy of a linear classifier on held-out texts with one label each, in percent.

    `until` is the deadline for fitting the classifier, as a value of `time.monotonic()`.
    """
    labels = corpus.labels
    texts, truth, groups, _ = _sampled(corpus.training, labels, len(labels), 0)
    linear = LinearClassifier.fit(texts, truth, len(labels), 0, until, held_out=HeldOut(groups))
    texts, truth, *_ = _sampled(corpus.held_out, labels, len(labels), 0)
    return 100 * float((linear.outputs(texts[:MOST_EVALUATED]).argmax(-1) == truth[:MOST_EVALUATED]).double().mean())


def _sampled(part: AnyPart, values: Sequence[str], n_labels: int, seed: int, share: float = 1.0) -> SomeTexts:
    """Return the texts of a split with the indices of their labels as targets. If there are many, return a sample."""
    n = sample_size(len(part), part.n_characters, n_labels, share)
    kept = np.zeros(len(part), dtype=bool)
    kept[np.random.default_rng(seed).permutation(len(part))[:n]] = True
    texts, numbers = [], []
    for text, number in compress(rows(part, values), kept.tolist()):
        assert isinstance(text, str) and isinstance(number, int)
        texts.append(text)
        numbers.append(number)
    groups = None if part.groups is None else part.groups[kept]
    return SomeTexts(texts, torch.tensor(numbers), groups, np.flatnonzero(kept).tolist())
