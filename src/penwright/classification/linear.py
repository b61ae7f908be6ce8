"""A linear n-gram classifier: a baseline for the neural classifier, and an optional part of it."""

from collections.abc import Sequence
from math import inf
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from penwright.classification.fitting import (
    CROSS_VALIDATION,
    FEWEST_CHECKED,
    STRENGTHS,
    HeldOut,
    NgramRows,
    choose_strength,
    choose_strength_on,
    fit_balancing,
    log_shares_of,
    logits_of_fold,
    share_of_time,
    stratified_folds,
)
from penwright.classification.mixture import Weights
from penwright.classification.ngrams import WORD_BIT, NgramVectorizer, chunks
from penwright.classification.solver import (
    SINGLE,
    Coefficients,
    SparseRows,
    Targets,
    fit_coefficients,
)
from penwright.config import ProblemType
from penwright.data.splits import Groups
from penwright.errors import PenwrightError
from penwright.storage import flush, let_others_read, require_plain

MOST_WEIGHTS = 1 << 26  # maximum number of weights (n-grams x labels) in memory
MOST_NONZERO = 1 << 23  # maximum number of weights that are not 0, so that files stay small
MOST_WITH_RARE = 1 << 22  # n-grams that occur in only one text are dropped if there would be more weights than this
FEW_NGRAMS = 10_000  # if memory limits the n-grams to fewer than this, a note says so
SMALL_CORPUS = 5000  # n-grams that occur in only one text are kept if there are at most this many training texts
PILOT_CHARACTERS = 100_000  # size of the sample from which the duration of a fit is estimated, in characters
ENOUGH_EVALUATIONS = 60  # minimum number of loss evaluations per fit; if time is too short, a fit uses fewer texts
SEARCH_SHARE = 0.6  # after vectorizing, tuning the regularization may take this share of the remaining time
# The names of the tensors in a file. The prefix marks the classifier that was fitted on all texts.
NAMES, WHOLE = ("keys", "idf", "weights", "bias"), "whole_"
MASK = "mask"  # a bit for each weight, if only those that are not 0 are stored


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
    balancing: Weights | None = None  # if balanced: the weight of the label log-priors, and the scale of the logits
    is_weighted: bool = True  # whether the n-grams are weighted by the labels, for `refit`

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        labels: Targets,
        n_labels: int,
        seed: int = 0,
        until: float = inf,
        problem: ProblemType = SINGLE,
        *,
        balanced: bool = False,
        held_out: HeldOut = CROSS_VALIDATION,
    ) -> "LinearClassifier":
        """Fit the classifier. The regularization strength is tuned on texts that are held out.

        With `balanced`, probabilities are calibrated by cross-validation as if all labels were equally frequent. The
        logarithms of the label shares of these texts are then added to the bias.

        If necessary, use fewer texts or iterations to finish by the time `until` (a value of `time.monotonic`).
        """
        (groups, validation), notes = held_out, list[str]()
        log_shares = log_shares_of(labels, n_labels) if balanced else torch.zeros(n_labels)
        n = _affordable(texts, labels, n_labels, until, problem, seed)
        if n < len(texts):
            notes.append(f"fitted on {n:,} of {len(texts):,} texts to save time")
            kept = np.sort(_shuffled(labels, seed, balanced=balanced)[:n])
            texts, labels = [texts[place] for place in kept.tolist()], labels[kept]
            groups = None if groups is None else groups[kept]
        vectorizer, ngrams = _vectorize(texts, n_labels, is_weighted=not balanced)  # rare labels would be overfitted
        n_ngrams, folds = ngrams.n_ngrams, stratified_folds(labels, seed, groups=groups)
        if (most := MOST_WEIGHTS // n_labels) < FEW_NGRAMS:
            notes.append(f"uses {n_ngrams:,} n-grams (with {n_labels:,} labels, at most {most:,})")
        end_of_search = share_of_time(until, SEARCH_SHARE)
        if balanced or validation is None or len(validation[1]) < FEWEST_CHECKED:
            chosen = choose_strength(ngrams, labels, n_labels, folds, end_of_search, problem)
        else:
            check = SparseRows.of_numpy(*vectorizer.rows(validation[0])), validation[1]
            chosen = choose_strength_on(check, ngrams, labels, n_labels, end_of_search, problem)
        begin = monotonic()
        vectorizer, rows = _weighted(vectorizer, chosen.ngrams, labels, n_labels)
        coefficients = fit_coefficients(rows, labels, n_labels, n_ngrams, chosen.strength, chosen.start, until, problem)
        if not coefficients.is_complete:
            notes.append("stopped early, before convergence, to save time")
        coefficients = coefficients.pruned(MOST_NONZERO)
        balancing = None
        if balanced:
            last = until - (monotonic() - begin)  # latest time at which to start fitting another fold
            balancing = fit_balancing(labels, n_labels, folds, chosen, last)
            coefficients = _balanced(coefficients, balancing, log_shares_of(labels, n_labels), log_shares)
        is_weighted = chosen.ngrams.is_weighted
        return cls(vectorizer, coefficients, chosen.strength, tuple(notes), problem, balancing, is_weighted)

    def refit(self, texts: Sequence[str], labels: Targets, until: float = inf) -> "LinearClassifier | None":
        """Fit a new classifier on these texts, with the same regularization.

        Return None if there is not enough time before `until`.
        """
        assert self.strength is not None
        n_labels = len(self.coefficients.bias)
        if _affordable(texts, labels, n_labels, until, self.problem) < len(texts):
            return None
        vectorizer, rows = _weighted(*_vectorize(texts, n_labels, is_weighted=self.is_weighted), labels, n_labels)
        n, strength, problem = len(vectorizer.keys), self.strength, self.problem
        coefficients = fit_coefficients(rows, labels, n_labels, n, strength, None, until, problem).pruned(MOST_NONZERO)
        if self.balancing is not None:
            log_shares = log_shares_of(labels, n_labels)
            coefficients = _balanced(coefficients, self.balancing, log_shares, log_shares)
        return self._replace(vectorizer=vectorizer, coefficients=coefficients, notes=())

    def outputs(self, texts: Sequence[str]) -> Float[Tensor, "texts n_labels"]:
        """Return the outputs for each text, in double precision.

        These are log-probabilities of the labels, logits for a multi-label classifier, or a standardized score for a
        regression model.
        """
        if not texts:
            return torch.zeros(0, len(self.coefficients.bias), dtype=torch.double)
        parts = (SparseRows.of_numpy(*self.vectorizer.rows(part)) for part in chunks(texts))  # n-grams need much memory
        logits = torch.cat([self.coefficients.logits(rows) for rows in parts]).double()
        return logits.log_softmax(-1) if self.problem == SINGLE else logits

    def save(self, path: Path, whole: "LinearClassifier | None" = None) -> None:
        """Save this classifier and `whole`, which was fitted on all texts, in one safetensors file.

        Raises PenwrightError if the file cannot be written.
        """
        tensors = self._tensors("") | (whole._tensors(WHOLE) if whole else {})
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            temporary.unlink(missing_ok=True)
            save_file(tensors, temporary, {"notes": "; ".join(self.notes)})
            let_others_read(temporary)
            flush(temporary)
            temporary.replace(path)
            flush(path.parent)
        except (OSError, SafetensorError) as error:
            raise PenwrightError(f"{path} could not be written: {error}") from None

    def _tensors(self, prefix: str) -> dict[str, Tensor]:
        (keys, idf), (weights, bias, *_) = self.vectorizer, self.coefficients
        parts = zip(NAMES, (torch.from_numpy(keys), torch.from_numpy(idf), weights, bias), strict=True)
        tensors = {f"{prefix}{name}": tensor for name, tensor in parts}
        if weights.numel() > MOST_NONZERO:
            is_stored = weights != 0
            tensors[f"{prefix}weights"] = weights[is_stored]
            tensors[f"{prefix}{MASK}"] = torch.from_numpy(np.packbits(is_stored.numpy()))
        return tensors

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
            with safe_open(path, framework="pt") as file:
                notes = (file.metadata() or {}).get("notes")  # older files have none
            prefix = WHOLE if whole and f"{WHOLE}keys" in tensors else ""
            keys, idf, weights, bias = (tensors[f"{prefix}{name}"] for name in NAMES)
            if (mask := tensors.get(f"{prefix}{MASK}")) is not None:
                weights = _dense(weights, mask, len(keys), n_labels)
        except (OSError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise PenwrightError(f"{path} cannot be read: {error}. Restore the original file") from None
        n = len(keys)
        shapes = [tuple(each.shape) for each in (keys, idf, weights, bias)]
        dtypes = [each.dtype for each in (keys, idf, weights, bias)]
        if shapes != [(n,), (n,), (n, n_labels), (n_labels,)] or dtypes != [torch.int64, *3 * [torch.float32]]:
            raise PenwrightError(f"{path} is not a linear classifier with {n_labels} labels. Restore the original file")
        kept = (notes,) if notes and not prefix else ()  # there is a classifier of all texts only if time suffices
        return cls(NgramVectorizer(keys.numpy(), idf.numpy()), Coefficients(weights, bias), notes=kept, problem=problem)


def _dense(values: Tensor, mask: Tensor, n_ngrams: int, n_labels: int) -> Float[Tensor, "ngrams n_labels"]:
    """Return all weights, given the nonzero ones and a mask of their positions. Raise ValueError for a wrong mask."""
    if mask.numel() != -(-n_ngrams * n_labels // 8):  # checked before memory is allocated
        raise ValueError("the mask has the wrong size")
    places = np.flatnonzero(np.unpackbits(mask.numpy(), count=n_ngrams * n_labels))
    weights = torch.zeros(n_ngrams * n_labels).index_copy(0, torch.from_numpy(places), values)
    return weights.view(n_ngrams, n_labels)


def out_of_fold(
    texts: Sequence[str], labels: Targets, n_labels: int, seed: int = 0, groups: Groups = None
) -> Float[Tensor, "texts n_labels"]:
    """Return the label log-probabilities of each text, from a linear classifier fitted without the text's fold."""
    (_, ngrams), folds = _vectorize(texts, n_labels), stratified_folds(labels, seed, groups=groups)
    chosen = choose_strength(ngrams, labels, n_labels, folds)
    logits = chosen.logits
    for fold in np.setdiff1d(folds, chosen.checked).tolist():
        logits[folds == fold] = logits_of_fold(chosen, labels, n_labels, folds, fold)
    return logits.log_softmax(-1)


def _shuffled(labels: Targets, seed: int, *, balanced: bool) -> NDArray[np.int64]:
    """Return the indices of all texts in random order. With `balanced`, begin with equally many texts of each label."""
    order = np.random.default_rng(seed).permutation(len(labels))
    if not balanced:
        return order
    by_label = np.argsort(labels.numpy()[order], kind="stable")
    _, first, sizes = np.unique(labels.numpy()[order][by_label], return_index=True, return_counts=True)
    ranks = np.empty(len(order), np.int64)
    ranks[by_label] = np.arange(len(order)) - np.repeat(first, sizes)
    return order[np.argsort(ranks, kind="stable")]


def _balanced(
    coefficients: Coefficients,
    balancing: Weights,
    log_shares: Float[Tensor, " n_labels"],
    new_log_shares: Float[Tensor, " n_labels"],
) -> Coefficients:
    """Scale the coefficients, remove the influence of `log_shares` from the bias, and add `new_log_shares` to it."""
    shares, scale = balancing
    return Coefficients(scale * coefficients.weights, scale * coefficients.bias - shares * log_shares + new_log_shares)


def _vectorize(texts: Sequence[str], n_labels: int, *, is_weighted: bool = True) -> tuple[NgramVectorizer, NgramRows]:
    """Fit a TF-IDF vectorizer on these texts. Return it with their feature rows."""
    most_with_rare = MOST_WITH_RARE // n_labels if len(texts) <= SMALL_CORPUS else 0
    vectorizer = NgramVectorizer.fit(texts, max(1, MOST_WEIGHTS // n_labels), most_with_rare)
    rows = SparseRows.of_numpy(*vectorizer.rows(texts))
    return vectorizer, NgramRows(rows, torch.from_numpy(vectorizer.keys >= WORD_BIT), is_weighted)


def _weighted(
    vectorizer: NgramVectorizer, ngrams: NgramRows, labels: Targets, n_labels: int
) -> tuple[NgramVectorizer, SparseRows]:
    """Multiply the features of the vectorizer, and the rows, by the label weights of the n-grams."""
    weights = ngrams.label_weights(labels, n_labels)
    return vectorizer._replace(idf=vectorizer.idf * weights.numpy()), ngrams.weighted(weights)


def _affordable(
    texts: Sequence[str], labels: Targets, n_labels: int, until: float, problem: ProblemType, seed: int = 0
) -> int:
    """Return how many of these texts a fit can process before `until`, estimated from a small random sample."""
    if until == inf:
        return len(texts)
    begin, order = monotonic(), np.random.default_rng(seed).permutation(len(texts))
    sizes = np.cumsum([len(texts[place]) for place in order.tolist()])
    sample = order[: 1 + int(np.searchsorted(sizes, PILOT_CHARACTERS))]
    both = _vectorize([texts[place] for place in sample.tolist()], n_labels)
    vectorizer, rows = _weighted(*both, labels[sample], n_labels)
    vectorized = monotonic()
    pilot = fit_coefficients(rows, labels[sample], n_labels, len(vectorizer.keys), STRENGTHS[0], None, begin, problem)
    evaluated = monotonic()  # the deadline had passed, so the fit made at most FEWEST_ITERATIONS evaluations
    seconds = (vectorized - begin) + ENOUGH_EVALUATIONS / max(1, pilot.n_iterations) * (evaluated - vectorized)
    share = (until - evaluated) / seconds * float(sizes[len(sample) - 1] / sizes[-1])
    return min(len(texts), max(len(sample), int(share * len(texts))))
