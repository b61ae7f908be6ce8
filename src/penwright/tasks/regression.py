"""Regression: each text gets a number, such as its number of stars."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from penwright.classification.mixture import fit_mixture_of_scores
from penwright.evaluation.classification import Numbers, largest_errors, regression_scores
from penwright.evaluation.scores import Score
from penwright.tasks.context import RunContext
from penwright.tasks.labelled import (
    Outputs,
    Targets,
    classifier_model,
    group_note,
    linear_note,
    linear_predictions,
    predictions,
    quick_predictions,
    true_targets,
)


def quick_evaluate(context: RunContext) -> Sequence[Score]:
    """Score a fixed random sample of held-out texts. Fit the mixture weights on this sample."""
    return _scores(context, [quick_predictions(context, fit_mixture_of_scores)])


def evaluate(context: RunContext) -> Sequence[Score]:
    """Score all held-out texts, and attach a report on the largest errors to the first score."""
    outputs, truth, texts = zip(*predictions(context), strict=True)
    first, *others = _scores(context, list(zip(outputs, truth, strict=True)))
    report = largest_errors(_numbers(context, outputs), _numbers(context, truth), [*chain.from_iterable(texts)])
    return [first._replace(report=report, note=f"{first.note}{group_note(context)}"), *others]


def _scores(context: RunContext, parts: Sequence[tuple[Outputs, Targets]]) -> Sequence[Score]:
    predicted, truth = (_numbers(context, side) for side in zip(*parts, strict=True))
    return regression_scores(predicted, truth, float(classifier_model(context).scale[1]))


def _numbers(context: RunContext, standardized: Sequence[Outputs | Targets]) -> Numbers:
    """Convert standardized scores back to the scale of the training scores."""
    mean, deviation = classifier_model(context).scale.tolist()
    return mean + deviation * np.concatenate([each[:, 0].double().numpy() for each in standardized])


def baselines(context: RunContext, *, whole: bool = False) -> Sequence[Score]:
    """Score two baselines: the mean score of the training texts, and ridge regression on n-grams."""
    mean, deviation = classifier_model(context).scale.tolist()
    truth = _numbers(context, [true_targets(context)])
    always = regression_scores(np.full_like(truth, mean), truth, deviation)
    baselines = [score._replace(note="always the mean score of the training texts") for score in always[2:]]
    if context.linear is not None:
        linear, note = _scores(context, list(linear_predictions(context, whole))), "ridge regression on n-grams"
        baselines += [score._replace(note=linear_note(context, note, whole)) for score in linear]
    return baselines
