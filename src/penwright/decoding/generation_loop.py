"""Token-by-token generation of a batch, as an iterator over its steps."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from penwright.decoding.batches import Decodable, diverged
from penwright.decoding.sampling.filters import NEG_INF, Logits
from penwright.decoding.sampling.next_token import GeneratedToken
from penwright.decoding.sampling.penalties import History
from penwright.decoding.sampling.sampler import RowRng, Sampling
from penwright.decoding.sampling.utf8_rows import Utf8Rows

Finish = Literal["end", "stop", "length"]  # the end token; a stop string; the maximum length
StopRule = Callable[[int, int], bool]  # called with the number of a row and its new token; True ends the row


@runtime_checkable
class TokenConstraint(Protocol):
    """A constraint on the next token of each row of a batch, given the row's text so far."""

    def possible(self, logits: Logits, n_left: int) -> Logits:
        """Mask tokens after which n_left more would not meet the constraint. At least one token always remains."""

    def push(self, tokens: Int[Tensor, " rows"]) -> None:
        """Append the next token of each row; none of them is the end token."""

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows."""


class GeneratedTokens(NamedTuple):
    """The new token of each row that is still being generated."""

    rows: list[int]  # their numbers in the batch
    tokens: list[int]
    log_probs: list[float]  # in nats, under the model itself: before temperature and the like
    finished: dict[int, Finish]  # the rows that end with this token


@torch.inference_mode()
def generate(
    model: Decodable,
    sampling: Sampling,
    chances: RowRng | None,
    *,
    end_id: int,
    max_new_tokens: int,
    prompts: Sequence[Sequence[int]] = (),
    should_stop: StopRule | None = None,
    constraint: TokenConstraint | None = None,
) -> Iterator[GeneratedTokens]:
    """Yield a step for each new token until all rows have ended; rows that end leave the batch.

    `prompts` is needed only for penalties on earlier text, and `chances` only for random sampling. A caller may stop
    at any step.
    """
    logits = model.first()
    rows = list(range(logits.shape[0]))
    history = History(prompts or [[]] * len(rows), logits) if sampling.uses_history else None
    generation = _Generation(model, sampling, chances, history, constraint, logits)
    for n_left in reversed(range(max_new_tokens)):
        may_end = max_new_tokens - n_left > sampling.settings.min_new_tokens
        tokens, log_probs = generation.choose(n_left, None if may_end else end_id)
        step = GeneratedTokens(rows, tokens.tolist(), log_probs, {})
        step.finished.update(_finished(step, end_id, n_left, should_stop))
        yield step
        kept = [place for place, row in enumerate(rows) if row not in step.finished]
        if not kept:
            return
        if step.finished:
            rows = [rows[place] for place in kept]
            tokens = generation.keep(kept, tokens)
        generation.go_on(tokens, n_left, may_end)


@dataclass
class _Generation:
    """The rows still being generated, and what is needed to choose their next tokens."""

    model: Decodable
    sampling: Sampling
    chances: RowRng | None
    history: History | None
    constraint: TokenConstraint | None
    logits: Logits  # after the tokens so far; stale while `chosen` holds tokens
    chosen: deque[GeneratedToken] = field(default_factory=deque)  # in advance, for one row; all but the last are cached

    def choose(self, n_left: int, not_yet: int | None) -> tuple[Int[Tensor, " rows"], list[float]]:
        """Choose the next tokens, which n_left more may follow; return them and their log-probabilities in nats."""
        if self.chosen:
            token, log_prob = self.chosen.popleft()
            return torch.tensor([token], device=self.logits.device), [not_nan(log_prob)]
        if self.sampling.greedy and not_yet is None and (utf8_rows := self._utf8_rows()):
            found = utf8_rows.likeliest(self.logits, n_left)
            return found.places[:, 0], list(map(not_nan, (found.values[:, 0] - found.normalisers).tolist()))
        allowed = possible(self.logits, self.constraint, n_left, not_yet)
        tokens = self.sampling.choose(allowed, self.history, self.chances)
        return tokens, log_probs_of(tokens, self.logits)

    def _utf8_rows(self) -> Utf8Rows | None:
        """Return the UTF-8 rules of the rows, if nothing but these and the logits decides the next tokens."""
        return self.constraint if self.sampling.is_simple and isinstance(self.constraint, Utf8Rows) else None

    def keep(self, kept: Sequence[int], tokens: Int[Tensor, " rows"]) -> Int[Tensor, " kept"]:
        """Drop all other rows; return the tokens of the kept ones."""
        places = torch.tensor(kept, device=tokens.device)
        self.model.select(places)
        for part in (self.chances, self.history, self.constraint):
            if part is not None:
                part.select(kept)
        return tokens[places]

    def go_on(self, tokens: Int[Tensor, " rows"], n_left: int, may_end: bool) -> None:
        """Append these tokens, which n_left more may follow, and compute the next logits."""
        for part in (self.history, self.constraint):
            if part is not None:
                part.push(tokens)
        if self.chosen:
            return
        if len(tokens) == 1 and may_end and (utf8_rows := self._utf8_rows()):
            rule = utf8_rows.rule(n_left - 1, self.sampling.settings.temperature, self.chances)
            self.chosen.extend(self.model.several(tokens, rule))
        if not self.chosen:
            self.logits = self.model.step(tokens)


def _finished(
    step: GeneratedTokens, end_id: int, n_left: int, should_stop: StopRule | None
) -> Iterator[tuple[int, Finish]]:
    for row, token in zip(step.rows, step.tokens, strict=True):
        if token == end_id:
            yield row, "end"
        elif should_stop is not None and should_stop(row, token):
            yield row, "stop"
        elif n_left == 0:
            yield row, "length"


def possible(logits: Logits, constraint: TokenConstraint | None, n_left: int, not_yet: int | None) -> Logits:
    """Mask the tokens that must not come next. `not_yet` is masked too, unless a row has no other token left."""
    if constraint is not None:
        logits = constraint.possible(logits, n_left)
    if not_yet is None:
        return logits
    others = logits.clone()
    others[:, not_yet] = NEG_INF
    others[:, not_yet] = torch.where(others.amax(-1) > NEG_INF, NEG_INF, logits[:, not_yet])
    return others


def log_probs_of(tokens: Int[Tensor, " rows"], logits: Logits) -> list[float]:
    """Return the log-probabilities of these tokens in nats."""
    log_probs = logits.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]  # faster than logsumexp
    return list(map(not_nan, log_probs.tolist()))


def not_nan(log_prob: float) -> float:
    """Return the log-probability; raise the error of diverged() if it is NaN."""
    if isnan(log_prob):
        raise diverged()
    return log_prob
