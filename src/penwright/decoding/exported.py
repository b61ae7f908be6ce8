"""The computations of decoding as modules that take and return only tensors, for compilation ahead of time."""

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from penwright.decoding.ahead_of_time import ModelPart
from penwright.decoding.sampling.topk import MAX_K
from penwright.model.attention import Kernel, KeysValues, swap_kernels
from penwright.model.block import Encoded
from penwright.model.cache import Cache, WholeLayerCache
from penwright.model.cached_attention import stepping_attention
from penwright.model.decoder_only import DecoderOnly
from penwright.model.encoder_decoder import EncoderDecoder


class DecodeStep(ModelPart):
    """A decoding step that reads a token of each row and returns the logits of the next token."""

    def forward(
        self,
        tokens: Int[Tensor, "*rows"],
        lengths: Int[Tensor, "*rows"],
        kept: list[Float[Tensor, "kept_rows n_kv_heads room d_head"]],
        origins: Int[Tensor, "*rows room"] | None,
        source: list[Float[Tensor, "sources n_kv_heads length d_head"]],
        padding: Bool[Tensor, "sources length"] | None,
    ) -> Float[Tensor, "all_rows vocab_size"]:
        """Append a token to each row; return the logits of the next tokens.

        `kept` alternates keys and values, layer by layer, and is updated in place. With sources, `*rows` has one
        dimension for sources and one for beams. The logits are never bfloat16, which is too coarse to rank the best
        tokens.
        """
        tokens, lengths = tokens.flatten()[:, None], lengths.flatten()
        origins = None if origins is None else origins.flatten(0, 1)
        encoded = None if padding is None else Encoded(as_layers(source), padding)
        if torch.compiler.is_exporting():
            with swap_kernels(self.model.decoder, lambda name, _: _kernel_of(name, origins)):
                cache = Cache.over(as_layers(kept), lengths, kind=WholeLayerCache)
                return next_logits(self.model, tokens, cache, encoded)
        return next_logits(self.model, tokens, Cache.over(as_layers(kept), lengths, origins), encoded)


def next_logits(
    model: DecoderOnly | EncoderDecoder,
    tokens: Int[Tensor, "rows targets"],
    cache: Cache,
    encoded: Encoded | None = None,
) -> Float[Tensor, "rows vocab_size"]:
    """Append tokens to the cache; return the logits after the last one, as float32 instead of bfloat16."""
    if isinstance(model, DecoderOnly):
        hidden = model.hidden(tokens, cache=cache)
    else:
        assert encoded is not None
        hidden = model.hidden(tokens, encoded, cache)
    logits = model.output(hidden[:, -1])
    return logits.float() if logits.dtype == torch.bfloat16 else logits


class PromptStep(ModelPart):
    """Prefill: a pass over several tokens of a single row of a decoder-only model."""

    def forward(
        self,
        tokens: Int[Tensor, " targets"],
        length: Int[Tensor, "1"],
        kept: list[Float[Tensor, "1 n_kv_heads room d_head"]],
    ) -> Float[Tensor, "1 vocab_size"]:
        """Append all tokens to `kept`; return the logits after the last one."""
        n_new = tokens.shape[0]
        if torch.compiler.is_exporting():
            with swap_kernels(self.model.decoder, lambda *_: stepping_attention()):
                cache = Cache.over(as_layers(kept), length, kind=WholeLayerCache, n_new=n_new)
                return next_logits(self.model, tokens[None], cache)
        return next_logits(self.model, tokens[None], Cache.over(as_layers(kept), length, n_new=n_new))


def _kernel_of(name: str, origins: Int[Tensor, "rows room"] | None) -> Kernel:
    """Return the kernel of self-attention or cross-attention, by name; cross-attention needs no `origins`."""
    return stepping_attention(None if name.endswith("cross_attention") else origins)


class EncodeStep(ModelPart):
    """The encoder of a translator, which also computes the keys and values for cross-attention."""

    def forward(
        self, sources: Int[Tensor, "sources length"], padding: Bool[Tensor, "sources length"]
    ) -> list[Float[Tensor, "sources n_kv_heads length d_head"]]:
        """Return the keys and values of each layer in turn, as the contiguous tensors that compiled steps require."""
        assert isinstance(self.model, EncoderDecoder)
        encoded = self.model.encode(sources, padding)
        return [x.contiguous() for layer in encoded.layers for x in layer]


class TopKStep(ModelPart):
    """A module that selects the likeliest next tokens of each row."""

    def forward(
        self,
        logits: Float[Tensor, "rows vocab_size"],
        allowed: Int64[Tensor, "all_situations words"],
        situations: Int64[Tensor, " rows"],
    ) -> tuple[Float[Tensor, "rows n"], Int[Tensor, "rows n"], Float[Tensor, " rows"]]:
        """Return the likeliest allowed tokens of each row, as the fields of a MaskedTopK.

        `allowed` holds bit masks of the vocabulary, and `situations` selects the mask of each row by the state of its
        UTF-8.
        """
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.penwright.likeliest(logits, allowed, situations, MAX_K)
        return found


def as_layers(tensors: list[Tensor]) -> tuple[KeysValues, ...]:
    """Group alternating keys and values by layer."""
    return tuple(map(KeysValues, tensors[::2], tensors[1::2]))
