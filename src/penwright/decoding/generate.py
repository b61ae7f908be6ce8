"""Writing token by token: an iterator that the command line, the server and evaluation all consume."""

from collections.abc import Callable, Iterator, Sequence
from math import isnan
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from penwright.decoding.choosing.filters import NEVER, Logits
from penwright.decoding.choosing.penalties import History
from penwright.decoding.choosing.sampling import Chances, Sampling
from penwright.decoding.choosing.spelled import SpelledRows
from penwright.decoding.decodable import Decodable, diverged

Finish = Literal["end", "stop", "length"]  # the model ended; a stop string came; as long as allowed
StopRule = Callable[[int, int], bool]  # called with a row and its new token


@runtime_checkable
class Constraint(Protocol):
    """What binds the rows of a batch, by what each has written."""

    def possible(self, logits: Logits, n_left: int) -> Logits:
        """The scores, of those tokens alone after which n_left more suffice; there always is one."""

    def push(self, tokens: Int[Tensor, " rows"]) -> None:
        """The next token of each row; none is the end."""

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows."""


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
    constraint: Constraint | None = None,
) -> Iterator[Step]:
    """Yield a step for each new token until all rows have ended; rows that end leave the batch.

    `prompts` is read only for what was said before. A caller may stop at any step.
    """
    logits = model.first()
    rows = list(range(logits.shape[0]))
    history = History(prompts or [[]] * len(rows), logits) if sampling.looks_back else None
    for n_left in reversed(range(max_new_tokens)):
        may_end = max_new_tokens - n_left > sampling.settings.min_new_tokens
        if sampling.is_plain and may_end and isinstance(constraint, SpelledRows):
            tokens, log_probs = _likeliest(logits, constraint, n_left)
        else:
            allowed = possible(logits, constraint, n_left, None if may_end else end_id)
            tokens = sampling.choose(allowed, history, chances)
            log_probs = log_probs_of(tokens, logits)
        step = Step(rows, tokens.tolist(), log_probs, {})
        step.finished.update(_finished(step, end_id, n_left, should_stop))
        yield step
        kept = [place for place, row in enumerate(rows) if row not in step.finished]
        if not kept:
            return
        if step.finished:
            rows = [rows[place] for place in kept]
            places = torch.tensor(kept, device=tokens.device)
            tokens = tokens[places]
            model.select(places)
            for part in (chances, history, constraint):
                if part is not None:
                    part.select(kept)
        for part in (history, constraint):
            if part is not None:
                part.push(tokens)
        logits = model.step(tokens)


def _finished(step: Step, end_id: int, n_left: int, should_stop: StopRule | None) -> Iterator[tuple[int, Finish]]:
    for row, token in zip(step.rows, step.tokens, strict=True):
        if token == end_id:
            yield row, "end"
        elif should_stop is not None and should_stop(row, token):
            yield row, "stop"
        elif n_left == 0:
            yield row, "length"


def possible(logits: Logits, constraint: Constraint | None, n_left: int, not_yet: int | None) -> Logits:
    """The scores without the tokens that must not come next; what must not come yet comes where nothing else may."""
    if constraint is not None:
        logits = constraint.possible(logits, n_left)
    if not_yet is None:
        return logits
    others = logits.clone()
    others[:, not_yet] = NEVER
    others[:, not_yet] = torch.where(others.amax(-1) > NEVER, NEVER, logits[:, not_yet])
    return others


def log_probs_of(tokens: Int[Tensor, " rows"], logits: Logits) -> list[float]:
    """The log-probabilities of these tokens in nats."""
    return _numbers(logits.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0])  # sooner than logsumexp


def _likeliest(logits: Logits, bound: SpelledRows, n_left: int) -> tuple[Int[Tensor, " rows"], list[float]]:
    """The best token of each row that may come, and its log-probability in nats."""
    found = bound.likeliest(logits, n_left)
    return found.places[:, 0], _numbers(found.values[:, 0] - found.normalisers)


def _numbers(log_probs: Float[Tensor, " rows"]) -> list[float]:
    values: list[float] = log_probs.tolist()
    if any(map(isnan, values)):
        raise diverged()
    return values
