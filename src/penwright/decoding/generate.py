"""Writing token by token: an iterator that the command line, the server and evaluation all consume."""

from collections.abc import Callable, Iterator, Sequence
from math import isnan
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from penwright.decoding.decodable import Decodable, diverged
from penwright.decoding.sampling import Chances, Sampling, Seen

Finish = Literal["end", "stop", "length"]  # the model ended; a stop string came; as long as allowed
StopRule = Callable[[int, int], bool]  # called with a row and its new token


class Step(NamedTuple):
    """The new token of each row that is still written."""

    rows: list[int]  # their numbers in the batch
    tokens: list[int]
    log_probs: list[float]  # in nats, under the model itself: before temperature and the like
    finished: dict[int, Finish]  # the rows that this token ends


@torch.inference_mode()
def generate(
    model: Decodable,
    sampling: Sampling,
    chances: Chances,
    *,
    end_id: int,
    max_new_tokens: int,
    prompts: Sequence[Sequence[int]] = (),
    should_stop: StopRule | None = None,
) -> Iterator[Step]:
    """Yield a step for each new token until all rows have ended; rows that end leave the batch.

    `prompts` is read only for the repetition penalty. A caller may stop at any step.
    """
    logits = model.first()
    rows = list(range(logits.shape[0]))
    seen = _seen(prompts, logits) if sampling.repetition_penalty != 1 else None
    for n_left in reversed(range(max_new_tokens)):
        tokens = sampling.choose(logits, seen, chances)
        step = _look(rows, tokens, logits)
        for row, token in zip(rows, step.tokens, strict=True):
            if token == end_id:
                step.finished[row] = "end"
            elif should_stop is not None and should_stop(row, token):
                step.finished[row] = "stop"
            elif n_left == 0:
                step.finished[row] = "length"
        yield step
        if seen is not None:
            seen.scatter_(1, tokens[:, None], True)
        if step.finished:
            kept = [place for place, row in enumerate(rows) if row not in step.finished]
            if not kept:
                return
            rows = [rows[place] for place in kept]
            places = torch.tensor(kept, device=tokens.device)
            tokens, seen = tokens[places], seen if seen is None else seen[places]
            model.select(places)
            chances.select(kept)
        logits = model.step(tokens)


def _look(rows: list[int], tokens: Tensor, logits: Tensor) -> Step:
    """Bring the tokens over from the device, with their log-probabilities in the same transfer."""
    logits = logits.float()
    log_probs = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
    chosen, values = torch.stack([tokens.double(), log_probs.double()]).tolist()
    if any(map(isnan, values)):
        raise diverged()
    return Step(rows, [int(token) for token in chosen], values, {})


def _seen(prompts: Sequence[Sequence[int]], logits: Tensor) -> Seen:
    seen = torch.zeros(logits.shape, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        seen[row, list(prompt)] = True
    return seen.to(logits.device)
