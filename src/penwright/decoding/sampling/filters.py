"""Which tokens may be drawn: rules that keep a part of the distribution, in the order in which they are applied."""

from collections.abc import Callable
from math import log, sqrt
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Logits = Float[Tensor, "rows vocab_size"]
NEVER = float("-inf")


def keep_top_n_sigma(logits: Logits, n: float) -> Logits:
    """Only tokens within n standard deviations of the best score (Tang et al. 2024); no temperature changes which."""
    possible = logits > NEVER
    n_possible = possible.sum(-1, keepdim=True)
    mean = logits.where(possible, 0).sum(-1, keepdim=True) / n_possible
    variance = (logits - mean).square().where(possible, 0).sum(-1, keepdim=True) / n_possible
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) - n * variance.sqrt(), NEVER)


def keep_top_k(logits: Logits, k: int) -> Logits:
    """Only the k best tokens, of equal ones as many as fit."""
    best = logits.topk(min(k, logits.shape[-1]), dim=-1)
    return torch.full_like(logits, NEVER).scatter(-1, best.indices, best.values)


def keep_top_p(logits: Logits, p: float) -> Logits:
    """Only the fewest best tokens that have probability p together (Holtzman et al. 2020, nucleus sampling)."""
    ordered = logits.sort(dim=-1, descending=True, stable=True)
    return _until(ordered.values, ordered.indices, logits, p)


def keep_min_p(logits: Logits, share: float) -> Logits:
    """Only tokens with at least this share of the best one's probability (Nguyen et al. 2024, min-p)."""
    if share == 0:
        return logits
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + log(share), NEVER)


def keep_typical_p(logits: Logits, p: float) -> Logits:
    """Only tokens about as surprising as is to be expected here, p together (Meister et al. 2023, typical sampling).

    The likeliest token goes with the others where it tells too little.
    """
    log_probs, entropy = _surprise(logits)
    order = (-log_probs - entropy).abs().sort(dim=-1, stable=True).indices
    return _until(logits.gather(-1, order), order, logits, p)


def keep_epsilon(logits: Logits, epsilon: float) -> Logits:
    """Only tokens of at least this probability, and the best (Hewitt et al. 2022, epsilon sampling)."""
    return _keep_above(logits, torch.full_like(logits[:, :1], epsilon, dtype=torch.float64))


def keep_eta(logits: Logits, epsilon: float) -> Logits:
    """The same with a threshold that falls where much is possible (Hewitt et al. 2022, eta sampling, equation 5)."""
    _, entropy = _surprise(logits)
    return _keep_above(logits, torch.clamp(sqrt(epsilon) * torch.exp(-entropy), max=epsilon))


def exclude_top_choices(logits: Logits, threshold: float, rows: Bool[Tensor, " rows"]) -> Logits:
    """In these rows, of all tokens with at least this probability only the least likely stays ("XTC", Weidmann 2024).

    The unlikely ones stay as well, so that the text leaves the beaten track where there is more than one good way.
    """
    probabilities = logits.double().softmax(-1)
    ordered = probabilities.sort(dim=-1, descending=True, stable=True)
    n_likely = (ordered.values >= threshold).sum(-1, keepdim=True)
    rank = torch.empty_like(ordered.indices).scatter(
        -1, ordered.indices, torch.arange(logits.shape[-1], device=logits.device).expand_as(ordered.indices)
    )
    return logits.masked_fill((rank < n_likely - 1) & rows[:, None], NEVER)


# The names are those of the settings, each with the value that its function takes; None leaves a filter out.
FILTERS: dict[str, Callable[[Logits, Any], Logits]] = {
    "top_n_sigma": keep_top_n_sigma,
    "top_k": keep_top_k,
    "top_p": keep_top_p,
    "min_p": keep_min_p,
    "typical_p": keep_typical_p,
    "epsilon_cutoff": keep_epsilon,
    "eta_cutoff": keep_eta,
}


def _surprise(logits: Logits) -> tuple[Float[Tensor, "rows vocab_size"], Float[Tensor, "rows 1"]]:
    """The log-probability of each token in nats, and the entropy of each row: what is to be expected of it."""
    log_probs = logits.double().log_softmax(-1)
    return log_probs, -(log_probs.exp() * log_probs).nan_to_num(0.0).sum(-1, keepdim=True)


def _until(ordered: Logits, places: Tensor, logits: Logits, p: float) -> Logits:
    """The first tokens of this order that have probability p together; `places` are their numbers in `logits`."""
    if p >= 1:
        return logits
    probabilities = ordered.double().softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # what the tokens before each have together
    kept = ordered.masked_fill(before >= p, NEVER)
    return torch.empty_like(logits).scatter(-1, places, kept)


def _keep_above(logits: Logits, threshold: Float[Tensor, "rows 1"]) -> Logits:
    too_rare = logits.double().softmax(-1) < threshold
    return logits.masked_fill(too_rare & (logits < logits.amax(-1, keepdim=True)), NEVER)
