"""Where a position's content comes from, when attention is followed through all layers: attention rollout.

Abnar and Zuidema 2020, section 3: with A_l = (W_l + I) / 2, where W_l is the mean of the heads' weights and I stands
for the residual, the rollout is A_L ... A_1. It takes all that attention moves for equal, whatever the values are.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from penwright.inspection.attention_maps import AttentionMaps, AttentionPart
from penwright.inspection.forward_pass import PartName
from penwright.inspection.tokens import Token


@dataclass(frozen=True)
class Rollout:
    """How much of each target's content comes from each source; of a translator's `decoder` and `cross`, rows sum to 1
    together, else alone."""

    name: PartName
    weights: Float64[np.ndarray, "targets sources"]
    target_tokens: tuple[Token, ...]
    source_tokens: tuple[Token, ...]
    answers: tuple[Token, ...]  # the token that each decoder position goes on to predict, as far as the text goes


def rollouts(maps: AttentionMaps) -> tuple[Rollout, ...]:
    """The rollout of each part of a model; the maps must be those of all layers."""
    parts = {part.name: part for part in maps.parts}
    if "cross" not in parts:
        return tuple(_named(part, rollout(part.weights), maps) for part in maps.parts)
    encoder, decoder, cross = parts["encoder"], parts["decoder"], parts["cross"]
    read = rollout(encoder.weights)
    own, foreign = crossed_rollout(decoder.weights, cross.weights, read)
    return _named(encoder, read, maps), _named(decoder, own, maps), _named(cross, foreign, maps)


def rollout(weights: Float[np.ndarray, "n_layers n_heads length length"]) -> Float64[np.ndarray, "length length"]:
    """A_L ... A_1."""
    total = np.eye(weights.shape[-1])
    for layer in _mixed(weights):
        total = (layer + np.eye(len(layer))) / 2 @ total
    return total


def crossed_rollout(
    decoder: Float[np.ndarray, "n_layers n_heads targets targets"],
    cross: Float[np.ndarray, "n_layers n_heads targets sources"],
    encoder: Float[np.ndarray, "sources sources"],
) -> tuple[Float64[np.ndarray, "targets targets"], Float64[np.ndarray, "targets sources"]]:
    """The same for a decoder with cross-attention: what comes from target tokens, and what from source tokens.

    Each cross-attention C adds like a further attention to a residual: half is kept, half is C times what the encoder's
    rollout says of the sources.
    """
    own, foreign = np.eye(decoder.shape[-1]), np.zeros(cross.shape[-2:])
    for looking_back, looking_over in zip(_mixed(decoder), _mixed(cross), strict=True):
        step = (looking_back + np.eye(len(looking_back))) / 2
        own, foreign = step @ own / 2, (step @ foreign + looking_over @ encoder) / 2
    return own, foreign


def _mixed(
    weights: Float[np.ndarray, "n_layers n_heads targets sources"],
) -> Float64[np.ndarray, "n_layers targets sources"]:
    return weights.astype(np.float64).mean(1)


def _named(part: AttentionPart, weights: Float64[np.ndarray, "targets sources"], maps: AttentionMaps) -> Rollout:
    return Rollout(part.name, weights, part.target_tokens, part.source_tokens, maps.answers)
