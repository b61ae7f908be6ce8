"""Classification with one label for each text."""

from collections.abc import Sequence
from functools import partial
from math import log

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from penwright.classification.linear import out_of_fold
from penwright.classification.mixture import balancing_weights, fit_mixture
from penwright.evaluation.classification import (
    Calibration,
    Counts,
    balanced_accuracy,
    classification_scores,
    compute_calibration,
    confusion_and_nll,
    debiased_error,
    with_group_errors,
)
from penwright.evaluation.perplexity import NegativeLogLikelihood
from penwright.evaluation.scores import (
    N_MISTAKES,
    LabelReport,
    Mistake,
    Score,
    best_threshold,
    label_scores,
    worst_mistakes,
)
from penwright.tasks.context import AnyCorpus, RunContext
from penwright.tasks.labelled import (
    Outputs,
    Targets,
    is_sampled,
    linear_note,
    linear_predictions,
    predictions,
    quick_predictions,
    quick_rows,
    true_targets,
)
from penwright.tasks.linear import MOST_CHARACTERS, some_texts

MOST_CHECKED = 5_000_000  # maximum number of characters of the texts whose labels are checked
CALIBRATION_NOTE = "mean difference between probability and accuracy in %, without the part due to chance"
DOUBTFUL = 0.8  # a label is doubtful if another label has at least this probability

# For each text, the probability of the predicted label, and whether that label is right.
Confidence = tuple[NDArray[np.float64], NDArray[np.bool_]]


def _confidence(log_probs: Outputs, truth: Targets) -> Confidence:
    """Return the probability of the predicted label of each text, and whether that label is right."""
    top = log_probs.max(-1)
    return top.values.exp().double().numpy(), (top.indices == truth).numpy()


def doubtful_labels(context: RunContext, corpus: AnyCorpus) -> tuple[list[Mistake], int]:
    """Return texts whose label is contradicted by a linear classifier fitted on other texts, and how many were checked.

    The most confident contradictions come first. `row` is the index of the text in the list of training texts
    followed by held-out texts. If there are many texts, a random sample is checked.
    """
    labels, seed, parts = context.card.labels, context.recipe.seed, (corpus.training, corpus.held_out)
    n = max(1, sum(part.n_characters for part in parts))
    share = (1.0 if n <= MOST_CHECKED else MOST_CHECKED / MOST_CHARACTERS) / n
    samples = [some_texts(context, corpus, part, seed, share * part.n_characters) for part in parts]
    texts, numbers = [text for each in samples for text in each.texts], torch.cat([each.targets for each in samples])
    places = [(part, row) for part, each in zip(parts, samples, strict=True) for row in each.rows]
    known = [each.groups for each in samples if each.groups is not None]
    groups = np.concatenate(known) if len(known) == len(samples) else None
    outputs = out_of_fold(texts, numbers, len(labels), seed, groups)
    found = []
    for mistake in worst_mistakes(outputs, numbers, texts, labels, most=len(texts)):
        if mistake.probability >= DOUBTFUL:
            part, row = places[mistake.row]
            before = 0 if part is corpus.training else len(corpus.training)
            found.append(mistake._replace(row=before + row, location=part.location(row)))
    return found, len(texts)


def evaluate(context: RunContext) -> Sequence[Score]:
    """Score all held-out texts, and attach a report on all labels to the first score."""
    results, mistakes, n_texts, sure, rare = [], list[Mistake](), 0, list[Confidence](), list[Confidence]()
    labels, truth = context.card.labels, true_targets(context)
    weights = _label_weights(context, truth)
    rarer = int(np.argmin(context.card.label_counts or np.bincount(truth, minlength=2))) if len(labels) == 2 else 0
    for part in predictions(context):
        rare.append((part.outputs[:, rarer].exp().double().numpy(), (part.truth == rarer).numpy()))
        sure.append(_confidence(part.outputs, part.truth))
        results.append(confusion_and_nll(part.outputs, part.truth, weights))
        mistakes += worst_mistakes(*part, labels, n_texts)
        n_texts += len(part.texts)
    scores = _scores(results, is_balanced=context.recipe.model.balanced)
    first, *others = _with_group_errors(context, scores, _joined(sure)[1])
    counts = np.sum([counts for counts, _ in results], axis=0)
    worst = tuple(sorted(mistakes, reverse=True)[:N_MISTAKES])
    threshold = best_threshold(*_joined(rare), labels[rarer]) if len(labels) == 2 else None
    error, note = 100 * debiased_error(_calibration(sure)), CALIBRATION_NOTE
    if context.recipe.model.ngrams and len(context.corpus.training):
        note += "; mixture weights fitted on these texts"
    note += "; probabilities are for equally frequent labels" if context.recipe.model.balanced else ""
    return [
        first._replace(report=LabelReport(label_scores(counts, labels), counts.tolist(), worst, threshold)),
        *others,
        Score("calibration error", error, note=note),
    ]


def calibration(context: RunContext) -> Calibration:
    """Measure the calibration of the probabilities on all held-out texts."""
    return _calibration([_confidence(part.outputs, part.truth) for part in predictions(context)])


def _calibration(parts: Sequence[Confidence]) -> Calibration:
    return compute_calibration(*_joined(parts))


def _joined(parts: Sequence[Confidence]) -> Confidence:
    probabilities, right = zip(*parts, strict=True)
    return np.concatenate(probabilities), np.concatenate(right)


def quick_evaluate(context: RunContext) -> Sequence[Score]:
    """Score a fixed random sample of held-out texts, and fit the weight of the linear classifier on this sample."""
    is_balanced = context.recipe.model.balanced
    log_probs, truth = quick_predictions(context, partial(fit_mixture, balanced=is_balanced))
    return _scores([confusion_and_nll(log_probs, truth, _label_weights(context, truth))], is_balanced=is_balanced)


def _label_weights(context: RunContext, truth: Targets) -> Float[Tensor, " n_labels"] | None:
    """Return weights that give all labels equal importance in the loss, or None if all texts count equally."""
    if not context.recipe.model.balanced:
        return None
    weights = balancing_weights(truth, len(context.card.labels))
    return weights * len(truth) / weights[truth].sum()


def _scores(results: Sequence[tuple[Counts, NegativeLogLikelihood]], *, is_balanced: bool = False) -> Sequence[Score]:
    """Return the scores. The first one ranks checkpoints: with `is_balanced`, balanced accuracy; else accuracy."""
    counts = np.sum([counts for counts, _ in results], axis=0)
    nats = sum(nll.nats for _, nll in results) / max(1, int(counts.sum()))
    accuracy, macro_f1 = classification_scores(counts)
    if is_balanced:
        note = "all labels count equally"
        return [balanced_accuracy(counts), macro_f1, accuracy, Score("nats per text", nats, note=note)]
    return [accuracy, macro_f1, Score("nats per text", nats)]


def _with_group_errors(
    context: RunContext, scores: Sequence[Score], right: NDArray[np.bool_], rows: Sequence[int] | slice = slice(None)
) -> Sequence[Score]:
    """Return the scores with standard errors that allow for groups. `rows` are the scored held-out texts."""
    groups = context.corpus.held_out.groups
    if groups is None or not len(right):
        return scores
    return with_group_errors(scores, right, true_targets(context)[rows].numpy(), groups[rows])


def baselines(context: RunContext, *, whole: bool = False) -> Sequence[Score]:
    """Score baselines on the held-out texts: most frequent label, equal probabilities, linear classifier."""
    truth, is_balanced = true_targets(context), context.recipe.model.balanced
    rows = quick_rows(context) if is_sampled(context, whole) else slice(None)
    counts = np.bincount(truth, minlength=len(context.card.labels))
    label = np.argmax(context.card.label_counts or counts)  # most frequent in the training texts, if known
    frequent = (counts[label] > 0) / (counts > 0).sum() if is_balanced else counts[label] / counts.sum()
    name = "balanced accuracy" if is_balanced else "accuracy"
    baselines = [
        Score(name, 100 * float(frequent), True, note="always the most frequent label"),
        Score("nats per text", log(len(context.card.labels)), note="all labels equally likely"),
    ]
    weights = _label_weights(context, truth[rows])
    parts = [(confusion_and_nll(*part, weights), _confidence(*part)) for part in linear_predictions(context, whole)]
    if parts:
        note = f"{linear_note(context, whole=whole)}{', all labels weighted equally' if is_balanced else ''}"
        results, sure = zip(*parts, strict=True)
        scores = _with_group_errors(context, _scores(results, is_balanced=is_balanced), _joined(sure)[1], rows)
        baselines += [score._replace(note=note) for score in scores]
    return baselines
