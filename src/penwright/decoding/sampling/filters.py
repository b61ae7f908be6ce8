"""Filters that exclude tokens from sampling, in the order in which they are applied."""

from collections.abc import Callable
from math import log, sqrt
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Logits = Float[Tensor, "rows vocab_size"]
NEG_INF = float("-inf")


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
    ordered = logits.sort(dim=-1, descending=True, stable=True)
    return _keep_until(ordered.values, ordered.indices, logits, p)


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
    order = (-log_probs - entropy).abs().sort(dim=-1, stable=True).indices
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
    ordered = probabilities.sort(dim=-1, descending=True, stable=True)
    n_likely = (ordered.values >= threshold).sum(-1, keepdim=True)
    rank = torch.empty_like(ordered.indices).scatter(
        -1, ordered.indices, torch.arange(logits.shape[-1], device=logits.device).expand_as(ordered.indices)
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


def _keep_until(ordered: Logits, places: Tensor, logits: Logits, p: float) -> Logits:
    """Keep the first tokens of `ordered` whose probabilities add up to p; `places` holds their token ids."""
    if p >= 1:
        return logits
    probabilities = ordered.double().softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # total probability of the tokens before each token
    kept = ordered.masked_fill(before >= p, NEG_INF)
    return torch.empty_like(logits).scatter(-1, places, kept)


def _keep_above(logits: Logits, threshold: Float[Tensor, "rows 1"]) -> Logits:
    too_rare = logits.double().softmax(-1) < threshold
    return logits.masked_fill(too_rare & (logits < logits.amax(-1, keepdim=True)), NEG_INF)
