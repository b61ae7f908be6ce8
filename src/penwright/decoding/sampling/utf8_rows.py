"""Rows that are written with nothing but the spelling of characters in the way of their model."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from torch import Tensor

from penwright.decoding.sampling.filters import Logits
from penwright.decoding.sampling.next_token import Rule
from penwright.decoding.sampling.sampler import Draws
from penwright.decoding.sampling.topk import Choose, MaskedTopK, likeliest
from penwright.decoding.sampling.utf8 import Situations, Utf8Rules


class SpelledRows:
    """Where the rows of a batch stand that only their spelling binds."""

    def __init__(self, spelling: Utf8Rules, limits: Sequence[int], choose: Choose = likeliest):
        """`limits` are the most tokens that each row may have; `choose` finds the best ones."""
        self._spelling, self._states = spelling, np.zeros(len(limits), dtype=np.uint8)
        self._shorter = max(limits) - np.array(limits)  # than the longest
        self._choose = choose

    def possible(self, logits: Logits, n_left: int) -> Logits:
        """The scores, of those tokens alone after which a row's last character can be ended; the longest has n_left."""
        logits = logits.clone()
        self._spelling.forbid(logits, self._situations(n_left))
        return logits

    def likeliest(self, logits: Logits, n_left: int) -> MaskedTopK:
        """The best of those tokens in each row; the logits are of no use then."""
        return self._choose(logits.float(), self._spelling, self._situations(n_left), 1)

    def rule(self, n_left: int, temperature: float, chances: Draws | None) -> Rule:
        """How the only row goes on when so many tokens may come after the next one."""
        return Rule(self._spelling, int(self._states[0]), n_left - int(self._shorter[0]), temperature, chances)

    def push(self, tokens: Int[Tensor, " rows"]) -> None:
        """The next token of each row."""
        self._states = self._spelling.after[self._states, tokens.cpu().numpy()]

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows."""
        self._states, self._shorter = self._states[list(rows)], self._shorter[list(rows)]

    def _situations(self, n_left: int) -> Situations:
        return self._spelling.situations(self._states, n_left - self._shorter)
