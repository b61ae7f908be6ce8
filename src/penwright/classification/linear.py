"""A linear n-gram classifier, and its mixture with the neural classifier.

It is a baseline for the neural classifier, and an optional part of it. The mixture is a weighted product of their
probabilities, with weights fitted on held-out texts.
"""

from collections.abc import Sequence
from math import inf
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from penwright.classification.fitting import (
    FEW_TEXTS,
    FEWEST_ITERATIONS,
    N_FOLDS,
    SINGLE,
    STRENGTHS,
    Coefficients,
    SparseRows,
    Targets,
    choose_strength,
    fit_coefficients,
    share_of_time,
    stratified_folds,
)
from penwright.classification.ngrams import NgramVectorizer
from penwright.config import ProblemType
from penwright.errors import PenwrightError
from penwright.storage import let_others_read, require_plain

MOST_WEIGHTS = 1 << 22  # maximum number of weights (n-grams x labels)
SMALL_CORPUS = 5000  # n-grams that occur in only one text are kept if there are at most this many training texts
PILOT_CHARACTERS = 100_000  # size of the sample from which the duration of a fit is estimated, in characters
ENOUGH_EVALUATIONS = 60  # minimum number of loss evaluations per fit; fewer texts are used if there is less time
SEARCH_SHARE = 0.6  # after vectorizing, tuning the regularization may take this share of the remaining time
# The names of the tensors in a file. The prefix marks the classifier that was fitted on all texts.
NAMES, WHOLE = ("keys", "idf", "weights", "bias"), "whole_"
# Initial weights of the encoder and of the linear classifier. A pretrained encoder is expected to be the better one.
LINEAR_ALONE, ENCODER_ALONE = (0.0, 1.0), (1.0, 0.0)
PRIOR = 20.0  # strength of the L2 penalty that keeps weights near their initial values; matters if there are few texts
MOST_WEIGHT = 5.0
ITERATIONS, HALVINGS = 20, 20
Outputs = Float[Tensor, "texts n_labels"]
Weights = tuple[float, float]


class LinearClassifier(NamedTuple):
    """A linear model on TF-IDF features of n-grams.

    It is a multinomial logistic regression; for multi-label texts, one binary logistic regression per label; for
    scores, a ridge regression.
    """

    vectorizer: NgramVectorizer
    coefficients: Coefficients
    strength: float | None = None  # inverse regularization strength; None if the classifier was loaded
    notes: tuple[str, ...] = ()  # notes about what was left out to save time
    problem: ProblemType = SINGLE

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        labels: Targets,
        n_labels: int,
        seed: int = 0,
        until: float = inf,
        problem: ProblemType = SINGLE,
    ) -> "LinearClassifier":
        """Fit the classifier. The regularization strength is tuned by cross-validation.

        If necessary, use fewer texts or iterations to finish by the time `until` (on the clock of `monotonic`).
        """
        notes = list[str]()
        n = _affordable(texts, labels, n_labels, until, problem, seed)
        if n < len(texts):
            notes.append(f"fitted on {n:,} of {len(texts):,} texts to save time")
            chosen = np.sort(np.random.default_rng(seed).permutation(len(texts))[:n])
            texts, labels = [texts[place] for place in chosen.tolist()], labels[chosen]
        vectorizer, rows = _vectorize(texts, n_labels)
        n_ngrams, folds = len(vectorizer.keys), stratified_folds(labels, seed)
        end_of_search = share_of_time(until, SEARCH_SHARE)
        strength, start, _ = choose_strength(rows, labels, n_labels, n_ngrams, folds, end_of_search, problem)
        found = fit_coefficients(rows, labels, n_labels, n_ngrams, strength, start, until, problem)
        if not found.is_complete:
            notes.append("stopped early, before convergence, to save time")
        return cls(vectorizer, found, strength, tuple(notes), problem)

    def refit(self, texts: Sequence[str], labels: Targets, until: float = inf) -> "LinearClassifier | None":
        """Fit a new classifier on these texts, with the same regularization. Start from this classifier's weights.

        Return None if there is not enough time before `until`.
        """
        assert self.strength is not None
        n_labels = len(self.coefficients.bias)
        if _affordable(texts, labels, n_labels, until, self.problem) < len(texts):
            return None
        vectorizer, rows = _vectorize(texts, n_labels)
        places = np.searchsorted(vectorizer.keys, self.vectorizer.keys)
        kept = np.append(vectorizer.keys, -1)[places] == self.vectorizer.keys
        weights = torch.zeros(len(vectorizer.keys), n_labels)
        weights[places[kept]] = self.coefficients.weights[torch.from_numpy(kept)]
        start = Coefficients(weights, self.coefficients.bias)
        n_ngrams = len(vectorizer.keys)
        found = fit_coefficients(rows, labels, n_labels, n_ngrams, self.strength, start, until, self.problem)
        return LinearClassifier(vectorizer, found, self.strength, problem=self.problem)

    def outputs(self, texts: Sequence[str]) -> Float[Tensor, "texts n_labels"]:
        """Return the log-probability of each label, in double precision.

        A multi-label classifier returns the logits of the labels. A regression returns the standardized score.
        """
        if not texts:
            return torch.zeros(0, len(self.coefficients.bias), dtype=torch.double)
        logits = self.coefficients.logits(self.vectorizer.rows(texts)).double()
        return logits.log_softmax(-1) if self.problem == SINGLE else logits

    def save(self, path: Path, whole: "LinearClassifier | None" = None) -> None:
        """Save the classifier, and `whole`, which was also fitted on the held-out texts, in one safetensors file.

        Raises PenwrightError if the file cannot be written.
        """
        tensors = self._tensors("") | (whole._tensors(WHOLE) if whole else {})
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            temporary.unlink(missing_ok=True)
            save_file(tensors, temporary)
            let_others_read(temporary)
            temporary.replace(path)
        except (OSError, SafetensorError) as error:
            raise PenwrightError(f"{path} could not be written: {error}") from None

    def _tensors(self, prefix: str) -> dict[str, Tensor]:
        (keys, idf), (weights, bias, _) = self.vectorizer, self.coefficients
        parts = zip(NAMES, (torch.from_numpy(keys), torch.from_numpy(idf), weights, bias), strict=True)
        return {f"{prefix}{name}": tensor for name, tensor in parts}

    @classmethod
    def load(
        cls, path: Path, n_labels: int, *, whole: bool = False, problem: ProblemType = SINGLE
    ) -> "LinearClassifier":
        """Load a classifier. With `whole`, load the one that was also fitted on held-out texts, if the file has one.

        Raises PenwrightError unless the file holds a classifier with this number of labels.
        """
        require_plain(path)
        try:
            tensors = load_file(path)
            prefix = WHOLE if whole and f"{WHOLE}keys" in tensors else ""
            keys, idf, weights, bias = (tensors[f"{prefix}{name}"] for name in NAMES)
        except (OSError, SafetensorError, KeyError) as error:
            raise PenwrightError(f"{path} cannot be read: {error}. Restore the original file") from None
        n = len(keys)
        shapes = [tuple(each.shape) for each in (keys, idf, weights, bias)]
        dtypes = [each.dtype for each in (keys, idf, weights, bias)]
        if shapes != [(n,), (n,), (n, n_labels), (n_labels,)] or dtypes != [torch.int64, *3 * [torch.float32]]:
            raise PenwrightError(f"{path} is not a linear classifier with {n_labels} labels. Restore the original file")
        return cls(NgramVectorizer(keys.numpy(), idf.numpy()), Coefficients(weights, bias), problem=problem)


def out_of_fold(texts: Sequence[str], labels: Targets, n_labels: int, seed: int = 0) -> Float[Tensor, "texts n_labels"]:
    """Return the log-probabilities of each text from a linear classifier that was fitted without the text's fold."""
    vectorizer, rows = _vectorize(texts, n_labels)
    folds, n_ngrams = stratified_folds(labels, seed), len(vectorizer.keys)
    strength, _, logits = choose_strength(rows, labels, n_labels, n_ngrams, folds)
    # With few texts, choose_strength() has already computed the logits of all folds.
    for fold in range(1, N_FOLDS) if len(texts) > FEW_TEXTS else ():
        others, own = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        logits[own] = fit_coefficients(rows.take(others), labels[others], n_labels, n_ngrams, strength).logits(
            rows.take(own)
        )
    return logits.log_softmax(-1)


def _vectorize(texts: Sequence[str], n_labels: int) -> tuple[NgramVectorizer, SparseRows]:
    """Fit a TF-IDF vectorizer on these texts. Return it with their feature rows."""
    fewest = 1 if len(texts) <= SMALL_CORPUS else 2
    vectorizer = NgramVectorizer.fit(texts, fewest, max(1, MOST_WEIGHTS // n_labels))
    return vectorizer, vectorizer.rows(texts)


def _affordable(
    texts: Sequence[str], labels: Targets, n_labels: int, until: float, problem: ProblemType, seed: int = 0
) -> int:
    """Return how many of these texts a fit can process before `until`, estimated from a small random sample."""
    if until == inf:
        return len(texts)
    begin, order = monotonic(), np.random.default_rng(seed).permutation(len(texts))
    sizes = np.cumsum([len(texts[place]) for place in order.tolist()])
    sample = order[: 1 + int(np.searchsorted(sizes, PILOT_CHARACTERS))]
    vectorizer, rows = _vectorize([texts[place] for place in sample.tolist()], n_labels)
    vectorized = monotonic()
    fit_coefficients(rows, labels[sample], n_labels, len(vectorizer.keys), STRENGTHS[0], None, begin, problem)
    evaluated = monotonic()  # the deadline had passed, so the fit made only FEWEST_ITERATIONS evaluations
    seconds = (vectorized - begin) + ENOUGH_EVALUATIONS / FEWEST_ITERATIONS * (evaluated - vectorized)
    share = (until - evaluated) / seconds * float(sizes[len(sample) - 1] / sizes[-1])
    return min(len(texts), max(len(sample), int(share * len(texts))))


def mixed(
    encoder: Outputs, linear: Outputs, weights: Float[Tensor, "2"], problem: ProblemType = "single_label_classification"
) -> Outputs:
    """Return the outputs of the mixture in double precision: log-probabilities, multi-label logits, or scores."""
    first, second = weights.double().cpu()
    outputs = first * encoder.double() + second * linear.double()
    return outputs.log_softmax(-1) if problem == "single_label_classification" else outputs


def fit_mixture(
    encoder: Outputs, linear: Outputs, labels: Int64[Tensor, " texts"], initial: Weights = LINEAR_ALONE
) -> Float[Tensor, "2"]:
    """Return the mixture weights with the lowest loss on these texts, found by Newton's method.

    The sum of the weights calibrates the probabilities, like a temperature (Guo et al. 2017).
    """
    both = torch.stack([encoder.double(), linear.double()])
    start = torch.tensor(initial, dtype=torch.double)

    def loss(weights: Float[Tensor, "2"]) -> float:
        log_probs = mixed(encoder, linear, weights)
        return float(F.nll_loss(log_probs, labels, reduction="sum") + PRIOR / 2 * (weights - start).square().sum())

    weights, present = start, loss(start)
    for _ in range(ITERATIONS):
        probs = mixed(encoder, linear, weights).exp()
        means = (both * probs).sum(-1)
        truth = both.gather(-1, labels.expand(2, -1)[..., None])[..., 0]
        gradient = (means - truth).sum(-1) + PRIOR * (weights - start)
        centred = both - means[..., None]
        hessian = torch.einsum("anl,bnl,nl->ab", centred, centred, probs) + PRIOR * torch.eye(2, dtype=torch.double)
        step = torch.linalg.solve(hessian, gradient)
        for _ in range(HALVINGS):
            moved = (weights - step).clamp(0, MOST_WEIGHT)
            if (value := loss(moved)) <= present:
                break
            step = step / 2
        else:
            break
        is_done = present - value < 1e-6
        weights, present = moved, value
        if is_done:
            break
    return weights.float()


def fit_mixture_of_sets(
    encoder: Outputs, linear: Outputs, targets: Float[Tensor, "texts n_labels"], initial: Weights = LINEAR_ALONE
) -> Float[Tensor, "2"]:
    """Return the mixture weights for multi-label logits. Each label of each text is a separate binary example."""
    first, second = (
        torch.stack([-F.softplus(logits), -F.softplus(-logits)], -1).flatten(0, 1) for logits in (encoder, linear)
    )
    return fit_mixture(first, second, targets.long().flatten(), initial)


def fit_mixture_of_scores(
    encoder: Outputs, linear: Outputs, targets: Float[Tensor, "texts n_labels"], initial: Weights = LINEAR_ALONE
) -> Float[Tensor, "2"]:
    """Return the mixture weights for standardized scores, by ridge regression toward the initial weights."""
    both = torch.stack([encoder.double().flatten(), linear.double().flatten()])
    start = torch.tensor(initial, dtype=torch.double)
    penalty = PRIOR * torch.eye(2, dtype=torch.double)
    weights = torch.linalg.solve(both @ both.T + penalty, both @ targets.double().flatten() + penalty @ start)
    return weights.clamp(0, MOST_WEIGHT).float()
