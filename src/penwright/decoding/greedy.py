"""Greedy search: what beam search finds with one beam, written token by token as generate() does."""

from collections.abc import Sequence

from penwright.decoding.choosing.largest import Choosing
from penwright.decoding.choosing.sampling import Sampling
from penwright.decoding.choosing.spelled import SpelledRows
from penwright.decoding.decodable import Decodable
from penwright.decoding.generate import generate
from penwright.decoding.hypotheses import BeamSettings, Hypothesis, Wanted


def greedy_search(
    model: Decodable,
    limits: Sequence[int],
    settings: BeamSettings,
    *,
    end_id: int,
    choosing: Choosing,
    wanted: Wanted | None = None,
) -> list[list[Hypothesis]]:
    """The one hypothesis of each row of the model, of the likeliest tokens; `limits` are their longest lengths.

    A sentence that is not `wanted` any more ends at the next step, with what there is of it.
    """
    tokens: list[list[int]] = [[] for _ in limits]
    log_probs: list[list[float]] = [[] for _ in limits]
    ended = [False] * len(limits)

    def is_over(row: int, _: int) -> bool:
        return len(tokens[row]) + 1 >= limits[row] or not (wanted is None or wanted(row))

    steps = generate(
        model,
        Sampling(settings.banned),
        None,
        end_id=end_id,
        max_new_tokens=max(limits),
        should_stop=is_over,
        constraint=SpelledRows(choosing.spelling, limits, choosing.choose),
    )
    for step in steps:
        for row, token, log_prob in zip(step.rows, step.tokens, step.log_probs, strict=True):
            tokens[row].append(token)
            log_probs[row].append(log_prob)
            ended[row] = token == end_id
    each = zip(tokens, log_probs, ended, strict=True)
    return [[_hypothesis(*written, settings.length_penalty)] for written in each]


def _hypothesis(tokens: list[int], log_probs: list[float], ended: bool, length_penalty: float) -> Hypothesis:
    log_prob, length = sum(log_probs), len(tokens)
    score = log_prob / length**length_penalty
    return Hypothesis(tuple(tokens[: length - ended]), log_prob, score, "end" if ended else "length", tuple(log_probs))
