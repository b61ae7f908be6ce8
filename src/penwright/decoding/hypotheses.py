"""What beam search is asked for, what it finds, and what it tells on the way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class BeamSettings:
    """Hypotheses are ranked by log-probability / length ** length_penalty; the end token counts as one."""

    beam_size: int = 5
    n_best: int = 1  # how many hypotheses are wanted of each sentence, at most beam_size
    length_penalty: float = 1.0
    banned: tuple[int, ...] = ()  # tokens that are never written
    coverage_penalty: float = 0.0  # of whole hypotheses, ranked anew: score + coverage_penalty * coverage (looking.py)
    outlook: float = 0.25  # the share that a beam may become longer while it is waited for, or 4 tokens; inf: any


@dataclass(frozen=True)
class Hypothesis:
    """One translation that the search has found."""

    tokens: tuple[int, ...]  # without the end token
    log_prob: float  # in nats, of all tokens and the end token
    score: float
    finish: Literal["end", "length"]
    log_probs: tuple[float, ...] = ()  # of each token, and of the end token


class Extension(NamedTuple):
    """How the beams of a sentence went on: for each its token, and the beam before that it goes on from."""

    length: int  # of the beams now
    parents: Sequence[int]
    tokens: Sequence[int]
    log_probs: Sequence[float]  # in nats, of all tokens so far; -inf where there is no such beam


Watch = Callable[[int, Extension], None]  # is told the number of a sentence and its extension
Wanted = Callable[[int], bool]  # whether the sentence of this number is still waited for


def hypothesis_of(
    tokens: Sequence[int], sums: Sequence[float], length: int, log_prob: float, ended: bool, length_penalty: float
) -> Hypothesis:
    """The first `length` of these tokens; `sums` are the log-probabilities of all up to each."""
    log_probs = tuple(after - before for before, after in pairwise([0.0, *sums[:length]]))
    finish: Literal["end", "length"] = "end" if ended else "length"
    return Hypothesis(tuple(tokens[: length - ended]), log_prob, log_prob / length**length_penalty, finish, log_probs)
