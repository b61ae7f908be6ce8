"""Rows of a batch that are limited by UTF-8 validity alone."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from torch import Tensor

from penwright.decoding.sampling.filters import Logits
from penwright.decoding.sampling.next_token import TokenRule
from penwright.decoding.sampling.sampler import Draws
from penwright.decoding.sampling.topk import Choose, MaskedTopK, likeliest
from penwright.decoding.sampling.utf8 import Situations, Utf8Rules


class Utf8Rows:
    """The constraint that keeps the characters of each row whole, with the UTF-8 state of each row."""

    def __init__(self, spelling: Utf8Rules, limits: Sequence[int], choose: Choose = likeliest):
        """Start the rows. `limits` are their maximum numbers of tokens; `choose` finds the likeliest tokens."""
        self._spelling, self._states = spelling, np.zeros(len(limits), dtype=np.uint8)
        self._shorter = max(limits) - np.array(limits)  # than the longest row, in tokens
        self._choose = choose

    def possible(self, logits: Logits, n_left: int) -> Logits:
        """Mask tokens after which a row's last character could not be completed; the longest row has n_left more."""
        logits = logits.clone()
        self._spelling.forbid(logits, self._situations(n_left))
        return logits

    def likeliest(self, logits: Logits, n_left: int) -> MaskedTopK:
        """Return the likeliest of the allowed tokens in each row. This may overwrite the logits."""
        return self._choose(logits.float(), self._spelling, self._situations(n_left), 1)

    def rule(self, n_left: int, temperature: float, chances: Draws | None) -> TokenRule:
        """Return the rule for continuing the only row, with `n_left` tokens after the next one."""
        return TokenRule(self._spelling, int(self._states[0]), n_left - int(self._shorter[0]), temperature, chances)

    def push(self, tokens: Int[Tensor, " rows"]) -> None:
        """Append the next token of each row."""
        self._states = self._spelling.after[self._states, tokens.cpu().numpy()]

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows."""
        self._states, self._shorter = self._states[list(rows)], self._shorter[list(rows)]

    def _situations(self, n_left: int) -> Situations:
        return self._spelling.situations(self._states, n_left - self._shorter)
