"""Greedy search: beam search with a single beam, run through `generate()`."""

from collections.abc import Sequence
from itertools import accumulate

from penwright.decoding.batches import Decodable
from penwright.decoding.generation_loop import generate
from penwright.decoding.hypotheses import BeamSettings, Hypothesis, Wanted, hypothesis_of
from penwright.decoding.sampling.sampler import Sampling
from penwright.decoding.sampling.topk import TokenSelector
from penwright.decoding.sampling.utf8_rows import Utf8Rows


def greedy_search(
    model: Decodable,
    limits: Sequence[int],
    settings: BeamSettings,
    *,
    end_id: int,
    choosing: TokenSelector,
    wanted: Wanted | None = None,
) -> list[list[Hypothesis]]:
    """Return one hypothesis for each row of the model, taking the likeliest token at each step.

    `limits` are the maximum lengths, end token included. A sentence for which `wanted` returns False ends at the next
    step with the tokens that it has.
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
        constraint=Utf8Rows(choosing.spelling, limits, choosing.choose),
    )
    for step in steps:
        for row, token, log_prob in zip(step.rows, step.tokens, step.log_probs, strict=True):
            tokens[row].append(token)
            log_probs[row].append(log_prob)
            ended[row] = token == end_id
    sums = [list(accumulate(row_log_probs)) for row_log_probs in log_probs]
    penalty = settings.length_penalty
    return [
        [hypothesis_of(row_tokens, row_sums, len(row_tokens), row_sums[-1], has_ended, penalty)]
        for row_tokens, row_sums, has_ended in zip(tokens, sums, ended, strict=True)
    ]
