"""Labelled texts: the functions that all classifiers share, whether a text gets one label, several or a score."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from shlex import quote
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from penwright.classification.classifier import Classification, Classifier
from penwright.classification.mixture import ENCODER_ALONE, LINEAR_ALONE, Weights
from penwright.data.bucketing import LabelledBatches, TokenDropout
from penwright.data.corpus import Labelled
from penwright.data.labelled import open_evaluation_labelled, open_labelled
from penwright.data.labels import SEPARATORS, label_matcher
from penwright.data.store import TokenStore
from penwright.data.store_writer import Cell
from penwright.errors import PenwrightError
from penwright.evaluation.scores import Sample
from penwright.model.transformer import EncoderOnly
from penwright.tasks.context import AnyCorpus, AnyPart, RunContext
from penwright.text import BETWEEN_TEXTS, count, significant

SHOWN = 10  # maximum number of labels in an error message
MOST_EVALUATED = 10_000  # maximum number of texts in a quick evaluation
MOST_QUICK_CHARACTERS = 10_000_000  # maximum number of characters in a quick evaluation
MOST_SCORES = 20_000_000  # maximum number of scores (texts x labels) in memory at once
LINEAR_BASELINE = "linear classifier of n-grams"  # name of the baseline in reports
N_SAMPLES = 3
TEXT_COLUMNS, LABEL_COLUMNS = ("text",), ("label",)

open_corpus, open_evaluation = open_labelled, open_evaluation_labelled

# Label ids (one label per text), 0 or 1 for each label (any number of labels), or standardized scores (regression).
Targets = Int64[Tensor, " texts"] | Float[Tensor, "texts n_labels"]
Outputs = Float[Tensor, "texts n_labels"]


def rows(part: AnyPart, labels: Sequence[str]) -> Iterator[Sequence[Cell]]:
    """Yield each text with the index of the text's label. Raises PenwrightError for an unknown label."""
    index_of = label_indices(labels)
    for number, example in enumerate(part):
        assert isinstance(example, Labelled)
        try:
            yield example.text, index_of(example.label)
        except PenwrightError as error:
            raise PenwrightError(f"{part.location(number)}: {error}") from None


def label_indices(labels: Sequence[str]) -> Callable[[str], int]:
    """Return a function that returns the index of a label. Labels that differ only in notation (1 and 1.0) match.

    The function raises PenwrightError for a label that does not occur in the training texts.
    """
    number, match = {label: index for index, label in enumerate(labels)}, label_matcher(labels)

    def index_of(label: str) -> int:
        known = label if label in number else match(label)
        if known is None:
            shown = f"{', '.join(labels[:SHOWN])}{', ...' if len(labels) > SHOWN else ''}"
            names = quote(f'data.label_names={{{json.dumps(label, ensure_ascii=False)}=""}}')
            raise PenwrightError(
                f"the label '{label[:50]}' does not occur in the training texts, which have the labels: {shown}. To "
                f"leave it out: --set {names}"
            )
        return number[known]

    return index_of


def texts(corpus: AnyCorpus) -> Iterator[str]:
    """Yield the training texts."""
    for example in corpus.training:
        assert isinstance(example, Labelled)
        yield example.text.replace(BETWEEN_TEXTS, " ")


def batches(context: RunContext, store: TokenStore) -> LabelledBatches:
    """Return the batches of a token store."""
    recipe, model = context.recipe, context.recipe.model
    batches = LabelledBatches(
        store.column("text"),
        store.labels["label"],
        model.context_length,
        recipe.training.batch_tokens,
        context.markers,
        recipe.seed,
        _token_dropout(context),
        target_table(context, context.corpus),
    )
    batches.are_pairs = model.text_pairs
    return batches


def _token_dropout(context: RunContext) -> TokenDropout | None:
    model = context.recipe.model
    kept = context.markers.end if model.text_pairs else None
    return TokenDropout(model.token_dropout, model.pooling == "first", kept) if model.token_dropout else None


def target_table(context: RunContext, corpus: AnyCorpus) -> Float[Tensor, "values n_labels"] | None:
    """Return the targets for each entry of the corpus's `label_values`, or None if each text has one label.

    Raises PenwrightError for a label that does not occur in the training texts.
    """
    problem, labels = context.recipe.model.problem_type, context.card.labels
    if problem == "single_label_classification":
        return None
    if problem == "regression":
        mean, deviation = classifier_model(context).scale.cpu().double()
        scores = torch.tensor([float(value) for value in corpus.label_values], dtype=torch.double)
        return ((scores - mean) / deviation).float()[:, None]
    index_of = label_indices(labels)
    table = torch.zeros(len(corpus.label_values), len(labels))
    for row, value in enumerate(corpus.label_values):
        try:
            table[row, [index_of(label) for label in Labelled("", value).labels]] = 1
        except PenwrightError as error:
            raise PenwrightError(f"{_location(corpus, value)}: {error}{_separator_hint(value, labels)}") from None
    return table


def _separator_hint(value: str, labels: Sequence[str]) -> str:
    """Return a hint if an unknown label consists of known labels and a separator; otherwise ""."""
    match = label_matcher(labels)
    for mark in SEPARATORS:
        if mark in value and all(match(part.strip()) for part in value.split(mark)):
            return f". If '{mark}' separates several labels: --set data.label_separator={quote(mark)}"
    return ""


def _location(corpus: AnyCorpus, value: str) -> str:
    """Return the location of the first text with this value of `label`."""
    rows = ((part, *each) for part in (corpus.training, corpus.held_out) for each in enumerate(part))
    return next(
        part.location(number) for part, number, each in rows if isinstance(each, Labelled) and each.label == value
    )


def classifier_model(context: RunContext) -> EncoderOnly:
    """Return the context's model, which must be encoder-only."""
    assert isinstance(context.model, EncoderOnly)
    return context.model


class Predictions(NamedTuple):
    """The outputs of a classifier for some of the held-out texts."""

    outputs: Outputs
    truth: Targets
    texts: Sequence[str]


def predictions(context: RunContext) -> Iterator[Predictions]:
    """Yield the predictions for all held-out texts, in parts that fit in memory."""
    classifier, column, truth = classifier_of(context), context.held_out.column("text"), true_targets(context)
    most, texts = most_at_once(context), held_out_texts(context)
    for begin in range(0, len(truth), most):
        part = list(islice(texts, most))
        tokens = [column[row] for row in range(begin, begin + len(part))]
        outputs = classifier.combine(classifier.outputs(tokens), classifier.linear_outputs(part))
        yield Predictions(outputs, truth[begin : begin + most], part)


def quick_predictions(
    context: RunContext, fit_mixture: Callable[[Outputs, Outputs, Tensor, Weights], Tensor]
) -> tuple[Outputs, Targets]:
    """Return the outputs for a fixed random sample of held-out texts, and the true targets.

    The weights that combine the encoder with the linear classifier are fitted on this sample.
    """
    classifier, column, truth = classifier_of(context), context.held_out.column("text"), true_targets(context)
    rows = quick_rows(context)
    with context.quick_precision():
        outputs = classifier.outputs([column[row] for row in rows])
    linear, truth = None if classifier.linear is None else quick_linear_outputs(context), truth[rows]
    if linear is not None:
        initial = ENCODER_ALONE if context.recipe.tokenizer.is_pretrained else LINEAR_ALONE
        balanced = classifier.balance(outputs), classifier.balance(linear)
        classifier.model.mixture.copy_(fit_mixture(*balanced, truth, initial))
    return classifier.combine(outputs, linear), truth


def quick_rows(context: RunContext) -> list[int]:
    """Return the indices of the held-out texts for quick evaluations: a fixed random sample."""
    n, n_characters = len(context.held_out), context.corpus.held_out.n_characters
    most = min(most_at_once(context), max(1, n * MOST_QUICK_CHARACTERS // max(1, n_characters)))
    rows: list[int] = np.random.default_rng(0).permutation(n)[:most].tolist()
    return rows


def quick_linear_outputs(context: RunContext) -> Outputs | None:
    """Return the outputs of the linear classifier for the texts of quick evaluations, computed only once."""
    if context.linear is not None and context.linear_outputs is None:
        chosen = set(rows := quick_rows(context))
        texts = {row: text for row, text in enumerate(held_out_texts(context)) if row in chosen}
        context.linear_outputs = context.linear.outputs([texts[row] for row in rows])
    return context.linear_outputs


def is_sampled(context: RunContext, whole: bool) -> bool:
    """Return whether a baseline is scored only on the texts of quick evaluations: unless `whole`, if there are many."""
    return not whole and len(quick_rows(context)) < len(context.held_out)


def linear_predictions(context: RunContext, whole: bool) -> Iterator[tuple[Outputs, Targets]]:
    """Yield the outputs of the linear classifier for the held-out texts that `is_sampled` chooses, and their targets.

    Yields nothing if the run has no linear classifier.
    """
    sample = quick_linear_outputs(context) if is_sampled(context, whole) else None
    if sample is not None:
        yield classifier_of(context).balance(sample), true_targets(context)[quick_rows(context)]
        return
    texts, linear, classifier = held_out_texts(context), context.whole_linear or context.linear, classifier_of(context)
    if linear is None:
        return
    for truth in true_targets(context).split(most_at_once(context)):
        yield classifier.balance(linear.outputs(list(islice(texts, len(truth))))), truth


def linear_note(context: RunContext, name: str = LINEAR_BASELINE, whole: bool = True) -> str:
    """Return the name of the linear baseline, followed by notes on how its fit and its texts were limited."""
    linear = context.whole_linear or context.linear
    notes = [name, *(linear.notes if linear else ())]
    if is_sampled(context, whole):
        n, n_texts = len(quick_rows(context)), count(len(context.held_out), "text")
        notes.append(f"scored on a sample of {n:,} of {n_texts}")
    return ", ".join(notes)


def group_note(context: RunContext) -> str:
    """Return a note on standard errors that ignore the groups of the texts, or "" if the texts have no groups."""
    has_groups = context.corpus.held_out.groups is not None
    return "; texts of a group are not independent, so the true error is larger" if has_groups else ""


def classifier_of(context: RunContext) -> Classifier:
    """Return the context's model and tokenizer as a classifier."""
    classifier = context.application
    assert isinstance(classifier, Classifier)
    return classifier


def true_targets(context: RunContext) -> Targets:
    """Return the targets of the held-out texts."""
    return targets_of(context, context.held_out)


def targets_of(context: RunContext, store: TokenStore) -> Targets:
    """Return the targets of the texts in a token store."""
    numbers = torch.from_numpy(store.labels["label"].astype(np.int64))
    table = target_table(context, context.corpus)
    return numbers if table is None else table[numbers]


def held_out_texts(context: RunContext) -> Iterator[str]:
    """Yield the held-out texts, in the order of the token store."""
    for example in context.corpus.held_out:
        assert isinstance(example, Labelled)
        yield example.text


def most_at_once(context: RunContext) -> int:
    """Return the number of texts to score at once, as limited by MOST_SCORES."""
    return max(1, min(MOST_EVALUATED, MOST_SCORES // max(1, len(context.card.labels))))


def sample(context: RunContext) -> Sequence[Sample]:
    """Classify the first held-out texts. A tab separates the texts of a pair."""
    examples = [each for each in islice(context.corpus.held_out, N_SAMPLES) if isinstance(each, Labelled)]
    texts = [each.text.replace(BETWEEN_TEXTS, "\t") for each in examples]
    results = zip(texts, classifier_of(context).classify(texts), examples, strict=True)
    return [Sample(text, _written(each), ", ".join(example.labels)) for text, each, example in results]


def _written(result: Classification) -> str:
    if result.score is not None:
        return significant(result.score)
    return (result.label or "") if result.labels is None else ", ".join(result.labels) or "(no label)"
