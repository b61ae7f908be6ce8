"""Guesses at what a model will write next, so that it can read several tokens at once and check them.

After Leviathan et al. (2023, "Fast inference from Transformers via speculative decoding") with the simplest of drafts:
what followed the same tokens earlier in the text (Saxena 2023, "Prompt lookup decoding"), or in the text that the model
learned from. A wrong guess costs a little time and changes nothing, since each token is chosen from the model's own
scores as it would be without.
"""

from operator import attrgetter

import numpy as np
from jaxtyping import Int

from penwright.decoding.ngrams import ORDERS, Guess, Ngrams

MOST = 7  # tokens that are guessed at once
COST = 0.15  # of a guess, in steps, where nobody has measured it
CAUTION = 1.5  # chances are guesses, too
LENGTHS = (8, 5, 3, 2)  # of repetitions that are noticed
TRUST, TRIES = (0.9, 0.6, 0.35, 0.25), 4  # how often they are thought to go on at first, and tries that this counts for


class Foresight:
    """Guesses at what follows a text; how far repetitions can be trusted it learns on the way."""

    def __init__(self, ngrams: Ngrams | None = None, cost: float = COST):
        """`cost` is what one more token adds to the time of a step, in steps: a guess must be likelier than that."""
        self._ngrams, self._least_chance = ngrams, CAUTION * cost
        self._repetitions = Repetitions()

    def guess(self, text: Int[np.ndarray, " tokens"]) -> list[int]:
        """The tokens that are likely enough to come next, none or several."""
        tokens = text.tolist()
        repeated, context = self._repetitions.guess(tokens), tokens[: -ORDERS - 1 : -1]
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


class Repetitions:
    """What followed the last tokens of a text when they came before in it."""

    def __init__(self) -> None:
        self._text: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}  # that follow these tokens, the latest
        self._tried = dict.fromkeys(LENGTHS, float(TRIES))
        self._right = {length: TRIES * trust for length, trust in zip(LENGTHS, TRUST, strict=True)}
        self._last: tuple[int, Guess] | None = None  # the length of the last repetition, and what was to follow

    def guess(self, text: list[int]) -> list[Guess]:
        """What followed the longest repetition, as surely as others of its length were right."""
        self._read(text)
        self._last = None
        for length in LENGTHS:
            place = self._places.get(tuple(text[-length:])) if length < len(text) else None
            if place is not None:
                chance = self._right[length] / self._tried[length]
                found = [Guess(token, chance) for token in text[place : place + MOST]]
                self._last = (length, found[0])
                return found
        return []

    def _read(self, text: list[int]) -> None:
        """Note where things stand, of what is new in this text, or of another one."""
        known = len(self._text)
        if text[:known] != self._text:
            known, self._places, self._last = 0, {}, None
        if self._last is not None and len(text) > known:
            length, guess = self._last
            self._tried[length] += 1
            self._right[length] += text[known] == guess.token
        for end in range(max(1, known), len(text)):
            for length in LENGTHS:
                if length <= end:
                    self._places[tuple(text[end - length : end])] = end
        self._text = text
