"""Classification with any number of labels for each text: each label is decided independently."""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from penwright.classification.mixture import fit_mixture_of_sets
from penwright.evaluation.classification import (
    SetCounts,
    count_sets,
    nats_of_sets,
    scores_of_labels,
    set_scores,
    worst_sets,
)
from penwright.evaluation.scores import N_MISTAKES, LabelReport, Mistake, Score, best_threshold
from penwright.tasks.context import RunContext
from penwright.tasks.labelled import (
    Outputs,
    Targets,
    classifier_model,
    group_note,
    linear_note,
    linear_predictions,
    predictions,
    quick_linear_outputs,
    quick_predictions,
    quick_rows,
    true_targets,
)

TUNED_HERE = "thresholds tuned on these texts"
FEWEST_POSITIVES = 10  # the threshold of a label is tuned only if at least this many held-out texts have the label


def quick_evaluate(context: RunContext) -> Sequence[Score]:
    """Score a fixed random sample of held-out texts. Fit the mixture weights and thresholds on it."""
    outputs, truth = quick_predictions(context, fit_mixture_of_sets)
    thresholds = classifier_model(context).thresholds
    thresholds.copy_(fit_thresholds(outputs, truth))
    counts = count_sets(outputs.sigmoid() >= thresholds.cpu(), truth)
    return _scores(counts, nats_of_sets(outputs, truth))


def fit_thresholds(outputs: Outputs, truth: Targets) -> Float[Tensor, " n_labels"]:
    """Return the threshold with the best F1 for each label; 0.5 for labels with few texts."""
    probabilities, is_label = outputs.sigmoid().double().numpy(), truth.bool().numpy()
    thresholds = np.full(probabilities.shape[1], 0.5)
    for label in np.flatnonzero(is_label.sum(0) >= FEWEST_POSITIVES):
        best = best_threshold(probabilities[:, label], is_label[:, label], "")
        thresholds[label] = best.threshold if best else 0.5
    return torch.from_numpy(thresholds).float()


def evaluate(context: RunContext) -> Sequence[Score]:
    """Score all held-out texts, and attach a report on all labels to the first score."""
    labels, thresholds = context.card.labels, classifier_model(context).thresholds.cpu()
    results, nats, mistakes = list[SetCounts](), 0.0, list[Mistake]()
    for outputs, truth, texts in predictions(context):
        mistakes += worst_sets(outputs, truth, thresholds, texts, labels, sum(each.n_texts for each in results))
        results.append(count_sets(outputs.sigmoid() >= thresholds, truth))
        nats += nats_of_sets(outputs, truth)
    counts = reduce(SetCounts.plus, results)
    worst = tuple(sorted(mistakes, reverse=True)[:N_MISTAKES])
    first, *others = _scores(counts, nats)
    tuned = f", {TUNED_HERE}" if len(context.corpus.training) else ""
    first = first._replace(note=f"{first.note}{tuned}{group_note(context)}")
    return [first._replace(report=LabelReport(scores_of_labels(counts, labels, thresholds), [], worst)), *others]


def _scores(counts: SetCounts, nats: float) -> Sequence[Score]:
    return [*set_scores(counts), Score("nats per text", nats / max(1, counts.n_texts))]


def baselines(context: RunContext, *, whole: bool = False) -> Sequence[Score]:
    """Score baselines: the most frequent label, the frequencies of all labels, the linear classifier."""
    truth = true_targets(context)
    shares = truth.mean(0, dtype=torch.double).clamp(1e-6, 1 - 1e-6)
    frequent = torch.zeros_like(truth, dtype=torch.bool)
    label = np.argmax(context.card.label_counts or shares.numpy())  # most frequent in the training texts, if known
    frequent[:, int(label)] = True
    micro, *_ = set_scores(count_sets(frequent, truth))
    nats = nats_of_sets(shares.logit().expand(truth.shape), truth) / max(1, len(truth))
    baselines = [
        micro._replace(note="always the most frequent label"),
        Score("nats per text", nats, note="the probability of each label is its frequency in the held-out texts"),
    ]
    if context.linear is not None:
        thresholds, note = _baseline_thresholds(context, truth)
        parts = [
            (count_sets(outputs.sigmoid() >= thresholds, truth), nats_of_sets(outputs, truth))
            for outputs, truth in linear_predictions(context, whole)
        ]
        counts, nats = reduce(SetCounts.plus, [counts for counts, _ in parts]), sum(nats for _, nats in parts)
        note = f"{linear_note(context, whole=whole)}, {note}"
        baselines += [score._replace(note=note) for score in _scores(counts, nats)]
    return baselines


def _baseline_thresholds(context: RunContext, truth: Targets) -> tuple[Float[Tensor, " n_labels"], str]:
    """Return thresholds for the linear classifier, and a note that says how they were chosen."""
    if not len(context.corpus.training):  # evaluating on other files: no thresholds are tuned on them
        return classifier_model(context).thresholds.cpu(), "with the thresholds of the model"
    outputs = quick_linear_outputs(context)
    assert outputs is not None
    return fit_thresholds(outputs, truth[quick_rows(context)]), TUNED_HERE
