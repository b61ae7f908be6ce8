"""Guesses at what a model will write next, so that it can read several tokens at once and check them.

After Leviathan et al. (2023, "Fast inference from Transformers via speculative decoding") with the simplest of drafts:
what followed the same tokens earlier in the text (Saxena 2023, "Prompt lookup decoding"), or in the text that the model
learned from. A wrong guess costs a little time and changes nothing, since each token is chosen from the model's own
scores as it would be without.
"""

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
from jaxtyping import Int

from penwright.decoding.ngrams import ORDERS, Guess, Ngrams

MOST = 7  # tokens that are guessed at once
COST = 0.15  # of a guess, in steps, where nobody has measured it
CAUTION = 1.5  # chances are guesses, too
LONGEST = 8  # repetition that is told from longer ones
TRUST = 4  # tries that the first opinion of repetitions counts for


class Foresight:
    """Guesses at what follows a text; how far repetitions can be trusted it learns on the way."""

    def __init__(self, ngrams: Ngrams | None = None, cost: float = COST):
        """`cost` is what one more token adds to the time of a step, in steps: a guess must be likelier than that."""
        self._ngrams, self._least_chance = ngrams, CAUTION * cost
        self._tried = np.full(LONGEST + 1, float(TRUST))
        self._right = TRUST * np.linspace(0, 0.9, LONGEST + 1)  # by the length of the repetition
        self._last: tuple[int, Guess, int] | None = None  # tokens then, the first guess by repetition, its length

    def guess(self, text: Int[np.ndarray, " tokens"]) -> list[int]:
        """The tokens that are likely enough to come next, none or several."""
        self._learn(text)
        repeated, context = self._repeated(text), text[: -ORDERS - 1 : -1].tolist()
        guesses, chance = list[int](), 1.0
        while len(guesses) < MOST:
            counted = self._ngrams.guess(context) if self._ngrams else None
            options = [*repeated[:1], *([counted] if counted else [])]
            best = max(options, key=attrgetter("chance"), default=Guess(0, 0.0))
            chance *= best.chance
            if chance < self._least_chance:
                break
            repeated = repeated[1:] if repeated and repeated[0].token == best.token else []
            guesses.append(best.token)
            context = [best.token, *context[: ORDERS - 1]]
        return guesses

    def _repeated(self, text: Int[np.ndarray, " tokens"]) -> Sequence[Guess]:
        """What followed the latest place that has the most tokens in common with the end, up to LONGEST."""
        places, n = np.flatnonzero(text[:-1] == text[-1]), 1
        self._last = None
        if not len(places):
            return []
        while n < LONGEST:
            longer = places[places >= n]
            longer = longer[text[longer - n] == text[-1 - n]] if n < len(text) else longer[:0]
            if not len(longer):
                break
            places, n = longer, n + 1
        following = text[places[-1] + 1 : places[-1] + 1 + MOST].tolist()
        found = [Guess(token, self._trust(n + i)) for i, token in enumerate(following)]
        self._last = (len(text), found[0], n)
        return found

    def _trust(self, n: int) -> float:
        n = min(n, LONGEST)
        return float(self._right[n] / self._tried[n])

    def _learn(self, text: Int[np.ndarray, " tokens"]) -> None:
        if self._last is not None and len(text) > self._last[0]:
            n_tokens, guess, length = self._last
            self._tried[length] += 1
            self._right[length] += text[n_tokens] == guess.token
