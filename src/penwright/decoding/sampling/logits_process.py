"""Changes to the logits before a token is drawn: penalties for earlier text, and filters of unlikely tokens."""

from collections.abc import Callable, Iterator, Sequence
from math import log, sqrt
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from numpy.typing import NDArray
from torch import Tensor

from penwright.devices import copy_to

Logits = Float[Tensor, "rows vocab_size"]
NEG_INF = float("-inf")
MOST_LOST = 1e4  # maximum penalty on a logit, however long the repetition is


def keep_top_n_sigma(logits: Logits, n: float) -> Logits:
    """Keep tokens within n standard deviations of the best logit, whatever the temperature (Tang et al. 2024)."""
    possible = logits > NEG_INF
    n_possible = possible.sum(-1, keepdim=True)
    mean = logits.where(possible, 0).sum(-1, keepdim=True) / n_possible
    variance = (logits - mean).square().where(possible, 0).sum(-1, keepdim=True) / n_possible
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) - n * variance.sqrt(), NEG_INF)


def keep_top_k(logits: Logits, k: int) -> Logits:
    """Keep the k best tokens, exactly k even if there are ties."""
    best = logits.topk(min(k, logits.shape[-1]), dim=-1)
    return torch.full_like(logits, NEG_INF).scatter(-1, best.indices, best.values)


def keep_top_p(logits: Logits, p: float) -> Logits:
    """Keep the smallest set of most likely tokens whose probabilities add up to p (nucleus sampling).

    Holtzman et al. 2020.
    """
    order = _descending(logits)
    return _keep_until(logits.gather(-1, order), order, logits, p)


def keep_min_p(logits: Logits, share: float) -> Logits:
    """Keep tokens with at least this share of the best token's probability (Nguyen et al. 2024, min-p)."""
    if share == 0:
        return logits
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + log(share), NEG_INF)


def keep_typical_p(logits: Logits, p: float) -> Logits:
    """Keep the tokens whose surprisal is closest to the entropy, up to a total probability of p (typical sampling).

    Meister et al. 2023. Even the likeliest token is dropped if it carries too little information.
    """
    log_probs, entropy = _log_probs_and_entropy(logits)
    order = _descending(-(log_probs + entropy).abs())
    return _keep_until(logits.gather(-1, order), order, logits, p)


def keep_epsilon(logits: Logits, epsilon: float) -> Logits:
    """Keep tokens with at least this probability, and always the best one (Hewitt et al. 2022, epsilon sampling)."""
    return _keep_above(logits, torch.full_like(logits[:, :1], epsilon, dtype=torch.float64))


def keep_eta(logits: Logits, epsilon: float) -> Logits:
    """Keep tokens at or above a threshold that falls as entropy rises (Hewitt et al. 2022, eta sampling, eq. 5)."""
    _, entropy = _log_probs_and_entropy(logits)
    return _keep_above(logits, torch.clamp(sqrt(epsilon) * torch.exp(-entropy), max=epsilon))


def exclude_top_choices(logits: Logits, threshold: float, rows: Bool[Tensor, " rows"]) -> Logits:
    """In these rows, drop all tokens whose probability is at least `threshold`, except the least likely of them.

    This is XTC (Weidmann 2024). It makes the text less predictable wherever several continuations are good.
    """
    probabilities = logits.double().softmax(-1)
    order, n_likely = _descending(probabilities), (probabilities >= threshold).sum(-1, keepdim=True)
    rank = torch.empty_like(order).scatter(
        -1, order, torch.arange(logits.shape[-1], device=logits.device).expand_as(order)
    )
    return logits.masked_fill((rank < n_likely - 1) & rows[:, None], NEG_INF)


# Keys are names of settings. The value of the setting is the argument of the filter; None turns the filter off.
FILTERS: dict[str, Callable[[Logits, Any], Logits]] = {
    "top_n_sigma": keep_top_n_sigma,
    "top_k": keep_top_k,
    "top_p": keep_top_p,
    "min_p": keep_min_p,
    "typical_p": keep_typical_p,
    "epsilon_cutoff": keep_epsilon,
    "eta_cutoff": keep_eta,
}


def _log_probs_and_entropy(logits: Logits) -> tuple[Float[Tensor, "rows vocab_size"], Float[Tensor, "rows 1"]]:
    """Return the log-probability of each token and the entropy of each row, in nats."""
    log_probs = logits.double().log_softmax(-1)
    return log_probs, -(log_probs.exp() * log_probs).nan_to_num(0.0).sum(-1, keepdim=True)


def _descending(values: Logits) -> Int[Tensor, "rows vocab_size"]:
    """Return the order of the values in each row, largest first. On a CPU, NumPy sorts five times as fast as torch."""
    if values.device.type != "cpu":
        return values.argsort(dim=-1, descending=True, stable=True)
    return torch.from_numpy((-values).numpy().argsort(-1))


def _keep_until(ordered: Logits, token_ids: Tensor, logits: Logits, p: float) -> Logits:
    """Keep the first tokens of `ordered` whose probabilities add up to p; `token_ids` are the ids of the tokens."""
    if p >= 1:
        return logits
    probabilities = ordered.double().softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # total probability of the tokens before each token
    kept = ordered.masked_fill(before >= p, NEG_INF)
    return torch.empty_like(logits).scatter(-1, token_ids, kept)


def _keep_above(logits: Logits, threshold: Float[Tensor, "rows 1"]) -> Logits:
    too_rare = logits.double().softmax(-1) < threshold
    return logits.masked_fill(too_rare & (logits < logits.amax(-1, keepdim=True)), NEG_INF)


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

    def repetitions(self) -> tuple[Int64[np.ndarray, " positions"], Int64[np.ndarray, " positions"]]:
        """Return each token but the first, and how many tokens just before it match the end of the text."""
        n = max(0, self.length - 1)
        return self._tokens[1 : n + 1], self._overlaps[:n]

    def since(self, breakers: NDArray[np.int64]) -> int:
        """Return the number of tokens after the last sequence breaker."""
        ends = np.flatnonzero(np.isin(self.tokens, breakers))
        return self.length - 1 - int(ends[-1]) if len(ends) else self.length

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """Return whether the text ends with these tokens."""
        return len(tokens) <= self.length and self.tokens[self.length - len(tokens) :].tolist() == list(tokens)


def _overlaps(tokens: Sequence[int]) -> list[int]:
    """Return, for each position, how many tokens up to it match the end of the sequence; 0 at the last position.

    This is the Z-function of the reversed tokens (Gusfield 1997, section 1.3), in linear time.
    """
    backwards, n = tokens[::-1], len(tokens)
    overlaps, begin, end = [0] * n, 0, 0
    for position in range(1, n):
        agree = min(end - position, overlaps[position - begin]) if position < end else 0
        while position + agree < n and backwards[agree] == backwards[position + agree]:
            agree += 1
        overlaps[position] = agree
        if position + agree > end:
            begin, end = position, position + agree
    return overlaps[::-1]


class History:
    """The text of each row of a batch, prompt included, and the number of times that each token was generated."""

    def __init__(self, prompts: Sequence[Sequence[int]], logits: Logits):
        """Start the history with these prompts, one for each row of `logits`."""
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
        for past, token in zip(self.pasts, tokens.tolist(), strict=True):
            past.push(token)
        tokens = copy_to(tokens, self.seen.device)
        self.seen.scatter_(1, tokens[:, None], True)
        self.written.scatter_add_(1, tokens[:, None], torch.ones_like(self.written[:, :1]))

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows."""
        indices = torch.tensor(rows, device=self.seen.device)
        self.seen, self.written = self.seen[indices], self.written[indices]
        self.pasts = [self.pasts[row] for row in rows]


def penalize_repetition(logits: Logits, history: History, penalty: float) -> Logits:
    """Lower the logits of tokens seen before, if the penalty is above 1 (Keskar et al. 2019, CTRL, section 4.1)."""
    return torch.where(history.seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def penalize_presence(logits: Logits, history: History, penalty: float) -> Logits:
    """Lower the logits of generated tokens by the penalty once, however often they occurred (as in OpenAI's API)."""
    return logits - penalty * (history.written > 0)


def penalize_frequency(logits: Logits, history: History, penalty: float) -> Logits:
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
    has_others = (logits.masked_fill(forbidden, NEG_INF) > NEG_INF).any(-1, keepdim=True)
    return logits.masked_fill(forbidden & has_others, NEG_INF)


class Bias:
    """A bias for a text, alone or after a space, split equally among the logits of its tokens.

    So the whole text becomes exp(bias) times as likely wherever it occurs in its usual tokenization.
    """

    def __init__(self, sequences: Sequence[Sequence[int]], bias: float):
        self._sequences, self._bias = [list(sequence) for sequence in sequences if sequence], bias

    def tokens(self, past: RowHistory) -> Iterator[tuple[int, float]]:
        """Yield each token that could come next in the biased text, with its bias."""
        for sequence in self._sequences:
            for n, token in enumerate(sequence):
                if past.ends_with(sequence[:n]):
                    yield token, self._bias / len(sequence)


def add_biases(logits: Logits, history: History, biases: Sequence[Bias]) -> Logits:
    """Add to the logits of each row the biases that apply after its text so far."""
    added = np.zeros(tuple(logits.shape), dtype=np.float32)
    for row, past in enumerate(history.pasts):
        for bias in biases:
            for token, value in bias.tokens(past):
                added[row, token] += value
    return logits + torch.from_numpy(added).to(logits)
