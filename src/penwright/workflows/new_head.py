"""New heads for classifiers that start from another run, and contrastive fine-tuning for small training sets.

A new head is fitted before ordinary training. If there are few labelled texts, contrastive fine-tuning and the new head
replace ordinary training.
"""

from collections.abc import Sequence
from copy import deepcopy
from math import inf, sqrt
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from penwright.classification.classifier import Classifier
from penwright.classification.fitting import (
    N_FOLDS,
    STRENGTHS,
    STRENGTHS_OF_SCORES,
    share_of_time,
    stratified_folds,
)
from penwright.classification.linear import LinearClassifier
from penwright.classification.solver import (
    SINGLE,
    Coefficients,
    SparseRows,
    Targets,
    fit_coefficients,
    loss_and_errors,
)
from penwright.config import ProblemType
from penwright.data.bucketing import LabelledBatches
from penwright.data.corpus import Labelled
from penwright.model.transformer import EncoderOnly
from penwright.tasks import RunContext
from penwright.tasks.labelled import LINEAR_BASELINE, batches, classifier_model, classifier_of, targets_of
from penwright.text import count
from penwright.training.observers import Observer, notify

MOST_TEXTS = 1000  # maximum number of texts to embed for the head
SHARE = 0.1  # maximum fraction of a budget in minutes to spend on embedding texts
CHUNK = 64  # number of texts to embed between two checks of the elapsed time
WEAK = (0.3, 1.0)  # regularization strengths to try before STRENGTHS: few texts need strong regularization
# Contrastive fine-tuning: folds of its cross-validation, texts per step, steps, and learning rate. The rate is SetFit's
# (Tunstall et al. 2022). All texts of a batch are compared, so the number of steps does not grow with that of pairs.
FOLDS, BATCH, STEPS, FEWEST_STEPS, RATE, WEIGHT_DECAY = 2, 32, 40, 5, 2e-5, 0.01
# For few texts: regularization strengths that give good directions, and factors by which their logits may be scaled.
# Weaker regularization has a lower loss in cross-validation only because its logits are larger (benchmarks/LOG.md).
FEW_STRENGTHS, SCALES = (3.0, 10.0), (1.0, 1.7, 3.0, 5.5)
TUNING_SHARE = 0.7  # maximum share of a budget for contrastive fine-tuning

Vectors = Float[Tensor, "texts width"]


class Validated(NamedTuple):
    """A regularization strength, chosen by cross-validation, and the logits of each text when it was held out."""

    strength: float
    logits: Float[Tensor, "texts n_labels"]
    scale: float  # factor for the logits of a fit on all texts


@torch.no_grad()
def fit_head(context: RunContext, observers: Sequence[Observer]) -> None:
    """Fit the head on the embeddings of the training texts, or of a random sample if there are many.

    It is a logistic regression, or a ridge regression for scores. Ordinary training starts from it (Kumar et al. 2022).
    With `finetuning.contrastive`, there is no ordinary training. The encoder is fine-tuned contrastively, unless
    cross-validation shows that the frozen embeddings are better.
    """
    assert context.training is not None
    recipe, classifier, output = context.recipe, classifier_of(context), classifier_model(context).output
    assert recipe.finetuning is not None and isinstance(output, nn.Linear)
    problem, n_labels = recipe.model.problem_type, output.out_features
    seconds = 60 * (recipe.training.minutes or inf)
    column, vectors = context.training.column("text"), list[Tensor]()
    rows = np.random.default_rng(recipe.seed).permutation(len(column))[:MOST_TEXTS]
    with context.quick_precision():
        classifier.pooled([column[int(rows[0])]])  # the first call is slow, and would spoil the measurement
        begin = monotonic()
        for start in range(0, len(rows), CHUNK):
            vectors.append(classifier.pooled([column[row] for row in rows[start : start + CHUNK].tolist()]))
            if monotonic() - begin > SHARE * seconds:
                break
    embedding_time = monotonic() - begin
    embedded = torch.cat(vectors)
    rows = rows[: len(embedded)]
    targets, is_few = targets_of(context, context.training)[rows], recipe.finetuning.contrastive and problem == SINGLE
    groups = context.corpus.training.groups
    groups = None if groups is None else groups[rows]
    folds = stratified_folds(targets, recipe.seed, FOLDS if is_few else N_FOLDS, groups)
    features = F.normalize(embedded, dim=-1) if is_few else embedded
    validated = cross_validate([features] * N_FOLDS, targets, n_labels, folds, problem, is_few=is_few)
    shown = f", {_accuracy(validated.logits, targets)} in cross-validation" if problem == SINGLE else ""
    notify(observers, "message", f"head: fitted on the frozen embeddings of {count(len(rows), 'text')}{shown}")
    if is_few:
        notify(observers, "message", _linear_accuracy(context, rows, targets, folds, monotonic() + SHARE * seconds))
        # the tuned encoder embeds all texts for cross-validation, and again for the head
        left = seconds - (monotonic() - begin) - (FOLDS + 1) * embedding_time
        limit = min(TUNING_SHARE * seconds, left)
        validated = _tune(context, rows, targets, folds, validated, limit, observers) or validated
        embedded = classifier.pooled([column[row] for row in rows.tolist()])
    scale = embedded.norm(dim=-1).mean()
    features = F.normalize(embedded, dim=-1) if is_few else embedded / scale
    weights, bias, *_ = _fit(features, targets, n_labels, validated.strength, problem)
    if is_few:
        weights, bias = without_bias(weights * validated.scale, bias * validated.scale, features)
    output.weight.copy_(weights.T / scale)
    output.bias.copy_(bias)
    context.has_new_head, context.skips_training = False, is_few


def cross_validate(
    vectors: Sequence[Vectors],
    targets: Targets,
    n_labels: int,
    folds: NDArray[np.int64],
    problem: ProblemType = SINGLE,
    *,
    is_few: bool = False,
) -> Validated:
    """Choose the regularization strength with the lowest loss on texts that were left out of the fit.

    `vectors[fold]` are the embeddings of all texts by an encoder that was not tuned on this fold. With few texts, a
    scale of the logits is chosen, too. The final fit uses the square root of this scale: with more texts, its logits
    are already larger.
    """
    results: list[tuple[float, Validated]] = []
    strengths = STRENGTHS_OF_SCORES if problem == "regression" else (*WEAK, *STRENGTHS)
    for strength in FEW_STRENGTHS if is_few else strengths:
        logits = torch.zeros(len(targets), n_labels)
        for fold in range(int(folds.max()) + 1):
            others, own = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            features = vectors[fold] / vectors[fold].norm(dim=-1).mean()
            weights, bias, *_ = _fit(features[others], targets[others], n_labels, strength, problem)
            logits[own] = features[own] @ weights + bias
        scales = SCALES if is_few else SCALES[:1]
        loss, scale = min((loss_and_errors(each * logits, targets, problem)[0], each) for each in scales)
        results.append((loss, Validated(strength, logits, sqrt(scale))))
        if results[-1][0] > min(loss for loss, _ in results):
            break
    return min(results, key=lambda result: result[0])[1]


def without_bias(
    weights: Float[Tensor, "width n_labels"], bias: Float[Tensor, " n_labels"], features: Vectors
) -> tuple[Float[Tensor, "width n_labels"], Float[Tensor, " n_labels"]]:
    """Fold the bias into the weights, along the mean feature vector. Return these weights and a bias of 0.

    Then the predicted label of a vector depends only on its direction, as the loss of contrastive fine-tuning does.
    """
    mean = features.mean(0)
    return weights + torch.outer(mean, bias) / mean.square().sum().clamp(min=1e-6), torch.zeros_like(bias)


def _fit(features: Vectors, targets: Targets, n_labels: int, strength: float, problem: ProblemType) -> Coefficients:
    rows, (_, width) = SparseRows.of_dense(features), features.shape
    return fit_coefficients(rows, targets, n_labels, width, strength, problem=problem)


def _accuracy(logits: Float[Tensor, "texts n_labels"], targets: Targets) -> str:
    return f"{100 * float((logits.argmax(-1) == targets).float().mean()):.1f} % correct"


def _linear_accuracy(
    context: RunContext, rows: NDArray[np.int64], targets: Targets, folds: NDArray[np.int64], until: float
) -> str:
    """Return a message with the accuracy of the linear classifier on n-grams in the same cross-validation."""
    n_labels, seed, chosen = len(context.card.labels), context.recipe.seed, set(rows.tolist())
    every = (each.text for each in context.corpus.training if isinstance(each, Labelled))
    found = {row: text for row, text in enumerate(every) if row in chosen}
    texts, logits = np.array([found[row] for row in rows.tolist()], dtype=object), torch.zeros(len(rows), n_labels)
    notes: tuple[str, ...] = ()
    for fold in range(FOLDS):
        others, own, end = folds != fold, folds == fold, share_of_time(until, 1 / (FOLDS - fold))
        linear = LinearClassifier.fit(texts[others].tolist(), targets[others], n_labels, seed, end)
        logits[own], notes = linear.outputs(texts[own].tolist()).float(), notes or linear.notes
    note = f" ({notes[0]})" if notes else ""
    return f"{LINEAR_BASELINE}: {_accuracy(logits, targets)} in the same cross-validation{note}"


def _tune(
    context: RunContext,
    rows: NDArray[np.int64],
    targets: Targets,
    folds: NDArray[np.int64],
    frozen: Validated,
    seconds: float,
    observers: Sequence[Observer],
) -> Validated | None:
    """Tune the encoder for at most `seconds`. Return its cross-validation result; None if frozen embeddings are better.

    With few texts, small differences may be due to chance. Frozen embeddings therefore count as better only if their
    lead in correctly classified texts exceeds one standard error.
    """
    assert context.training is not None
    texts, vectors, n_labels = batches(context, context.training), list[Tensor](), len(context.card.labels)
    n_steps = _affordable_steps(classifier_model(context), texts, rows, seconds)
    if n_steps < FEWEST_STEPS:
        notify(observers, "message", "no time for contrastive fine-tuning: increase --minutes")
        return None
    tokens, seed = [context.training.column("text")[row] for row in rows.tolist()], context.recipe.seed
    for fold in range(FOLDS):
        trial = deepcopy(classifier_model(context))
        contrast(trial, texts, rows[folds != fold], n_steps, seed)
        pooled = Classifier(trial, context.tokenizer, context.card.labels).pooled(tokens)
        vectors.append(F.normalize(pooled, dim=-1))
    validated = cross_validate(vectors, targets, n_labels, folds, is_few=True)
    right, before = (each.logits.argmax(-1) == targets for each in (validated, frozen))
    better, worse = int((right & ~before).sum()), int((before & ~right).sum())
    is_taken = worse - better <= sqrt(worse + better)
    result = "used" if is_taken else "not used, because the frozen embeddings are better"
    accuracy = f"{_accuracy(validated.logits, targets)} in cross-validation"
    message = f"contrastive fine-tuning ({n_steps} steps): {accuracy}, {result}"
    notify(observers, "message", message)
    if not is_taken:
        return None
    contrast(classifier_model(context), texts, rows, n_steps, seed)
    return validated


def _affordable_steps(model: EncoderOnly, texts: LabelledBatches, rows: NDArray[np.int64], seconds: float) -> int:
    """Return the number of steps (at most STEPS) such that all folds and the final training take `seconds` in total."""
    trial = deepcopy(model)
    for _ in range(2):  # time the second step, because the first is slow
        begin = monotonic()
        contrast(trial, texts, rows, 1)
        step = monotonic() - begin
    n_read, n_read_in_folds = min(BATCH, len(rows)), FOLDS * min(BATCH, len(rows) // FOLDS)
    return int(min(STEPS, seconds / (step * (1 + n_read_in_folds / n_read))))


def contrast(model: EncoderOnly, texts: LabelledBatches, rows: NDArray[np.int64], n_steps: int, seed: int = 0) -> None:
    """Train the encoder to give similar vectors to texts with the same label, and dissimilar ones to all others.

    The loss is the mean squared error of the cosine similarities of all pairs in a batch, where 1 and 0 are the
    targets. The pairs with the same label have the same total weight as all other pairs.
    """
    random, device = np.random.default_rng(seed), next(model.parameters()).device
    weights = [p for name, p in model.named_parameters() if p.requires_grad and not name.startswith("output.")]
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=WEIGHT_DECAY)
    warmup = max(1, n_steps // 10)
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup) * (1 - step / n_steps))
    model.train()
    for _ in range(n_steps):
        batch = texts.examples(random.permutation(rows)[:BATCH]).to(device)
        with torch.enable_grad():
            vectors = F.normalize(model.pool(model.hidden(batch.tokens, batch.is_token), batch.is_token), dim=-1)
            same = (batch.targets[:, None] == batch.targets).float()
            errors, others = (vectors @ vectors.T - same).square(), 1 - same
            loss = (errors * same).sum() / same.sum() + (errors * others).sum() / others.sum().clamp(min=1)
            loss.backward()
        clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.eval()
