"""Settings, results and callbacks of beam search."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from penwright.config import DecodingSettings

Reals = Float[np.ndarray, "sentences n"]
Whole = Int[np.ndarray, "sentences n"]
DEFAULTS = DecodingSettings()


@dataclass(frozen=True)
class BeamSettings:
    """Settings of beam search.

    Hypotheses are ranked by log-probability / length ** length_penalty. The length includes the end token.
    """

    beam_size: int = DEFAULTS.beam_size
    n_best: int = 1  # number of hypotheses per sentence, at most beam_size
    length_penalty: float = DEFAULTS.length_penalty
    banned: tuple[int, ...] = ()  # tokens that are never generated
    coverage_penalty: float = 0.0  # weight of the coverage penalty in the final ranking (translation/alignment.py)
    beam_patience: float = DEFAULTS.beam_patience  # unfinished beams may grow by this share of their length


@dataclass(frozen=True)
class Hypothesis:
    """A candidate translation from beam search."""

    tokens: tuple[int, ...]  # token ids, without the end token
    log_prob: float  # log-probability in nats, summed over all tokens, end token included
    score: float
    finish: Literal["end", "length"]
    log_probs: tuple[float, ...] = ()  # log-probability of each token in nats, end token included


class Extension(NamedTuple):
    """A search step of a sentence: the new token of each beam, and the earlier beam to which it was appended."""

    length: int  # length of the beams after this step
    parents: Sequence[int]
    tokens: Sequence[int]
    log_probs: Sequence[float]  # cumulative log-probabilities in nats; -inf marks a missing beam


Watch = Callable[[int, Extension], None]  # a callback that receives a sentence's index and its latest step
Wanted = Callable[[int], bool]  # a callback that returns whether the sentence with this index is still needed


def hypothesis_of(
    tokens: Sequence[int], sums: Sequence[float], length: int, log_prob: float, ended: bool, length_penalty: float
) -> Hypothesis:
    """Build the hypothesis of the first `length` tokens; `sums` are the cumulative log-probabilities."""
    log_probs = tuple(after - before for before, after in pairwise([0.0, *sums[:length]]))
    finish: Literal["end", "length"] = "end" if ended else "length"
    return Hypothesis(tuple(tokens[: length - ended]), log_prob, log_prob / length**length_penalty, finish, log_probs)


class SearchStep(NamedTuple):
    """A search step of all unfinished sentences: the tokens by which their beams are extended."""

    numbers: Int[np.ndarray, " sentences"]
    parents: Whole
    tokens: Whole
    sums: Reals  # cumulative log-probabilities


class Ends(NamedTuple):
    """The hypotheses of each sentence, best first: their lengths, final beams and scores.

    A log-probability of -inf marks an empty entry.
    """

    lengths: Whole
    beams: Whole  # index of each hypothesis's beam at its last step
    log_probs: Reals
    scores: Reals  # the values by which hypotheses are ranked

    def best_with(self, others: "Ends") -> "Ends":
        """Merge two sets of hypotheses; keep the best ones of each sentence, as many as there are in `self`."""
        both = self.beside(others)
        best = topk_indices(both.scores, self.scores.shape[1])
        return Ends(*(gather(values, best) for values in both))

    def beside(self, others: "Ends") -> "Ends":
        """Concatenate two sets of hypotheses, sentence by sentence."""
        return Ends(*(np.concatenate(pair, axis=1) for pair in zip(self, others, strict=True)))

    def select(self, sentences: Bool[np.ndarray, " sentences"]) -> "Ends":
        """Return the hypotheses of these sentences only."""
        return Ends(*(values[sentences] for values in self))


def topk_indices(values: Reals, n: int) -> Int[np.ndarray, "sentences best"]:
    """Return the indices of the n largest values of each sentence, largest first."""
    return np.argsort(-values, axis=1, kind="stable")[:, :n]


def gather(values: np.ndarray, indices: Int[np.ndarray, "sentences m"]) -> np.ndarray:
    """Return, for each sentence, the values at these indices."""
    return values[np.arange(len(values))[:, None], indices]


def trace_back(
    history: Sequence[SearchStep], numbers: Int[np.ndarray, " sentences"], ends: Ends
) -> tuple[np.ndarray, np.ndarray]:
    """Trace back the hypotheses of these sentences; return their tokens and cumulative log-probabilities."""
    tokens = np.zeros((*ends.beams.shape, len(history)), np.int64)
    sums, beams = np.zeros(tokens.shape), ends.beams
    for position, step in reversed(list(enumerate(history))):
        rows = np.searchsorted(step.numbers, numbers)[:, None]
        tokens[:, :, position], sums[:, :, position] = step.tokens[rows, beams], step.sums[rows, beams]
        beams = np.where(position < ends.lengths, step.parents[rows, beams], beams)
    return tokens, sums
