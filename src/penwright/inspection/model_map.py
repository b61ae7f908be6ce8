"""The data for the picture of a whole model: an overview of one forward pass, and the details of one layer.

The overview (`ModelMap`) has numbers for every sublayer at every position, and the attention of one position.
`place_detail` has the vectors of an embedding, a block or the output layer at one position. For the queries, keys and
values of a head, see `arithmetic.py`. No result contains a weight matrix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor, nn

from penwright.errors import UsageError
from penwright.inspection.forward_pass import (
    ForwardPass,
    PartName,
    Token,
    TopPredictions,
    require_position,
    top_predictions,
)
from penwright.inspection.logit_attribution import read_out
from penwright.inspection.recording import Kind, Recording, StackName, StackRecord, SublayerRecord, record
from penwright.model import Model, evaluating
from penwright.model.transformer import EncoderOnly


@dataclass(frozen=True)
class SublayerMap:
    """The overview of a sublayer: vector norms at all positions and, for attention, the weights at one position."""

    part: PartName
    layer: int
    kind: Kind
    added: Float32[np.ndarray, " positions"]  # norm of the vector that the sublayer adds
    after: Float32[np.ndarray, " positions"]  # norm of the residual stream after the sublayer
    weights: Float32[np.ndarray, "n_heads sources"]  # attention weights at the position; empty for a feed-forward layer
    head_added: Float32[np.ndarray, " n_heads"]  # norm of the vector that each head adds at the position


@dataclass(frozen=True)
class StackMap:
    """The overview of an encoder or a decoder."""

    name: StackName
    tokens: tuple[Token, ...]
    position: int  # the position whose attention is shown
    embedded: Float32[np.ndarray, " positions"]  # norm of the sum of each token vector and its position vector
    sublayers: tuple[SublayerMap, ...]


@dataclass(frozen=True)
class ModelMap:
    """A forward pass through a whole model, with the attention and the prediction at one position."""

    stacks: tuple[StackMap, ...]
    answers: tuple[Token, ...]  # the next token at each decoder position, up to the end of the text
    position: int  # position in the decoder, or in the encoder if there is no decoder
    d_model: int
    layer_texts: tuple[str, ...]  # the likeliest outcome after the embedding and after each layer (logit lens)
    layer_probabilities: Float64[np.ndarray, " n_layers_and_one"]
    outcomes: TopPredictions  # the likeliest outcomes
    logits: Float64[np.ndarray, " k"]  # logits of the likeliest outcomes


@dataclass(frozen=True)
class SublayerDetail:
    """A sublayer at one position. Vectors that this kind of sublayer lacks are empty."""

    part: PartName
    layer: int
    kind: Kind
    before: Float32[np.ndarray, " d_model"]  # the residual stream before the sublayer
    read: Float32[np.ndarray, " d_model"]  # the input of the sublayer
    hidden: Float32[np.ndarray, " d_ff"]  # the hidden layer of a feed-forward network
    output: Float32[np.ndarray, " d_model"]
    after: Float32[np.ndarray, " d_model"]  # the residual stream after the sublayer
    head_added: Float32[np.ndarray, " n_heads"]
    head_sources: tuple[int, ...]  # the position that each head attends to most
    head_weights: Float32[np.ndarray, " n_heads"]  # the largest attention weight of each head
    sources: tuple[Token, ...]  # the tokens that heads attend to


@dataclass(frozen=True)
class PlaceDetail:
    """The vectors of one token position in one part of a model.

    `place` names the part: "decoder.embedding", a block such as "decoder.2", or "output". `names` are the names of the
    `vectors`: "token", "position", "sum" and "embedded" for an embedding; "stream", "normalized" and "pooled" for the
    output layer. The vectors that a model does not have are left out. The vectors of a block are in `sublayers`.
    """

    place: str
    position: int
    token: Token
    names: tuple[str, ...]
    vectors: tuple[Float32[np.ndarray, " d_model"], ...]
    sublayers: tuple[SublayerDetail, ...]  # the sublayers of a block; empty for an embedding or the output layer
    outcomes: TopPredictions | None  # the likeliest outcomes; only for the output layer, otherwise None
    logits: Float64[np.ndarray, " k"]
    log_sum: float  # log-sum-exp of the logits of all outcomes


@torch.no_grad()
def model_map(model: Model, reading: ForwardPass, names: Sequence[str], position: int, k: int = 10) -> ModelMap:
    """Return an overview of a forward pass at a position of the decoder or, in a model without one, of the encoder."""
    require_position(position, len(reading.target or reading.source))
    row = 0 if isinstance(model, EncoderOnly) else position
    recording = record(model, reading, row)
    last = recording.stacks[-1]
    at_source = _most_attended(recording, position) if len(recording.stacks) > 1 else 0
    stacks = [_stack_map(recording, each, position if each is last else at_source) for each in recording.stacks]
    blocks = [each for each in last.sublayers if each.kind == "feed_forward"]
    with evaluating(model):
        streams = torch.stack([last.embedded, *(each.after for each in blocks)])
        streams = streams if isinstance(model, EncoderOnly) else streams[:, [position]]
        by_layer = read_out(model, streams)[:, 0].softmax(-1)
    likeliest = top_predictions(by_layer, names, 1)
    outcomes = top_predictions(recording.logits.softmax(-1), names, k)
    return ModelMap(
        tuple(stacks),
        reading.answers,
        position,
        last.embedded.shape[1],
        tuple(str(texts[0]) for texts in likeliest.texts),  # type: ignore[index]  # an object array
        likeliest.probabilities[:, 0],
        outcomes,
        recording.logits.cpu().numpy()[outcomes.ids],
    )


@torch.no_grad()
def place_detail(
    model: Model, reading: ForwardPass, names: Sequence[str], place: str, position: int, k: int = 10
) -> PlaceDetail:
    """Return the vectors at a place: "decoder.embedding", a block such as "decoder.2", or "output"."""
    if place == "output":
        require_position(position, len(reading.target or reading.source))
    is_last = place == "output" and not isinstance(model, EncoderOnly)
    recording = record(model, reading, position if is_last else 0)
    stacks = {each.name: each for each in recording.stacks}
    name, _, where = place.partition(".")
    stack = recording.stacks[-1] if place == "output" else stacks.get(name)  # type: ignore[call-overload]  # any text
    if stack is None or not (place == "output" or where == "embedding" or where.isdecimal()):
        raise UsageError(f"this model has no place called '{place}'. Choose one of {_places(recording)}")
    tokens = reading.sides(stack.name)[0]
    require_position(position, len(tokens))
    empty = np.zeros(0)
    token = tokens[position]
    if place == "output":
        return _output(model, recording, token, position, names, k)
    if where == "embedding":
        token_vector, summed = stack.token_vectors[position], stack.summed[position]
        parts = [("token", token_vector)]
        if stack.embedding.positions is not None:
            parts.append(("position", summed - token_vector))
        if not isinstance(stack.embedding.norm, nn.Identity):
            parts.append(("sum", summed))
        parts.append(("embedded", stack.embedded[position]))
        labels, vectors = zip(*parts, strict=True)
        return PlaceDetail(place, position, token, labels, tuple(map(_numbers, vectors)), (), None, empty, 0.0)
    block = [each for each in stack.sublayers if each.layer == int(where)]
    if not block:
        raise UsageError(f"this model has no place called '{place}'. Choose one of {_places(recording)}")
    details = tuple(_sublayer(each, position, reading.sides(each.part)[1]) for each in block)
    return PlaceDetail(place, position, token, (), (), details, None, empty, 0.0)


def _stack_map(recording: Recording, stack: StackRecord, position: int) -> StackMap:
    tokens = recording.reading.sides(stack.name)[0]
    sublayers = tuple(_sublayer_map(each, position) for each in stack.sublayers)
    return StackMap(stack.name, tokens, position, _lengths(stack.embedded), sublayers)


def _sublayer_map(sublayer: SublayerRecord, position: int) -> SublayerMap:
    weights, added = np.zeros((0, 0), np.float32), np.zeros(0, np.float32)
    if sublayer.kind == "attention":
        weights = _numbers(_weights(sublayer, position))
        added = _lengths(sublayer.head_outputs(position)[:, 0])
    return SublayerMap(
        sublayer.part,
        sublayer.layer,
        sublayer.kind,
        _lengths(sublayer.output),
        _lengths(sublayer.after),
        weights,
        added,
    )


def _sublayer(sublayer: SublayerRecord, position: int, sources: tuple[Token, ...]) -> SublayerDetail:
    vectors = (sublayer.before, sublayer.read, sublayer.output, sublayer.after)
    before, read, output, after = (_numbers(each[position]) for each in vectors)
    if sublayer.kind == "feed_forward":
        hidden, empty = _numbers(sublayer.hidden[position]), np.zeros(0, np.float32)
        return SublayerDetail(
            sublayer.part, sublayer.layer, sublayer.kind, before, read, hidden, output, after, empty, (), empty, ()
        )
    weights = _weights(sublayer, position)
    return SublayerDetail(
        sublayer.part,
        sublayer.layer,
        sublayer.kind,
        before,
        read,
        np.zeros(0, np.float32),
        output,
        after,
        _lengths(sublayer.head_outputs(position)[:, 0]),
        tuple(weights.argmax(-1).tolist()),
        _numbers(weights.amax(-1)),
        sources,
    )


def _output(
    model: Model, recording: Recording, token: Token, position: int, names: Sequence[str], k: int
) -> PlaceDetail:
    stack = recording.stacks[-1]
    logits = recording.logits
    outcomes = top_predictions(logits.softmax(-1), names, k)
    vectors = {"stream": stack.output[position]}
    with evaluating(model):
        normalized = stack.stack.norm(stack.output)
    if not isinstance(stack.stack.norm, nn.Identity):
        vectors["normalized"] = normalized[position]
    if isinstance(model, EncoderOnly):
        is_token = torch.ones_like(normalized[None, :, 0], dtype=torch.bool)
        vectors["pooled"] = model.pool(normalized[None], is_token)[0]
    return PlaceDetail(
        "output",
        position,
        token,
        tuple(vectors),
        tuple(map(_numbers, vectors.values())),
        (),
        outcomes,
        logits.cpu().numpy()[outcomes.ids],
        float(logits.logsumexp(-1)),
    )


def _most_attended(recording: Recording, position: int) -> int:
    """Return the source position with the most cross-attention from a target position, averaged over all heads."""
    total = torch.stack([_weights(each, position).mean(0) for each in recording.sublayers("cross")]).mean(0)
    return int(total.argmax())


def _weights(sublayer: SublayerRecord, position: int) -> Tensor:
    """Return the attention weights of one position, by head."""
    queries, keys = sublayer.heads.queries[:, position], sublayer.heads.keys
    scores = torch.einsum("hd,hsd->hs", queries * queries.shape[-1] ** -0.5, keys)
    mask, sources = sublayer.heads.mask, torch.arange(keys.shape[1], device=keys.device)
    allowed = sources <= position if mask.is_causal else None
    if mask.allowed is not None:
        allowed = mask.allowed[0, 0].expand(sublayer.heads.queries.shape[1], -1)[position]
    return (scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)).softmax(-1)


def _lengths(vectors: Tensor) -> Float32[np.ndarray, " rows"]:
    return _numbers(vectors.norm(dim=-1))


def _numbers(values: Tensor) -> Float32[np.ndarray, "*shape"]:
    array: np.ndarray = values.float().cpu().numpy()
    return array


def _places(recording: Recording) -> str:
    stacks = [
        f"{each.name}.embedding, {each.name}.0 to {each.name}.{each.sublayers[-1].layer}" for each in recording.stacks
    ]
    return f"{', '.join(stacks)} and output"
