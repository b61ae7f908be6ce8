"""Classification: an encoder-only model of labelled texts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import compress, islice
from math import inf, log
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from penwright.classification.classifier import Classifier
from penwright.classification.linear import LinearClassifier, out_of_fold
from penwright.classification.mixture import fit_mixture
from penwright.data.bucketing import LabelledBatches, TokenDropout
from penwright.data.corpus import Labelled
from penwright.data.labels import label_key
from penwright.data.store import TokenStore
from penwright.data.store_writer import Cell
from penwright.errors import PenwrightError
from penwright.evaluation.classification import (
    Calibration,
    Counts,
    classification_scores,
    compute_calibration,
    confusion_and_nll,
    debiased_error,
)
from penwright.evaluation.label_report import (
    N_MISTAKES,
    LabelReport,
    Mistake,
    best_threshold,
    label_scores,
    worst_mistakes,
)
from penwright.evaluation.perplexity import NegativeLogLikelihood
from penwright.evaluation.scores import Sample, Score
from penwright.tasks.context import AnyCorpus, AnyPart, RunContext

N_SAMPLES = 3
SHOWN = 10  # maximum number of labels in an error message
MOST_EVALUATED = 10_000  # maximum number of texts in a quick evaluation
MOST_SCORES = 20_000_000  # maximum number of scores (texts x labels) in memory at once
MOST_LOGITS = 50_000_000  # maximum number of logits (texts x labels) for fitting the linear classifier
MOST_CHARACTERS = 20_000_000  # maximum number of characters for fitting the linear classifier
MOST_REFITTED = 20_000  # maximum number of texts for which refit_linear() fits a classifier on all of them
# The maximum number of doubtful labels to list. A label is doubtful if a different one has at least this probability.
MOST_DOUBTFUL, DOUBTFUL = 50, 0.8
LINEAR = "linear classifier of n-grams"  # name of the baseline in reports


def rows(part: AnyPart, labels: Sequence[str]) -> Iterator[Sequence[Cell]]:
    """Yield each text with the index of the text's label.

    Labels that differ only in notation (1 and 1.0) match. Raises PenwrightError for an unknown label.
    """
    number = {label: index for index, label in enumerate(labels)}
    keys = Counter(map(label_key, labels))
    alike = {key: index for index, key in enumerate(map(label_key, labels)) if keys[key] == 1}
    for example in part:
        assert isinstance(example, Labelled)
        index = number.get(example.label)
        if index is None:
            index = alike.get(label_key(example.label))
        if index is None:
            known = f"{', '.join(labels[:SHOWN])}{', ...' if len(labels) > SHOWN else ''}"
            raise PenwrightError(
                f"the label '{example.label[:50]}' does not occur in the training texts, which have the labels: {known}"
            )
        yield example.text, index


def texts(corpus: AnyCorpus) -> Iterator[str]:
    """Yield the training texts."""
    for example in corpus.training:
        assert isinstance(example, Labelled)
        yield example.text


def batches(context: RunContext, store: TokenStore) -> LabelledBatches:
    """Return the batches of a token store."""
    recipe, model = context.recipe, context.recipe.model
    return LabelledBatches(
        store.column("text"),
        store.labels["label"],
        model.context_length,
        recipe.training.batch_tokens,
        context.markers,
        recipe.seed,
        TokenDropout(model.token_dropout, model.pooling == "first") if model.token_dropout else None,
    )


def fit_linear(corpus: AnyCorpus, labels: Sequence[str], seed: int, until: float = inf) -> LinearClassifier:
    """Fit a linear classifier of n-grams on the training texts. If there are many texts, use a random sample."""
    texts, numbers = _some_texts(corpus.training, labels, seed)
    return LinearClassifier.fit(texts, numbers, len(labels), seed, until)


def refit_linear(
    linear: LinearClassifier, corpus: AnyCorpus, labels: Sequence[str], until: float = inf
) -> LinearClassifier | None:
    """Fit a linear classifier on all texts, held-out ones included.

    Return None for a large corpus, to which the held-out texts add little, or if it cannot be done by the time `until`
    (as counted by `monotonic`). Use the classifier only for texts outside the corpus: its scores for the held-out texts
    are too good.
    """
    if len(corpus.training) + len(corpus.held_out) > MOST_REFITTED:
        return None
    (texts, numbers), (more, others) = (_some_texts(part, labels, 0) for part in (corpus.training, corpus.held_out))
    return linear.refit([*texts, *more], torch.cat([numbers, others]), until)


def doubtful_labels(corpus: AnyCorpus, labels: Sequence[str], seed: int) -> list[Mistake]:
    """Return training texts whose label is contradicted by a linear classifier that was fitted on other texts.

    The most confident contradictions come first. `row` is the index of the text among the training texts.
    """
    texts, numbers = _some_texts(corpus.training, labels, seed)
    found = worst_mistakes(out_of_fold(texts, numbers, len(labels), seed), numbers, texts, labels, most=MOST_DOUBTFUL)
    return [each for each in found if each.probability >= DOUBTFUL]


def _some_texts(part: AnyPart, labels: Sequence[str], seed: int) -> tuple[list[str], Int64[Tensor, " texts"]]:
    """Return the texts of a part and the indices of their labels. If there are many texts, return a random sample."""
    fitting = int(len(part) * MOST_CHARACTERS / max(1, part.n_characters))
    n = max(1, min(len(part), fitting, MOST_LOGITS // len(labels)))
    kept = np.zeros(len(part), dtype=bool)
    kept[np.random.default_rng(seed).permutation(len(part))[:n]] = True
    texts, numbers = [], []
    for text, number in compress(rows(part, labels), kept.tolist()):
        assert isinstance(text, str) and isinstance(number, int)
        texts.append(text)
        numbers.append(number)
    return texts, torch.tensor(numbers)


# The probability of a label for each text, and whether the label is right.
Confidence = tuple[NDArray[np.float64], NDArray[np.bool_]]


class Predictions(NamedTuple):
    """The predictions for a batch of held-out texts."""

    log_probs: Float[Tensor, "texts n_labels"]
    truth: Int64[Tensor, " texts"]
    texts: Sequence[str]

    @property
    def confidence(self) -> Confidence:
        """The probability of the predicted label of each text, and whether that label is right."""
        top = self.log_probs.max(-1)
        return top.values.exp().double().numpy(), (top.indices == self.truth).numpy()


def predictions(context: RunContext) -> Iterator[Predictions]:
    """Yield the predictions for all held-out texts, in parts that fit in memory."""
    classifier, column, labels = _classifier(context), context.held_out.column("text"), _labels(context)
    most, texts = _most_at_once(context), _held_out_texts(context)
    for begin in range(0, len(labels), most):
        part = list(islice(texts, most))
        tokens = [column[row] for row in range(begin, begin + len(part))]
        log_probs = classifier.combine(classifier.log_probabilities(tokens), classifier.linear_log_probabilities(part))
        yield Predictions(log_probs, labels[begin : begin + most], part)


def evaluate(context: RunContext) -> Sequence[Score]:
    """Score all held-out texts. The first score has a report on all labels."""
    results, mistakes, n_texts, sure, rare = [], list[Mistake](), 0, list[Confidence](), list[Confidence]()
    labels, truth = context.card.labels, _labels(context)
    rarer = int(torch.bincount(truth, minlength=2).argmin()) if len(labels) == 2 else 0
    for part in predictions(context):
        rare.append((part.log_probs[:, rarer].exp().double().numpy(), (part.truth == rarer).numpy()))
        sure.append(part.confidence)
        results.append(confusion_and_nll(part.log_probs, part.truth))
        mistakes += worst_mistakes(*part, labels, n_texts)
        n_texts += len(part.texts)
    first, *others = _scores(results, is_balanced=context.recipe.model.balanced)
    counts = np.sum([counts for counts, _ in results], axis=0)
    worst = tuple(sorted(mistakes, reverse=True)[:N_MISTAKES])
    threshold = best_threshold(*_joined(rare), labels[rarer]) if len(labels) == 2 else None
    error = 100 * debiased_error(_calibration(sure))
    return [
        first._replace(report=LabelReport(label_scores(counts, labels), counts.tolist(), worst, threshold)),
        *others,
        Score(
            "calibration error",
            error,
            note="mean difference between probability and accuracy in %, without the part due to chance",
        ),
    ]


def calibration(context: RunContext) -> Calibration:
    """Measure the calibration of the probabilities on all held-out texts."""
    return _calibration([part.confidence for part in predictions(context)])


def _calibration(parts: Sequence[Confidence]) -> Calibration:
    return compute_calibration(*_joined(parts))


def _joined(parts: Sequence[Confidence]) -> Confidence:
    probabilities, right = zip(*parts, strict=True)
    return np.concatenate(probabilities), np.concatenate(right)


def quick_evaluate(context: RunContext) -> Sequence[Score]:
    """Score a fixed random sample of held-out texts, and fit the weight of the linear classifier on this sample."""
    classifier, column, labels = _classifier(context), context.held_out.column("text"), _labels(context)
    rows = np.random.default_rng(0).permutation(len(labels))[: _most_at_once(context)]
    log_probs = classifier.log_probabilities([column[row] for row in rows.tolist()])
    targets = labels[rows]
    if classifier.linear is not None:
        if context.linear_log_probs is None:
            chosen = set(rows.tolist())
            texts = {row: text for row, text in enumerate(_held_out_texts(context)) if row in chosen}
            context.linear_log_probs = classifier.linear.log_probabilities([texts[row] for row in rows.tolist()])
        classifier.model.mixture.copy_(fit_mixture(log_probs, context.linear_log_probs, targets))
    log_probs = classifier.combine(log_probs, context.linear_log_probs)
    return _scores([confusion_and_nll(log_probs, targets)], is_balanced=context.recipe.model.balanced)


def _scores(results: Sequence[tuple[Counts, NegativeLogLikelihood]], *, is_balanced: bool = False) -> Sequence[Score]:
    """Return the scores. The first one ranks checkpoints: macro-F1 with `is_balanced`, otherwise accuracy."""
    counts = np.sum([counts for counts, _ in results], axis=0)
    nats = sum(nll.nats for _, nll in results) / max(1, int(counts.sum()))
    accuracy, macro_f1 = classification_scores(counts)
    return [*((macro_f1, accuracy) if is_balanced else (accuracy, macro_f1)), Score("nats per text", nats)]


def _classifier(context: RunContext) -> Classifier:
    classifier = context.application
    assert isinstance(classifier, Classifier)
    return classifier


def _labels(context: RunContext) -> Int64[Tensor, " texts"]:
    """Return the labels of the held-out texts."""
    return torch.from_numpy(context.held_out.labels["label"].astype(np.int64))


def _held_out_texts(context: RunContext) -> Iterator[str]:
    """Yield the held-out texts, in the order of the token store."""
    for example in context.corpus.held_out:
        assert isinstance(example, Labelled)
        yield example.text


def _most_at_once(context: RunContext) -> int:
    """Return the number of texts to score at once, as limited by MOST_SCORES."""
    return max(1, min(MOST_EVALUATED, MOST_SCORES // max(1, len(context.card.labels))))


def baselines(context: RunContext, whole: bool = False) -> Sequence[Score]:
    """Score the most frequent label, equal probabilities and the linear classifier on the whole held-out part."""
    counts = np.bincount(context.held_out.labels["label"])
    frequent = 100 * float(counts.max() / counts.sum())
    found = [
        Score("accuracy", frequent, True, note="always the most frequent label"),
        Score("nats per text", log(len(context.card.labels)), note="all labels equally likely"),
    ]
    if context.linear is not None:
        labels, most, texts = _labels(context), _most_at_once(context), _held_out_texts(context)
        results = [
            confusion_and_nll(context.linear.log_probabilities(list(islice(texts, len(part)))), part)
            for part in labels.split(most)
        ]
        found += [score._replace(note=LINEAR, standard_error=None) for score in _scores(results)]
    return found


def sample(context: RunContext) -> Sequence[Sample]:
    """Classify a few held-out texts."""
    examples = [example for example in islice(context.corpus.held_out, N_SAMPLES) if isinstance(example, Labelled)]
    classifier = context.application
    assert isinstance(classifier, Classifier)
    given = classifier.classify([example.text for example in examples])
    return [
        Sample(example.text, each.label or "", example.label) for example, each in zip(examples, given, strict=True)
    ]
