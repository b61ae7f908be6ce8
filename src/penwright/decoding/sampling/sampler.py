"""Next-token sampling: rules that change the logits, then a draw that does not depend on other rows.

The order is fixed: banned tokens, penalties, temperature, the filters in the order of FILTERS, XTC, the draw. The order
of the penalties is bias, repetition, presence, frequency, DRY, repeated n-grams.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from penwright.config import DecodingSettings
from penwright.decoding.sampling.logits_process import (
    FILTERS,
    NEG_INF,
    Bias,
    History,
    Logits,
    add_biases,
    dont_repeat_yourself,
    exclude_top_choices,
    forbid_repeated,
    penalize_frequency,
    penalize_presence,
    penalize_repetition,
)
from penwright.devices import copy_to

GREEDY = DecodingSettings(temperature=0.0)
TINY = torch.finfo(torch.float32).tiny
ALMOST_ONE = 1 - torch.finfo(torch.float64).eps


def ban(logits: Logits, tokens: Sequence[int]) -> Logits:
    """Mask these tokens."""
    return logits.index_fill(1, _index(tuple(tokens), logits.device), NEG_INF)


@lru_cache(16)
def _index(tokens: tuple[int, ...], device: torch.device) -> Int[Tensor, " tokens"]:
    with torch.inference_mode(mode=False):  # the cached tensor is also used outside inference mode
        return torch.tensor(tokens, dtype=torch.long, device=device)


def with_temperature(logits: Logits, temperature: float) -> Logits:
    """Divide the logits by the temperature. Below 1, likely tokens become likelier; near 0, only the best remains."""
    shifted = logits - logits.amax(-1, keepdim=True)  # the best logit becomes 0, to prevent overflow
    return shifted / max(temperature, TINY)


@dataclass(frozen=True)
class Sampling:
    """The rules for choosing a token from logits; at temperature 0, the likeliest token is chosen."""

    banned: tuple[int, ...] = ()  # tokens that are never generated
    settings: DecodingSettings = GREEDY
    biases: tuple[Bias, ...] = ()
    breakers: tuple[int, ...] = ()  # the sequence breakers of DRY, at which a repetition ends

    @property
    def greedy(self) -> bool:
        """Whether the choice is deterministic."""
        return self.settings.temperature == 0

    @property
    def uses_history(self) -> bool:
        """Whether any penalty or bias depends on the earlier text."""
        given = self.settings
        penalties = (given.presence_penalty, given.frequency_penalty, given.dry_multiplier, given.no_repeat_ngram)
        return bool(self.biases or given.repetition_penalty != 1 or any(penalties))

    def process(self, logits: Logits, history: History | None = None) -> Logits:
        """Return the logits of the distribution to draw from, without XTC, which needs a random number.

        The logits of an Apple GPU are moved to the CPU, unless the choice is deterministic.
        """
        if self.banned:
            logits = ban(logits, self.banned)
        if history is not None:
            logits = self._apply_penalties(logits, history)
        if self.greedy:
            return logits
        logits = logits.cpu() if logits.is_mps else logits  # the filters need float64, which an Apple GPU lacks
        logits = with_temperature(logits, self.settings.temperature)
        for name, keep in FILTERS.items():
            value = getattr(self.settings, name)
            if value is not None:
                logits = keep(logits, value)
        return logits

    def _apply_penalties(self, logits: Logits, history: History) -> Logits:
        given = self.settings
        if self.biases:
            logits = add_biases(logits, history, self.biases)
        if given.repetition_penalty != 1:
            logits = penalize_repetition(logits, history, given.repetition_penalty)
        if given.presence_penalty:
            logits = penalize_presence(logits, history, given.presence_penalty)
        if given.frequency_penalty:
            logits = penalize_frequency(logits, history, given.frequency_penalty)
        if given.dry_multiplier:
            dry = (given.dry_multiplier, given.dry_base, given.dry_allowed_length)
            logits = dont_repeat_yourself(logits, history, *dry, self.breakers)
        return forbid_repeated(logits, history, given.no_repeat_ngram) if given.no_repeat_ngram else logits

    def probabilities(self, processed: Float[Tensor, "*rows vocab_size"]) -> Float[Tensor, "*rows vocab_size"]:
        """Return the probability that each token is sampled, given the logits that process() returns."""
        if self.greedy:
            return torch.zeros_like(processed).scatter(-1, processed.argmax(-1, keepdim=True), 1.0)
        return processed.softmax(-1)

    def choose(self, logits: Logits, history: History | None, rng: "Draws | None") -> Int[Tensor, " rows"]:
        """Choose the next token of each row; `rng` (random numbers) may be None if the choice is deterministic."""
        return self.sample(self.process(logits, history), rng).to(logits.device)

    def sample(self, processed: Logits, rng: "Draws | None") -> Int[Tensor, " rows"]:
        """Draw the next token of each row from the logits that process() returns."""
        if self.greedy:
            return argmax(processed)
        assert rng is not None
        if self.settings.xtc_probability:
            rows = copy_to(rng.next(), processed.device) < self.settings.xtc_probability
            processed = exclude_top_choices(processed, self.settings.xtc_threshold, rows)
        return draw(processed, copy_to(rng.next(), processed.device))


def argmax(logits: Logits) -> Int[Tensor, " rows"]:
    """Return the index of the first largest logit of each row. On a CPU, NumPy is twenty times faster than torch."""
    if logits.device.type != "cpu" or logits.dtype == torch.bfloat16:
        return logits.argmax(-1)
    return torch.from_numpy(logits.detach().numpy().argmax(-1))


def draw(logits: Logits, uniform: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """Return the first token at which the cumulative probability exceeds the row's random number from [0, 1)."""
    cumulative = logits.softmax(-1, dtype=torch.float64).cumsum(-1)
    threshold = uniform[:, None] * (cumulative[:, -1:] * ALMOST_ONE)  # below the total despite rounding
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)


@runtime_checkable
class Draws(Protocol):
    """A source of random numbers from [0, 1)."""

    def next(self) -> Float[Tensor, " rows"]:
        """Return the next random number of each row."""


class RowRng:
    """Random numbers from [0, 1), with one generator per row, so a row draws the same numbers in any batch."""

    block = 64  # number of random numbers drawn at once; a different number would change the generated texts

    def __init__(self, seed: int, rows: Sequence[int]):
        """Seed one generator per row with `seed` and the row's number in `rows`."""
        keys = [int(np.random.SeedSequence((seed, row)).generate_state(1, np.uint64)[0]) for row in rows]
        self._generators = [torch.Generator().manual_seed(key >> 1) for key in keys]  # 63 bits, since seeds are signed
        self._drawn = torch.empty(len(keys), 0, dtype=torch.float64)
        self._used = 0

    def next(self) -> Float[Tensor, " rows"]:
        """Return the next random number of each row."""
        if self._used == self._drawn.shape[1]:
            drawn = [torch.rand(self.block, generator=g, dtype=torch.float64) for g in self._generators]
            self._drawn, self._used = torch.stack(drawn), 0
        self._used += 1
        return self._drawn[:, self._used - 1]

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows."""
        self._generators = [self._generators[row] for row in rows]
        self._drawn = self._drawn[list(rows)]


class JoinedRng:
    """Random numbers for several rows from separate generators, each at its own position in its sequence."""

    def __init__(self, rows: Sequence[RowRng]):
        self._rows = rows

    def next(self) -> Float[Tensor, " rows"]:
        """Return the next random number of each row."""
        return torch.cat([row.next() for row in self._rows])
