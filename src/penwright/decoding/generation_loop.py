"""Writing token by token: an iterator that the command line, the server and evaluation all consume."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from penwright.decoding.batches import Decodable, diverged
from penwright.decoding.sampling.filters import NEVER, Logits
from penwright.decoding.sampling.next_token import Written
from penwright.decoding.sampling.penalties import History
from penwright.decoding.sampling.sampler import RowRng, Sampling
from penwright.decoding.sampling.utf8_rows import SpelledRows

Finish = Literal["end", "stop", "length"]  # the model ended; a stop string came; as long as allowed
StopRule = Callable[[int, int], bool]  # called with a row and its new token


@runtime_checkable
class TokenConstraint(Protocol):
    """What binds the rows of a batch, by what each has written."""

    def possible(self, logits: Logits, n_left: int) -> Logits:
        """The scores, of those tokens alone after which n_left more suffice; there always is one."""

    def push(self, tokens: Int[Tensor, " rows"]) -> None:
        """The next token of each row; none is the end."""

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows."""


class GeneratedTokens(NamedTuple):
    """The new token of each row that is still written."""

    rows: list[int]  # their numbers in the batch
    tokens: list[int]
    log_probs: list[float]  # in nats, under the model itself: before temperature and the like
    finished: dict[int, Finish]  # the rows that this token ends


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

    `prompts` is read only for what was said before, `chances` only where something is left to them. A caller may stop
    at any step.
    """
    logits = model.first()
    rows = list(range(logits.shape[0]))
    history = History(prompts or [[]] * len(rows), logits) if sampling.looks_back else None
    writing = _Writing(model, sampling, chances, history, constraint, logits)
    for n_left in reversed(range(max_new_tokens)):
        may_end = max_new_tokens - n_left > sampling.settings.min_new_tokens
        tokens, log_probs = writing.choose(n_left, None if may_end else end_id)
        step = GeneratedTokens(rows, tokens.tolist(), log_probs, {})
        step.finished.update(_finished(step, end_id, n_left, should_stop))
        yield step
        kept = [place for place, row in enumerate(rows) if row not in step.finished]
        if not kept:
            return
        if step.finished:
            rows = [rows[place] for place in kept]
            tokens = writing.keep(kept, tokens)
        writing.go_on(tokens, n_left, may_end)


@dataclass
class _Writing:
    """The rows that are still written, and what chooses their next tokens."""

    model: Decodable
    sampling: Sampling
    chances: RowRng | None
    history: History | None
    constraint: TokenConstraint | None
    logits: Logits  # after what is written, but where some is chosen already
    chosen: deque[Written] = field(default_factory=deque)  # of a single row, and in the model already

    def choose(self, n_left: int, not_yet: int | None) -> tuple[Int[Tensor, " rows"], list[float]]:
        """The next tokens, after which n_left more may come, and their log-probabilities in nats."""
        if self.chosen:
            token, log_prob = self.chosen.popleft()
            return torch.tensor([token], device=self.logits.device), [not_nan(log_prob)]
        if self.sampling.greedy and not_yet is None and (spelled := self._spelled()):
            found = spelled.likeliest(self.logits, n_left)
            return found.places[:, 0], list(map(not_nan, (found.values[:, 0] - found.normalisers).tolist()))
        allowed = possible(self.logits, self.constraint, n_left, not_yet)
        tokens = self.sampling.choose(allowed, self.history, self.chances)
        return tokens, log_probs_of(tokens, self.logits)

    def _spelled(self) -> SpelledRows | None:
        """What binds the rows, if a token is taken by that and by the model's scores alone."""
        return self.constraint if self.sampling.is_simple and isinstance(self.constraint, SpelledRows) else None

    def keep(self, kept: Sequence[int], tokens: Int[Tensor, " rows"]) -> Int[Tensor, " kept"]:
        """Let the other rows go; the tokens of these."""
        places = torch.tensor(kept, device=tokens.device)
        self.model.select(places)
        for part in (self.chances, self.history, self.constraint):
            if part is not None:
                part.select(kept)
        return tokens[places]

    def go_on(self, tokens: Int[Tensor, " rows"], n_left: int, may_end: bool) -> None:
        """Have these tokens read, after which n_left more may come."""
        for part in (self.history, self.constraint):
            if part is not None:
                part.push(tokens)
        if self.chosen:
            return
        if len(tokens) == 1 and may_end and (spelled := self._spelled()):
            rule = spelled.rule(n_left - 1, self.sampling.settings.temperature, self.chances)
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
    log_probs = logits.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]  # sooner than logsumexp
    return list(map(not_nan, log_probs.tolist()))


def not_nan(log_prob: float) -> float:
    """The log-probability; raises what diverged() gives where it is no number."""
    if isnan(log_prob):
        raise diverged()
    return log_prob
