"""Settings, results and callbacks of beam search."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class BeamSettings:
    """Settings of beam search.

    Hypotheses are ranked by log-probability / length ** length_penalty. The length counts the end token.
    """

    beam_size: int = 5
    n_best: int = 1  # hypotheses to return for each sentence, at most beam_size
    length_penalty: float = 1.0
    banned: tuple[int, ...] = ()  # tokens that are never generated
    coverage_penalty: float = 0.0  # reranks whole hypotheses: score + this * coverage (cross_attention.py)
    beam_patience: float = 0.25  # wait for beams to grow by this share (at least 4 tokens); inf: no bound


@dataclass(frozen=True)
class Hypothesis:
    """A translation found by the search."""

    tokens: tuple[int, ...]  # without the end token
    log_prob: float  # in nats, summed over all tokens and the end token
    score: float
    finish: Literal["end", "length"]
    log_probs: tuple[float, ...] = ()  # in nats, of each token and of the end token


class Extension(NamedTuple):
    """One search step of a sentence: for each beam, its new token and the previous beam that it extends."""

    length: int  # of the beams after this step
    parents: Sequence[int]
    tokens: Sequence[int]
    log_probs: Sequence[float]  # cumulative, in nats; -inf: no such beam


Watch = Callable[[int, Extension], None]  # called with the index of a sentence and its extension
Wanted = Callable[[int], bool]  # returns whether the sentence with this index is still needed


def hypothesis_of(
    tokens: Sequence[int], sums: Sequence[float], length: int, log_prob: float, ended: bool, length_penalty: float
) -> Hypothesis:
    """Build the hypothesis of the first `length` tokens; `sums` are the cumulative log-probabilities."""
    log_probs = tuple(after - before for before, after in pairwise([0.0, *sums[:length]]))
    finish: Literal["end", "length"] = "end" if ended else "length"
    return Hypothesis(tuple(tokens[: length - ended]), log_prob, log_prob / length**length_penalty, finish, log_probs)
