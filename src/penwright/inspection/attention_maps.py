"""Attention heads and attention maps: the weights of every head, in self-attention and cross-attention."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, UInt8
from torch import Tensor

from penwright.errors import UsageError
from penwright.inspection.forward_pass import ForwardPass, PartName, Token, hidden_states
from penwright.model import Model, evaluating
from penwright.model.attention import Attention
from penwright.model.attention_kernels import record_attention
from penwright.model.transformer import EncoderDecoder

LEVELS = 255
MOST_WEIGHTS = 300_000_000  # maximum number of attention weights to keep (1.2 GB in float32)


class Head(NamedTuple):
    """An attention head of a model."""

    part: PartName
    layer: int
    number: int

    def __str__(self) -> str:
        return f"{self.part}.{self.layer}.{self.number}"


def attentions(model: Model) -> dict[tuple[PartName, int], str]:
    """Return the name of each attention module of a model, by part and layer."""
    return {place_of(name): name for name, module in model.named_modules() if isinstance(module, Attention)}


def place_of(name: str) -> tuple[PartName, int]:
    """Return the part and layer of an attention module with a name like decoder.blocks.0.cross_attention."""
    stack, _, layer, which = name.split(".")
    part: PartName = "cross" if which == "cross_attention" else "encoder" if stack == "encoder" else "decoder"
    return part, int(layer)


def all_heads(model: Model) -> list[Head]:
    """Return every head of a model, part by part, layer by layer."""
    places = sorted(attentions(model), key=lambda place: ("encoder", "decoder", "cross").index(place[0]))
    return [Head(part, layer, number) for part, layer in places for number in range(model.settings.n_heads)]


def parse_head(text: str, model: Model) -> Head:
    """Parse a head's name: "3.2" is head 2 of layer 3.

    In a translator, "3.2" is a decoder head; other heads are named "encoder.3.2" or "cross.3.2". Raises UsageError with
    the range of valid names if the model lacks this head.
    """
    heads = all_heads(model)
    parts = list(dict.fromkeys(head.part for head in heads))
    usual = "decoder" if isinstance(model, EncoderDecoder) else parts[0]
    named = text.strip() if text.strip().startswith(tuple(parts)) else f"{usual}.{text.strip()}"
    for head in heads:
        if str(head) == named:
            return head
    last = heads[-1]
    kinds = "" if len(parts) == 1 else f", optionally after {' or '.join(f'{part}.' for part in parts)}"
    raise UsageError(
        f"there is no head '{text}': heads are named LAYER.HEAD, from 0.0 to {last.layer}.{last.number}{kinds}"
    )


@dataclass(frozen=True)
class AttentionPart:
    """The attention weights of the encoder, the decoder or the cross-attention, by layer and head.

    Each row belongs to a target and sums to 1.
    """

    name: PartName
    layers: tuple[int, ...]  # layer number of each entry along the first axis of `weights`
    weights: Float32[np.ndarray, "n_layers n_heads targets sources"]
    target_tokens: tuple[Token, ...]  # the input token at each position; a decoder predicts the next one
    source_tokens: tuple[Token, ...]


@dataclass(frozen=True)
class PackedPart:
    """An AttentionPart with one byte per weight instead of four; `unpack` restores the weights to within 0.004."""

    name: PartName
    layers: tuple[int, ...]
    weights: UInt8[np.ndarray, "n_layers n_heads targets sources"]
    target_tokens: tuple[Token, ...]
    source_tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Alignment:
    """A translator's attention to each source token while it chooses each target token. Rows sum to 1."""

    weights: Float32[np.ndarray, "answers sources"]
    tokens: tuple[Token, ...]  # tokens of the translation, including the end token
    source_tokens: tuple[Token, ...]


@dataclass(frozen=True)
class AttentionMaps:
    """The attention of a whole model.

    A language model has the part `decoder`, and a classifier has `encoder`. A translator has `encoder`, `decoder` and
    `cross`.
    """

    parts: tuple[AttentionPart, ...]
    answers: tuple[Token, ...]  # the next token at each decoder position, up to the end of the text

    def part(self, name: PartName) -> AttentionPart:
        """Return the attention in one part, such as "cross". Raise UsageError if the model does not have this part."""
        for part in self.parts:
            if part.name == name:
                return part
        who = {
            "decoder": "language models and translators",
            "encoder": "translators and classifiers",
            "cross": "translators",
        }
        raise UsageError(f"this model has no {name} attention: only {who[name]} have it")


def attention_maps(model: Model, reading: ForwardPass, layers: Sequence[int] | None = None) -> AttentionMaps:
    """Return the attention weights of all layers, or only of `layers`. For 512 tokens, 96 heads take 100 MB."""
    kept = _recorded(model, reading, layers, lambda weights: weights[0].float().cpu())
    parts = [AttentionPart(name, tuple(maps), _stacked(maps), *reading.sides(name)) for name, maps in kept.items()]
    return AttentionMaps(tuple(parts), reading.answers)


def packed_maps(model: Model, reading: ForwardPass) -> tuple[PackedPart, ...]:
    """Return attention weights packed into bytes, for long texts. At most one layer at a time is unpacked in memory."""
    kept = _recorded(model, reading, None, lambda weights: _packed(weights[0]).cpu())
    return tuple(PackedPart(name, tuple(maps), _stacked(maps), *reading.sides(name)) for name, maps in kept.items())


def alignment(maps: AttentionMaps) -> Alignment:
    """Return the mean attention of all cross-attention heads at the position where each token is chosen.

    A token is chosen at the position of the token before it. All layers are averaged, since the layers that align best
    differ from model to model. Raises UsageError unless the model is a translator.
    """
    cross = maps.part("cross")
    return Alignment(cross.weights.mean((0, 1))[: len(maps.answers)], maps.answers, cross.source_tokens)


def pack(weights: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Pack weights as round(255 sqrt(p)). The root gives more levels to small weights, which are the most frequent."""
    packed: UInt8[np.ndarray, "*shape"] = _packed(torch.from_numpy(weights)).numpy()
    return packed


def unpack(packed: UInt8[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape"]:
    """Restore packed weights: (q / 255)^2."""
    return np.square(packed.astype(np.float32) / LEVELS)


def _packed(weights: Float[Tensor, "*shape"]) -> Tensor:
    return weights.detach().sqrt().mul(LEVELS).round().to(torch.uint8)


@torch.inference_mode()
def _recorded(
    model: Model, reading: ForwardPass, layers: Sequence[int] | None, keep: Callable[[Tensor], Tensor]
) -> dict[PartName, dict[int, Tensor]]:
    """Run the model once, and return the attention weights by part and layer.

    Layers that are not recorded use the fused attention kernel.
    """
    names = {place: name for place, name in attentions(model).items() if layers is None or place[1] in layers}
    if not names:
        deepest = max(layer for _, layer in attentions(model))
        raise UsageError(f"there is no layer {', '.join(map(str, layers or []))}: layers are numbered 0 to {deepest}")
    n_tokens, n_heads = max(len(reading.source), len(reading.target)), len(names) * model.settings.n_heads
    if n_heads * n_tokens**2 > MOST_WEIGHTS:
        raise UsageError(
            f"the text has {n_tokens} tokens, too many for the attention of {n_heads} heads. "
            f"Use at most {isqrt(MOST_WEIGHTS // n_heads)} tokens"
        )
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        maps = {
            place: stack.enter_context(record_attention(model.get_submodule(name), keep))
            for place, name in names.items()
        }
        hidden_states(model, reading)
    kept: dict[PartName, dict[int, Tensor]] = defaultdict(dict)
    for (part, layer), recorded in maps.items():
        (kept[part][layer],) = recorded[""]
    return kept


def _stacked(maps: dict[int, Tensor]) -> np.ndarray:
    return torch.stack(list(maps.values())).numpy()


@dataclass(frozen=True)
class Rollout:
    """Attention rollout: the share of each target's content that comes from each source.

    For a translator, the rows of `decoder` and `cross` sum to 1 together. Otherwise, each row sums to 1.
    """

    name: PartName
    weights: Float64[np.ndarray, "targets sources"]
    target_tokens: tuple[Token, ...]
    source_tokens: tuple[Token, ...]
    answers: tuple[Token, ...]  # the next token at each decoder position, up to the end of the text


def rollouts(maps: AttentionMaps) -> tuple[Rollout, ...]:
    """Compute the rollout of each part of a model; `maps` must include all layers."""
    parts = {part.name: part for part in maps.parts}
    if "cross" not in parts:
        return tuple(_named(part, rollout(part.weights), maps) for part in maps.parts)
    encoder, decoder, cross = parts["encoder"], parts["decoder"], parts["cross"]
    read = rollout(encoder.weights)
    own, foreign = crossed_rollout(decoder.weights, cross.weights, read)
    return _named(encoder, read, maps), _named(decoder, own, maps), _named(cross, foreign, maps)


def rollout(weights: Float[np.ndarray, "n_layers n_heads length length"]) -> Float64[np.ndarray, "length length"]:
    """Return the product A_L ... A_1, where A_l averages the identity (the residual) and layer l's mean attention."""
    total = np.eye(weights.shape[-1])
    for layer in _mean_over_heads(weights):
        total = (layer + np.eye(len(layer))) / 2 @ total
    return total


def crossed_rollout(
    decoder: Float[np.ndarray, "n_layers n_heads targets targets"],
    cross: Float[np.ndarray, "n_layers n_heads targets sources"],
    encoder: Float[np.ndarray, "sources sources"],
) -> tuple[Float64[np.ndarray, "targets targets"], Float64[np.ndarray, "targets sources"]]:
    """Return a decoder's rollout with cross-attention: the shares of target and source tokens in each position.

    Each cross-attention C is treated like self-attention with a residual connection: half of the content is kept, and
    half is C times the encoder's rollout.
    """
    own, foreign = np.eye(decoder.shape[-1]), np.zeros(cross.shape[-2:])
    for to_targets, to_sources in zip(_mean_over_heads(decoder), _mean_over_heads(cross), strict=True):
        step = (to_targets + np.eye(len(to_targets))) / 2
        own, foreign = step @ own / 2, (step @ foreign + to_sources @ encoder) / 2
    return own, foreign


def _mean_over_heads(
    weights: Float[np.ndarray, "n_layers n_heads targets sources"],
) -> Float64[np.ndarray, "n_layers targets sources"]:
    return weights.astype(np.float64).mean(1)


def _named(part: AttentionPart, weights: Float64[np.ndarray, "targets sources"], maps: AttentionMaps) -> Rollout:
    return Rollout(part.name, weights, part.target_tokens, part.source_tokens, maps.answers)
