"""Penalties and biases: changes to the logits that depend on the earlier text of each row."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Int, Int64
from numpy.typing import NDArray
from torch import Tensor

from penwright.decoding.sampling.filters import NEG_INF, Logits

MOST_LOST = 1e4  # maximum penalty on a logit, however long the repetition is


class RowHistory:
    """The tokens of one row, and the earlier positions at which the row's last tokens also occurred."""

    def __init__(self, prompt: Sequence[int]):
        self._tokens = np.zeros(max(64, 2 * len(prompt)), dtype=np.int64)
        self._overlaps = np.zeros_like(self._tokens)
        self.length = len(prompt)
        self._tokens[: self.length] = prompt
        self._overlaps[: self.length] = _overlaps(prompt)

    @property
    def tokens(self) -> Int64[np.ndarray, " length"]:
        """The tokens of the row so far."""
        return self._tokens[: self.length]

    def push(self, token: int) -> None:
        """Append a token, and update the match length at each earlier position: it grows by one or becomes 0."""
        n = self.length
        if n == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
            self._overlaps = np.concatenate([self._overlaps, np.zeros_like(self._overlaps)])
        before = np.concatenate([[0], self._overlaps[: max(0, n - 1)]])[:n]
        self._overlaps[:n] = np.where(self._tokens[:n] == token, before + 1, 0)
        self._overlaps[n] = 0  # the match of the text's end with itself does not count
        self._tokens[n] = token
        self.length += 1

    def repetitions(self) -> tuple[Int64[np.ndarray, " places"], Int64[np.ndarray, " places"]]:
        """Return all tokens except the first and, for each, how many tokens before it match the end of the text."""
        n = max(0, self.length - 1)
        return self._tokens[1 : n + 1], self._overlaps[:n]

    def since(self, breakers: NDArray[np.int64]) -> int:
        """Return the number of tokens after the last sequence breaker."""
        found = np.flatnonzero(np.isin(self.tokens, breakers))
        return self.length - 1 - int(found[-1]) if len(found) else self.length

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """Return whether the text ends with these tokens."""
        return len(tokens) <= self.length and self.tokens[self.length - len(tokens) :].tolist() == list(tokens)


def _overlaps(tokens: Sequence[int]) -> list[int]:
    """Return, for each position, how many tokens up to it match the end of the sequence; 0 at the last position.

    This is the Z-function of the reversed tokens (Gusfield 1997, section 1.3), in linear time.
    """
    backwards, n = tokens[::-1], len(tokens)
    found, begin, end = [0] * n, 0, 0
    for place in range(1, n):
        agree = min(end - place, found[place - begin]) if place < end else 0
        while place + agree < n and backwards[agree] == backwards[place + agree]:
            agree += 1
        found[place] = agree
        if place + agree > end:
            begin, end = place, place + agree
    return found[::-1]


class History:
    """The text of each row of a batch, prompt included, and the number of times that each token was generated."""

    def __init__(self, prompts: Sequence[Sequence[int]], logits: Logits):
        """Start with the prompts; the tensors have the shape and device of `logits`."""
        self.pasts = [RowHistory(prompt) for prompt in prompts]
        self.seen = torch.zeros_like(logits, dtype=torch.bool)  # whether a token occurs in the prompt or the completion
        self.written = torch.zeros_like(logits, dtype=torch.float32)  # how often a token occurs in the completion
        for row, prompt in enumerate(prompts):
            self.seen[row, list(prompt)] = True

    @classmethod
    def joined(cls, histories: Sequence["History"]) -> "History":
        """Join the histories of several batches into a read-only copy; new tokens go to the individual histories."""
        one = cls.__new__(cls)
        one.pasts = [past for history in histories for past in history.pasts]
        one.seen = torch.cat([history.seen for history in histories])
        one.written = torch.cat([history.written for history in histories])
        return one

    def push(self, tokens: Int[Tensor, " rows"]) -> None:
        """Append the next token of each row."""
        tokens = tokens.to(self.seen.device)
        self.seen.scatter_(1, tokens[:, None], True)
        self.written.scatter_add_(1, tokens[:, None], torch.ones_like(self.written[:, :1]))
        for past, token in zip(self.pasts, tokens.tolist(), strict=True):
            past.push(token)

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows."""
        places = torch.tensor(rows, device=self.seen.device)
        self.seen, self.written = self.seen[places], self.written[places]
        self.pasts = [self.pasts[row] for row in rows]


def penalise_repetition(logits: Logits, history: History, penalty: float) -> Logits:
    """Lower the logits of tokens seen before, if the penalty is above 1 (Keskar et al. 2019, CTRL, section 4.1)."""
    return torch.where(history.seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def penalise_presence(logits: Logits, history: History, penalty: float) -> Logits:
    """Lower the logits of generated tokens by the penalty once, however often they occurred (as in OpenAI's API)."""
    return logits - penalty * (history.written > 0)


def penalise_frequency(logits: Logits, history: History, penalty: float) -> Logits:
    """Lower the logits of generated tokens by the penalty for each occurrence (as in OpenAI's API)."""
    return logits - penalty * history.written


def dont_repeat_yourself(
    logits: Logits, history: History, strength: float, base: float, allowed: int, breakers: Sequence[int]
) -> Logits:
    """Penalize tokens that would prolong a repetition of n tokens: lower logits by strength * base ** (n - allowed).

    This is DRY (Weidmann 2024, github.com/oobabooga/text-generation-webui/pull/5677). Sequence breakers end a
    repetition.
    """
    lost = np.zeros(tuple(logits.shape), dtype=np.float32)
    ends = np.array(breakers, dtype=np.int64)
    for row, past in enumerate(history.pasts):
        following, overlaps = past.repetitions()
        lengths = np.minimum(overlaps, past.since(ends))
        counts = (lengths >= max(1, allowed)) & ~np.isin(following, ends)
        with np.errstate(over="ignore"):
            loss = np.minimum(strength * np.float64(base) ** (lengths[counts] - allowed), MOST_LOST)
        np.maximum.at(lost[row], following[counts], loss)
    return logits - torch.from_numpy(lost).to(logits)


def forbid_repeated(logits: Logits, history: History, n: int) -> Logits:
    """Forbid repeated n-grams, unless a row has no other token left (Paulus et al. 2018, section 2.5)."""
    forbidden = torch.zeros_like(logits, dtype=torch.bool)
    for row, past in enumerate(history.pasts):
        following, overlaps = past.repetitions()
        again = following[overlaps >= n - 1] if n > 1 else past.tokens
        forbidden[row, torch.from_numpy(again.copy()).to(logits.device)] = True
    return forbid(logits, forbidden)


def forbid(logits: Logits, forbidden: Tensor) -> Logits:
    """Mask these tokens, except in rows that have no other token left."""
    left = (logits.masked_fill(forbidden, NEG_INF) > NEG_INF).any(-1, keepdim=True)
    return logits.masked_fill(forbidden & left, NEG_INF)


class Bias:
    """A bias for a text, alone or after a space, split equally among the logits of its tokens.

    So the whole text becomes exp(bias) times as likely wherever it occurs in its usual tokenization.
    """

    def __init__(self, spellings: Sequence[Sequence[int]], bias: float):
        self._spellings, self._bias = [list(spelling) for spelling in spellings if spelling], bias

    def tokens(self, past: RowHistory) -> Iterator[tuple[int, float]]:
        """Yield the tokens that begin or continue the text, with the bias of each."""
        for spelling in self._spellings:
            for place, token in enumerate(spelling):
                if past.ends_with(spelling[:place]):
                    yield token, self._bias / len(spelling)


def add_biases(logits: Logits, history: History, biases: Sequence[Bias]) -> Logits:
    """Add the biases that apply after the present text of each row."""
    added = np.zeros(tuple(logits.shape), dtype=np.float32)
    for row, past in enumerate(history.pasts):
        for bias in biases:
            for token, value in bias.tokens(past):
                added[row, token] += value
    return logits + torch.from_numpy(added).to(logits)
