"""What each head looks at: attention weights of every layer, of self- and of cross-attention.

softmax(Q K^T / sqrt(d_head)) (Vaswani et al. 2017, section 3.2.1), kept while the model computes with them. They say
where a head looks, not what follows from it (Jain and Wallace 2019): that is for `ablation.py` to ask.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, UInt8
from torch import Tensor

from penwright.decoding.batches import evaluating
from penwright.errors import UsageError
from penwright.inspection.forward_pass import ForwardPass, PartName, scores
from penwright.inspection.heads import attentions
from penwright.inspection.tokens import Token
from penwright.model import Model
from penwright.model.attention_recording import record_attention

LEVELS = 255


@dataclass(frozen=True)
class AttentionPart:
    """The weights of all heads of one kind: row by row how much a target takes from each source; rows sum to 1."""

    name: PartName
    layers: tuple[int, ...]  # those that the first axis counts
    weights: Float32[np.ndarray, "n_layers n_heads targets sources"]
    target_tokens: tuple[Token, ...]  # those that are read at a position; a decoder predicts the next one there
    source_tokens: tuple[Token, ...]


@dataclass(frozen=True)
class PackedPart:
    """The same in a quarter of the memory: `unpack` gives weights that are wrong by at most 0.004."""

    name: PartName
    layers: tuple[int, ...]
    weights: UInt8[np.ndarray, "n_layers n_heads targets sources"]
    target_tokens: tuple[Token, ...]
    source_tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Alignment:
    """Which source tokens a translator looks at while it chooses each token of the translation; rows sum to 1."""

    weights: Float32[np.ndarray, "answers sources"]
    tokens: tuple[Token, ...]  # of the translation, with the end token
    source_tokens: tuple[Token, ...]


@dataclass(frozen=True)
class AttentionMaps:
    """The attention of a whole model: of a writer `decoder`, of a classifier `encoder`, of a translator all parts."""

    parts: tuple[AttentionPart, ...]
    answers: tuple[Token, ...]  # the token that each decoder position goes on to predict, as far as the text goes

    def part(self, name: PartName) -> AttentionPart:
        """The part of this name; raises UsageError where the model has none."""
        for part in self.parts:
            if part.name == name:
                return part
        who = {"decoder": "writers and translators", "encoder": "translators and classifiers", "cross": "translators"}
        raise UsageError(f"this model has no {name} attention: only {who[name]} have it")


def attention_maps(model: Model, reading: ForwardPass, layers: Sequence[int] | None = None) -> AttentionMaps:
    """Of all layers, or of those named: 96 heads over 512 tokens are 100 MB."""
    kept = _recorded(model, reading, layers, lambda weights: weights[0].float().cpu())
    parts = [AttentionPart(name, tuple(maps), _stacked(maps), *reading.sides(name)) for name, maps in kept.items()]
    return AttentionMaps(tuple(parts), reading.answers)


def packed_maps(model: Model, reading: ForwardPass, layers: Sequence[int] | None = None) -> tuple[PackedPart, ...]:
    """The same for long texts, packed layer by layer, so that never more than one layer is held in full."""
    kept = _recorded(model, reading, layers, lambda weights: _packed(weights[0]).cpu())
    return tuple(PackedPart(name, tuple(maps), _stacked(maps), *reading.sides(name)) for name, maps in kept.items())


def alignment(maps: AttentionMaps) -> Alignment:
    """The mean of all cross-attention heads, at the positions where each token is chosen (that of the token before it).

    Which layers align best differs from model to model, so all count here; raises UsageError but for a translator.
    """
    cross = maps.part("cross")
    return Alignment(cross.weights.mean((0, 1))[: len(maps.answers)], maps.answers, cross.source_tokens)


def pack(weights: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """255 sqrt(p), rounded: the root spends the levels on small weights, which are most."""
    packed: UInt8[np.ndarray, "*shape"] = _packed(torch.from_numpy(weights)).numpy()
    return packed


def unpack(packed: UInt8[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape"]:
    """(q / 255)^2."""
    return np.square(packed.astype(np.float32) / LEVELS)


def _packed(weights: Float[Tensor, "*shape"]) -> Tensor:
    return weights.detach().sqrt().mul(LEVELS).round().to(torch.uint8)


@torch.inference_mode()
def _recorded(
    model: Model, reading: ForwardPass, layers: Sequence[int] | None, keep: Callable[[Tensor], Tensor]
) -> dict[PartName, dict[int, Tensor]]:
    """What is kept of one pass, by part and layer; layers that were not asked for are not computed with weights."""
    wanted = {place: name for place, name in attentions(model).items() if layers is None or place[1] in layers}
    if not wanted:
        deepest = max(layer for _, layer in attentions(model))
        raise UsageError(f"there is no layer {', '.join(map(str, layers or []))}: layers are called 0 to {deepest}")
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        maps = {
            place: stack.enter_context(record_attention(model.get_submodule(name), keep))
            for place, name in wanted.items()
        }
        scores(model, reading)
    kept: dict[PartName, dict[int, Tensor]] = defaultdict(dict)
    for (part, layer), recorded in maps.items():
        (kept[part][layer],) = recorded[""]
    return kept


def _stacked(maps: dict[int, Tensor]) -> np.ndarray:
    return torch.stack(list(maps.values())).numpy()


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
