"""Choosing the next token: rules that reshape the scores, then a draw that no other row of a batch can change.

The order, whatever is asked for together: tokens that are never written, what was said before (bias, repetition,
presence, frequency, DRY, repeated n-grams), temperature, the filters in the order of FILTERS, XTC, the draw.
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
from penwright.decoding.sampling.filters import FILTERS, NEVER, Logits, exclude_top_choices
from penwright.decoding.sampling.penalties import (
    Bias,
    History,
    add_biases,
    dont_repeat_yourself,
    forbid_repeated,
    penalise_frequency,
    penalise_presence,
    penalise_repetition,
)

__all__ = ["NEVER", "RowRng", "Sampling", "ban", "draw", "with_temperature"]
GREEDY = DecodingSettings(temperature=0.0)
TINY = torch.finfo(torch.float32).tiny


def ban(logits: Logits, tokens: Sequence[int]) -> Logits:
    """These tokens get no probability."""
    return logits.index_fill(1, _index(tuple(tokens), logits.device), NEVER)


@lru_cache(16)
def _index(tokens: tuple[int, ...], device: torch.device) -> Int[Tensor, " tokens"]:
    with torch.inference_mode(mode=False):  # it is used outside of it as well
        return torch.tensor(tokens, dtype=torch.long, device=device)


def with_temperature(logits: Logits, temperature: float | Float[Tensor, "rows 1"]) -> Logits:
    """Below 1 the likely tokens become likelier; close to 0 only the best remains."""
    least = temperature.clamp(min=TINY) if isinstance(temperature, Tensor) else max(temperature, TINY)
    return (logits - logits.amax(-1, keepdim=True)) / least  # the best is 0, so nothing overflows


@dataclass(frozen=True)
class Sampling:
    """What is done with the model's scores; at temperature 0 the best token is taken."""

    banned: tuple[int, ...] = ()  # tokens that are never written
    settings: DecodingSettings = GREEDY
    biases: tuple[Bias, ...] = ()
    breakers: tuple[int, ...] = ()  # tokens that no repetition reaches across, for DRY

    @property
    def greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.settings.temperature == 0

    @property
    def is_simple(self) -> bool:
        """Whether nothing but the temperature comes between the model's scores and the choice."""
        filters = any(getattr(self.settings, name) is not None for name in FILTERS)
        return not self.looks_back and (self.greedy or not (filters or self.settings.xtc_probability))

    @property
    def looks_back(self) -> bool:
        """Whether it must know what was said before."""
        given = self.settings
        penalties = (given.presence_penalty, given.frequency_penalty, given.dry_multiplier, given.no_repeat_ngram)
        return bool(self.biases or given.repetition_penalty != 1 or any(penalties))

    def reshape(self, logits: Logits, history: History | None = None) -> Logits:
        """The logits of the distribution that is drawn from, but for XTC, which needs a chance."""
        if self.banned:
            logits = ban(logits, self.banned)
        if history is not None:
            logits = self._look_back(logits, history)
        if self.greedy:
            return logits
        logits = with_temperature(logits, self.settings.temperature)
        for name, keep in FILTERS.items():
            value = getattr(self.settings, name)
            if value is not None:
                logits = keep(logits, value)
        return logits

    def _look_back(self, logits: Logits, history: History) -> Logits:
        given = self.settings
        if self.biases:
            logits = add_biases(logits, history, self.biases)
        if given.repetition_penalty != 1:
            logits = penalise_repetition(logits, history, given.repetition_penalty)
        if given.presence_penalty:
            logits = penalise_presence(logits, history, given.presence_penalty)
        if given.frequency_penalty:
            logits = penalise_frequency(logits, history, given.frequency_penalty)
        if given.dry_multiplier:
            dry = (given.dry_multiplier, given.dry_base, given.dry_allowed_length)
            logits = dont_repeat_yourself(logits, history, *dry, self.breakers)
        return forbid_repeated(logits, history, given.no_repeat_ngram) if given.no_repeat_ngram else logits

    def choose(self, logits: Logits, history: History | None, chances: "Draws | None") -> Int[Tensor, " rows"]:
        """The next token of each row; where nothing is left to chance, none is needed."""
        return self.pick(self.reshape(logits, history), chances)

    def pick(self, reshaped: Logits, chances: "Draws | None") -> Int[Tensor, " rows"]:
        """The token that chance takes, of what `reshape` gives."""
        if self.greedy:
            return best(reshaped)
        assert chances is not None
        device = reshaped.device
        reshaped = reshaped.cpu() if device.type == "mps" else reshaped  # which has no numbers of 64 bits
        if self.settings.xtc_probability:
            rows = chances.next().to(reshaped.device) < self.settings.xtc_probability
            reshaped = exclude_top_choices(reshaped, self.settings.xtc_threshold, rows)
        return draw(reshaped, chances.next().to(reshaped.device)).to(device)


def best(logits: Logits) -> Int[Tensor, " rows"]:
    """The first of the largest of each row; NumPy finds it twenty times sooner on a CPU than torch does."""
    if logits.device.type != "cpu" or logits.dtype == torch.bfloat16:
        return logits.argmax(-1)
    return torch.from_numpy(logits.detach().numpy().argmax(-1))


def draw(logits: Logits, chances: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """The token at which the probabilities, added up in order, first exceed the row's number from [0, 1)."""
    cumulative = logits.double().softmax(-1).cumsum(-1)
    total = cumulative[:, -1:]
    threshold = torch.minimum(chances[:, None] * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)


@runtime_checkable
class Draws(Protocol):
    """Where numbers from [0, 1) come from."""

    def next(self) -> Float[Tensor, " rows"]:
        """The next number of each row."""


class RowRng:
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


class Together:
    """The chances of several rows, each of which has drawn as many numbers as it has."""

    def __init__(self, rows: Sequence[RowRng]):
        self._rows = rows

    def next(self) -> Float[Tensor, " rows"]:
        """The next number of each row."""
        return torch.cat([row.next() for row in self._rows])
