"""Choosing the next token: rules that reshape the scores, then a draw that no other row of a batch can change."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from penwright.config import DecodingSettings

Logits = Float[Tensor, "rows vocab_size"]
Seen = Bool[Tensor, "rows vocab_size"]  # which tokens the prompt and the completion already hold
NEVER = float("-inf")
TINY = torch.finfo(torch.float32).tiny


def ban(logits: Logits, tokens: Sequence[int]) -> Logits:
    """These tokens get no probability."""
    return logits.index_fill(1, torch.tensor(tokens, dtype=torch.long, device=logits.device), NEVER)


def penalise_repetition(logits: Logits, seen: Seen, penalty: float) -> Logits:
    """Tokens seen before lose score when the penalty is above 1 (Keskar et al. 2019, CTRL, section 4.1)."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def with_temperature(logits: Logits, temperature: float) -> Logits:
    """Below 1 the likely tokens become likelier; close to 0 only the best remains."""
    return (logits - logits.amax(-1, keepdim=True)) / max(temperature, TINY)  # the best is 0, so nothing overflows


def keep_top_k(logits: Logits, k: int) -> Logits:
    """Only the k best tokens, of equal ones as many as fit."""
    best = logits.topk(min(k, logits.shape[-1]), dim=-1)
    return torch.full_like(logits, NEVER).scatter(-1, best.indices, best.values)


def keep_top_p(logits: Logits, p: float) -> Logits:
    """Only the fewest best tokens that have probability p together (Holtzman et al. 2020, nucleus sampling)."""
    ordered = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.values.double().softmax(-1)
    better = probabilities.cumsum(-1) - probabilities  # what the tokens before each have together
    return torch.empty_like(logits).scatter(-1, ordered.indices, ordered.values.masked_fill(better >= p, NEVER))


def keep_min_p(logits: Logits, share: float) -> Logits:
    """Only tokens with at least this share of the best one's probability (Nguyen et al. 2024, min-p)."""
    if share == 0:
        return logits
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + log(share), NEVER)


@dataclass(frozen=True)
class Sampling:
    """What is done with the model's scores, in the order of the fields; at temperature 0 the best token is taken."""

    banned: tuple[int, ...] = ()
    repetition_penalty: float = 1.0
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    @classmethod
    def from_settings(cls, settings: DecodingSettings, banned: Sequence[int] = ()) -> "Sampling":
        """The part of the settings that is about sampling; banned tokens are never written."""
        return cls(
            tuple(banned),
            settings.repetition_penalty,
            settings.temperature,
            settings.top_k,
            settings.top_p,
            settings.min_p,
        )

    @property
    def greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.temperature == 0

    def reshape(self, logits: Logits, seen: Seen | None = None) -> Logits:
        """The logits of the distribution that is drawn from."""
        if self.banned:
            logits = ban(logits, self.banned)
        if self.repetition_penalty != 1 and seen is not None:
            logits = penalise_repetition(logits, seen, self.repetition_penalty)
        if self.greedy:
            return logits
        logits = with_temperature(logits, self.temperature)
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p is not None and self.top_p < 1:
            logits = keep_top_p(logits, self.top_p)
        return logits if self.min_p is None else keep_min_p(logits, self.min_p)

    def choose(self, logits: Logits, seen: Seen | None, chances: "Chances") -> Int[Tensor, " rows"]:
        """The next token of each row."""
        logits = self.reshape(logits, seen)
        return logits.argmax(-1) if self.greedy else draw(logits, chances.next().to(logits.device))


def draw(logits: Logits, chances: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """The token at which the probabilities, added up in order, first exceed the row's number from [0, 1)."""
    cumulative = logits.double().softmax(-1).cumsum(-1)
    total = cumulative[:, -1:]
    threshold = torch.minimum(chances[:, None] * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)


class Chances:
    """Numbers from [0, 1), for each row from a generator of its own, so that it draws the same in any batch."""

    block = 64  # numbers drawn at once; another value gives other texts

    def __init__(self, seed: int, rows: Sequence[int]):
        """`rows` are numbers that the caller gives: a row with the same seed and number draws the same."""
        keys = [int(np.random.SeedSequence((seed, row)).generate_state(1, np.uint64)[0]) for row in rows]
        self._generators = [torch.Generator().manual_seed(key >> 1) for key in keys]  # 63 bits: the sign is not for us
        self._drawn = torch.empty(len(keys), 0, dtype=torch.float64)
        self._used = 0

    def next(self) -> Float[Tensor, " rows"]:
        """The next number of each row."""
        if self._used == self._drawn.shape[1]:
            drawn = [torch.rand(self.block, generator=g, dtype=torch.float64) for g in self._generators]
            self._drawn, self._used = torch.stack(drawn), 0
        self._used += 1
        return self._drawn[:, self._used - 1]

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows."""
        self._generators = [self._generators[row] for row in rows]
        self._drawn = self._drawn[list(rows)]
