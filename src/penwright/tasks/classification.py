"""Classification: an encoder-only model of labelled texts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from math import log

import numpy as np
import torch
from numpy.typing import NDArray

from penwright.classification.classifier import Classifier
from penwright.data.batching import LabelledBatches
from penwright.data.corpora import Labelled
from penwright.data.hiding import TokenDropout
from penwright.data.labels import label_key
from penwright.data.store import TokenStore
from penwright.data.store_writer import Cell
from penwright.errors import PenwrightError
from penwright.evaluation.classification import classification_scores, confusion_and_nll
from penwright.evaluation.scores import Sample, Score
from penwright.tasks.context import AnyCorpus, AnyPart, RunContext

Rows = NDArray[np.int64]
N_SAMPLES = 3
SHOWN = 10  # labels in an error message
MOST_EVALUATED = 10_000  # texts in a quick evaluation


def rows(part: AnyPart, labels: Sequence[str]) -> Iterator[Sequence[Cell]]:
    """Yield each text with the index of its label.

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
                f"the label '{example.label[:50]}' does not occur in the training texts. Their labels: {known}"
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


def evaluate(context: RunContext) -> Sequence[Score]:
    """Score all held-out texts."""
    return _scores(context, np.arange(len(context.held_out)))


def quick_evaluate(context: RunContext) -> Sequence[Score]:
    """Score a fixed random sample of at most MOST_EVALUATED held-out texts."""
    return _scores(context, np.random.default_rng(0).permutation(len(context.held_out))[:MOST_EVALUATED])


def _scores(context: RunContext, rows: Rows) -> Sequence[Score]:
    """Score these held-out texts. Each is read whole, as when the model is used."""
    classifier, column, labels = context.application, context.held_out.column("text"), context.held_out.labels["label"]
    assert isinstance(classifier, Classifier)
    parts = np.array_split(rows, max(1, -(-len(rows) // MOST_EVALUATED)))  # all at once would not fit in memory
    results = [
        confusion_and_nll(
            classifier.log_probabilities([column[row] for row in part.tolist()]),
            torch.from_numpy(labels[part].astype(np.int64)),
        )
        for part in parts
    ]
    counts = np.sum([counts for counts, _ in results], axis=0)
    nats = sum(surprise.nats for _, surprise in results) / max(1, len(rows))
    return [*classification_scores(counts), Score("nats per text", nats)]


def baselines(context: RunContext, whole: bool = False) -> Sequence[Score]:
    """Score the most frequent label, and equal probabilities, always on the whole held-out part."""
    counts = np.bincount(context.held_out.labels["label"])
    frequent = 100 * float(counts.max() / counts.sum())
    return [
        Score("accuracy", frequent, True, note="always the most frequent label"),
        Score("nats per text", log(len(context.card.labels)), note="all labels equally likely"),
    ]


def sample(context: RunContext) -> Sequence[Sample]:
    """Classify a few held-out texts."""
    examples = [example for example in islice(context.corpus.held_out, N_SAMPLES) if isinstance(example, Labelled)]
    classifier = context.application
    assert isinstance(classifier, Classifier)
    given = classifier.classify([example.text for example in examples])
    return [
        Sample(example.text, each.label or "", example.label) for example, each in zip(examples, given, strict=True)
    ]
