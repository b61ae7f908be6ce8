"""Decoding steps with few operators, for inference: calling many small operators would take most of the time."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from penwright.model.attention import KeysValues, Mask
from penwright.model.block import Block, Encoded, ForwardContext
from penwright.model.cache import Cache, LayerCache, positions_of
from penwright.model.embedding import Rotary
from penwright.model.layers import RMSNorm
from penwright.model.quantized import Int8Linear, int8_rows
from penwright.model.transformer import DecoderOnly, EncoderDecoder

FEW_POSITIONS = 8192  # number of RoPE rotations that are computed at first
Product = Callable[[Tensor], Tensor]  # a function that multiplies rows by a weight matrix


class FullRotation(NamedTuple):
    """A RoPE rotation, with a cosine and a signed sine for each dimension of a head."""

    cosines: Float[Tensor, "rows 1 d_head"]
    sines: Float[Tensor, "rows 1 d_head"]

    @classmethod
    def of(cls, rotary: Rotary, n_positions: int, dtype: torch.dtype) -> "FullRotation":
        """Return the rotations at the first `n_positions` positions, one row per position."""
        positions = torch.arange(n_positions, device=rotary.frequencies.device)[None]
        cosines, sines = (x[0, 0, :, None].to(dtype) for x in rotary.forward(positions))
        return cls(torch.cat([cosines, cosines], -1), torch.cat([-sines, sines], -1))

    def at(self, positions: Int[Tensor, "rows 1"], start: int | None) -> "FullRotation":
        """Return the rotation at the position of each row; `start` is the position if all rows have the same one."""
        places = positions[:, 0] if start is None else slice(start, start + 1)
        return FullRotation(self.cosines[places], self.sines[places])

    def apply(self, x: Float[Tensor, "rows heads d_head"]) -> Float[Tensor, "rows heads d_head"]:
        """Rotate `x` with the same result as Rotation.apply()."""
        return torch.addcmul(x * self.cosines, x.roll(x.shape[-1] // 2, -1), self.sines)


class FusedBlock:
    """A Transformer block with one matrix product for queries, keys and values, and one for the feed-forward input."""

    def __init__(self, block: Block):
        attention, feed_forward = block.attention, block.feed_forward
        self.block, self._attention, self._activation = block, attention, feed_forward.activation
        self._norm_first = block.attention_residual.norm_first
        self._norms = norm_of(block.attention_residual.norm), norm_of(block.feed_forward_residual.norm)
        self._project = product_of([attention.query, attention.key, attention.value])
        gates = [] if feed_forward.gate is None else [feed_forward.gate]
        self._is_gated, self._up = bool(gates), product_of([*gates, feed_forward.up])
        self._output, self._down = product_of([attention.output]), product_of([feed_forward.down])
        self._cross = block.cross_attention
        if self._cross is not None and block.cross_residual is not None:
            self._cross_norm = norm_of(block.cross_residual.norm)
            self._query, self._cross_output = product_of([self._cross.query]), product_of([self._cross.output])

    def __call__(
        self,
        x: Float[Tensor, "rows d_model"],
        context: ForwardContext,
        rotation: FullRotation | None,
        cache: LayerCache,
        encoded: KeysValues | None,
    ) -> Float[Tensor, "rows d_model"]:
        """Run the block on one token of each row."""
        before, between = self._norms
        if self._norm_first:
            x = x + self._attend(before(x), context, rotation, cache)
            x = x if encoded is None else x + self._attend_to_source(self._cross_norm(x), context, encoded)
            return x + self._feed_forward(between(x))
        x = before(x + self._attend(x, context, rotation, cache))
        x = x if encoded is None else self._cross_norm(x + self._attend_to_source(x, context, encoded))
        return between(x + self._feed_forward(x))

    def _attend(
        self,
        x: Float[Tensor, "rows d_model"],
        context: ForwardContext,
        rotation: FullRotation | None,
        cache: LayerCache,
    ) -> Float[Tensor, "rows d_model"]:
        heads, part = self._project(x).unflatten(-1, (-1, self._attention.d_head)), self._attention
        n_kv_heads = cache.cached.keys.shape[1]
        n_queries = heads.shape[1] - 2 * n_kv_heads
        turning, values = heads[:, :-n_kv_heads], heads[:, -n_kv_heads:, None]
        if not isinstance(part.query_norm, nn.Identity):
            turning = torch.cat([part.query_norm(turning[:, :n_queries]), part.key_norm(turning[:, n_queries:])], 1)
        turning = rotation.apply(turning) if rotation else turning
        new = KeysValues(turning[:, n_queries:, None], values)
        source = cache.append(new, context.positions, context.end, context.origins, context.start)
        return self._output(part.kernel(turning[:, :n_queries, None], *source, context.mask, 0.0).flatten(1))

    def _attend_to_source(
        self, x: Float[Tensor, "rows d_model"], context: ForwardContext, encoded: KeysValues
    ) -> Float[Tensor, "rows d_model"]:
        assert self._cross is not None
        heads = self._query(x).unflatten(-1, (-1, self._cross.d_head))
        queries = heads.unflatten(0, (len(encoded.keys), -1)).transpose(1, 2)  # the rows of a source are its targets
        attended = self._cross.kernel(queries, *encoded, context.source_mask, 0.0)
        return self._cross_output(attended.transpose(1, 2).reshape(len(x), -1))

    def _feed_forward(self, x: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
        hidden = self._up(x)
        if self._is_gated:
            gate, hidden = hidden.chunk(2, dim=-1)
            return self._down(self._activation(gate) * hidden)
        return self._down(self._activation(hidden))


class FusedDecoder:
    """A decoder for inference that processes one token of each row per step.

    The weights of the model keep their names and values. Weights with the same input become views of one tensor.
    """

    def __init__(self, model: DecoderOnly | EncoderDecoder):
        self._model, self._stack = model, model.decoder
        self._embedding = model.embedding if isinstance(model, DecoderOnly) else model.target_embedding
        self._blocks = [FusedBlock(block) for block in model.decoder.blocks if isinstance(block, Block)]
        self._norm, self._places = norm_of(model.decoder.norm), self._addresses()
        self._output = product_of([model.output])
        self._rotations = dict[int, FullRotation]()  # by number of positions
        self._rotations_to(1)

    def _rotations_to(self, end: int) -> FullRotation | None:
        """Return the rotations of at least the positions before `end`. CUDA graphs still use earlier tables."""
        rotary, size = self._model.decoder.rotary, max(FEW_POSITIONS, 1 << (end - 1).bit_length())
        size = min(size, self._model.settings.context_length)
        if rotary and size not in self._rotations:
            self._rotations[size] = FullRotation.of(rotary, size, self._embedding.tokens.weight.dtype)
        return self._rotations.get(size)

    def _addresses(self) -> list[int]:
        """Return a weight's memory address. The address changes if the model is moved or converted."""
        return [_weights(block.block.attention.query).data_ptr() for block in self._blocks[:1]]

    @property
    def is_current(self) -> bool:
        """Whether the fused weights are valid: the model has not been moved or converted since it was fused."""
        return self._places == self._addresses()

    def next_logits(
        self, tokens: Int[Tensor, " rows"], cache: Cache, encoded: Encoded | None
    ) -> Float[Tensor, "rows vocab_size"]:
        """Append a token to each row; return the logits of the next tokens. Logits in bfloat16 are cast to float32."""
        settings = self._model.settings
        positions = positions_of(tokens[:, None], cache, settings)
        x = self._embedding(tokens[:, None], positions)[:, 0]
        context = self._stack.context(1, positions, Mask(causal=True, window=settings.window), cache, encoded, None)
        rotations = self._rotations_to(cache.longest + 1)
        rotation = rotations.at(positions, context.start) if rotations else None
        for number, block in enumerate(self._blocks):
            x = block(x, context, rotation, cache.layers[number], encoded.layers[number] if encoded else None)
        logits = self._output(self._norm(x))
        return logits.float() if logits.dtype == torch.bfloat16 else logits


def fuse(model: DecoderOnly | EncoderDecoder) -> None:
    """Give the model a FusedDecoder, unless it has int8 weights on a GPU.

    Call this for inference only: the weights become views.
    """
    if not (isinstance(model.output, Int8Linear) and model.output.scale.is_cuda):
        model.fused = FusedDecoder(model)


def norm_of(norm: nn.Module) -> Product:
    """Return the norm as a function with little overhead."""
    if not isinstance(norm, RMSNorm):
        return norm.forward
    shape, weight, eps = norm.normalized_shape, norm.weight, norm.eps
    return lambda x: torch.rms_norm(x, shape, weight, eps)


def product_of(layers: Sequence[nn.Module]) -> Product:
    """Return a function that multiplies by the weights of all layers; these weights become views of one tensor."""
    if isinstance(layers[0], Int8Linear):
        weight_int8, scale, bias = (
            _together([getattr(layer, name) for layer in layers]) for name in ("weight_int8", "scale", "bias")
        )
        assert weight_int8 is not None and scale is not None
        return partial(int8_rows, weight_int8=weight_int8, scale=scale, scales=scale.float(), bias=bias)
    weight, bias = (_together([getattr(layer, name) for layer in layers]) for name in ("weight", "bias"))
    assert weight is not None
    return lambda x: F.linear(x, weight, bias)


def _together(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenate the tensors, and make each a view of the result."""
    tensors = [part for part in parts if part is not None]
    if len(tensors) < 2:
        return tensors[0] if tensors else None
    whole = torch.cat([tensor.detach() for tensor in tensors])
    for tensor, view in zip(tensors, whole.split([len(tensor) for tensor in tensors]), strict=True):
        tensor.data = view
    return whole


def _weights(layer: nn.Module) -> Tensor:
    weights = layer.weight_int8 if isinstance(layer, Int8Linear) else layer.weight
    assert isinstance(weights, Tensor)
    return weights
