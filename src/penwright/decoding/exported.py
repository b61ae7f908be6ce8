"""The computations of decoding as functions of tensors, with example inputs, for ahead-of-time compilation."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from penwright.decoding.ahead_of_time import Input, ModelPart
from penwright.decoding.sampling.topk import MAX_K
from penwright.decoding.sampling.utf8 import Utf8Rules
from penwright.model.attention import Kernel, KeysValues, swap_kernels
from penwright.model.attention_kernels import stepping_attention
from penwright.model.block import Encoded
from penwright.model.cache import ROOM, Cache, WholeLayerCache
from penwright.model.embedding import Embedding
from penwright.model.transformer import DecoderOnly, EncoderDecoder

# "one": a step of one row. "many": a step of several rows. "prompt": prefill of one row. "sources": the encoder.
# "best": selection of the likeliest tokens.
Part = Literal["one", "many", "prompt", "sources", "best"]
# the arguments of DecodeStep.forward
Inputs = tuple[Tensor, Tensor, list[Tensor], Tensor | None, list[Tensor], Tensor | None]
N_SOURCES, N_BEAMS, N_TOKENS = 3, 2, 8
MOST_TARGETS = 64  # maximum number of prompt tokens per pass
NEAR = 0.05  # tolerated relative error of logits: with int8 and bfloat16, the order of operations changes the rounding


class DecodeStep(ModelPart):
    """A decoding step that appends one token to each row and returns the logits of the next tokens."""

    def forward(
        self,
        tokens: Int[Tensor, "*rows"],
        lengths: Int[Tensor, "*rows"],
        cached: list[Float[Tensor, "cached_rows n_kv_heads room d_head"]],
        origins: Int[Tensor, "*rows room"] | None,
        source: list[Float[Tensor, "sources n_kv_heads length d_head"]],
        is_token: Bool[Tensor, "sources length"] | None,
    ) -> Float[Tensor, "all_rows vocab_size"]:
        """Append a token to each row; return the logits of the next tokens.

        `cached` alternates keys and values, layer by layer, and is updated in place. With sources, `*rows` has one
        dimension for sources and one for beams. The logits are never bfloat16, which is too coarse to rank the best
        tokens.
        """
        tokens, lengths = tokens.flatten()[:, None], lengths.flatten()
        origins = None if origins is None else origins.flatten(0, 1)
        encoded = None if is_token is None else Encoded(as_layers(source), is_token)
        if torch.compiler.is_exporting():
            with swap_kernels(self.model.decoder, lambda name, _: _kernel_of(name, origins)):
                cache = Cache.over(as_layers(cached), lengths, kind=WholeLayerCache)
                return next_logits(self.model, tokens, cache, encoded)
        return step_logits(self.model, tokens[:, 0], Cache.over(as_layers(cached), lengths, origins), encoded)


def next_logits(
    model: DecoderOnly | EncoderDecoder,
    tokens: Int[Tensor, "rows targets"],
    cache: Cache,
    encoded: Encoded | None = None,
) -> Float[Tensor, "rows vocab_size"]:
    """Append tokens to the cache; return the logits after the last one. Logits in bfloat16 are cast to float32."""
    if isinstance(model, DecoderOnly):
        hidden = model.hidden(tokens, cache=cache)
    else:
        assert encoded is not None
        hidden = model.hidden(tokens, encoded, cache)
    return output_logits(model, hidden[:, -1])


def output_logits(
    model: DecoderOnly | EncoderDecoder, hidden: Float[Tensor, "rows d_model"]
) -> Float[Tensor, "rows vocab_size"]:
    """Return the logits of these hidden states. Logits in bfloat16 are cast to float32."""
    logits = model.output(hidden)
    return logits.float() if logits.dtype == torch.bfloat16 else logits


def step_logits(
    model: DecoderOnly | EncoderDecoder, tokens: Int[Tensor, " rows"], cache: Cache, encoded: Encoded | None
) -> Float[Tensor, "rows vocab_size"]:
    """Append a token to each row of the cache, with few operators if the model is fused; return the next logits."""
    fused = model.fused
    if fused is not None and fused.is_current:
        return fused.next_logits(tokens, cache, encoded)
    return next_logits(model, tokens[:, None], cache, encoded)


class PromptStep(ModelPart):
    """Prefill: a pass over several tokens of a single row of a decoder-only model."""

    def forward(
        self,
        tokens: Int[Tensor, " targets"],
        length: Int[Tensor, "1"],
        cached: list[Float[Tensor, "1 n_kv_heads room d_head"]],
    ) -> Float[Tensor, "1 vocab_size"]:
        """Append all tokens to `cached`; return the logits after the last one."""
        n_new = tokens.shape[0]
        if torch.compiler.is_exporting():
            with swap_kernels(self.model.decoder, lambda *_: stepping_attention()):
                cache = Cache.over(as_layers(cached), length, kind=WholeLayerCache, n_new=n_new)
                return next_logits(self.model, tokens[None], cache)
        return next_logits(self.model, tokens[None], Cache.over(as_layers(cached), length, n_new=n_new))


def _kernel_of(name: str, origins: Int[Tensor, "rows room"] | None) -> Kernel:
    """Return the attention kernel for the module with this name; cross-attention needs no `origins`."""
    return stepping_attention(None if name.endswith("cross_attention") else origins)


class EncodeStep(ModelPart):
    """The encoder of a translator, which also computes the keys and values for cross-attention."""

    def forward(
        self, sources: Int[Tensor, "sources length"], is_token: Bool[Tensor, "sources length"]
    ) -> list[Float[Tensor, "sources n_kv_heads length d_head"]]:
        """Return the keys and values of each layer in turn, as the contiguous tensors that compiled steps require."""
        assert isinstance(self.model, EncoderDecoder)
        encoded = self.model.encode(sources, is_token)
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

        `allowed` holds bit masks of the vocabulary, and `situations` selects the mask of each row by its UTF-8 state.
        """
        topk: tuple[Tensor, Tensor, Tensor] = torch.ops.penwright.masked_topk(logits, allowed, situations, MAX_K)
        return topk


def is_near(actual: Tensor, expected: Tensor) -> bool:
    """Return whether a tensor equals the expected one up to rounding. Positions where NaN is expected are ignored."""
    known = ~expected.isnan()  # logits are NaN if training diverged
    error = (actual - expected)[known].float().norm()
    return bool(error <= NEAR * expected[known].float().norm())


def as_layers(tensors: list[Tensor]) -> tuple[KeysValues, ...]:
    """Group alternating keys and values by layer."""
    return tuple(map(KeysValues, tensors[::2], tensors[1::2]))


class Example(NamedTuple):
    """Inputs for export, and the dimensions of each input that may vary."""

    inputs: tuple[Input, ...]  # distinct tensors, since torch.export treats repeated tensors as one input
    shapes: tuple[object, ...]

    def drawn(self) -> tuple[Input, ...]:
        """Fill the floating-point inputs with random numbers. Return all inputs."""
        generator = torch.Generator().manual_seed(0)
        for value in self.inputs:
            for tensor in [value] if isinstance(value, Tensor) else value or []:
                if tensor.is_floating_point():
                    tensor.normal_(generator=generator)
        return self.inputs


def example_of(model: DecoderOnly | EncoderDecoder, part: Part) -> Example:
    """Return example inputs for part of a model; the numbers of rows (unless 1), cached and source tokens may vary."""
    if part == "sources":
        return _sources_example(model)
    if part == "best":
        return _best_example(model)
    if part == "prompt":
        return _prompt_example(model)
    many = part == "many"
    if isinstance(model, DecoderOnly):
        return _generation_example(model, many=many)
    return _translation_example(model, *((N_SOURCES, N_BEAMS) if many else (1, 1)))


def _dimension(name: str, longest: int = 2**20) -> object:
    return torch.export.Dim(name, min=2, max=longest)


def _sources_example(model: DecoderOnly | EncoderDecoder) -> Example:
    tokens = torch.ones(N_SOURCES, N_TOKENS, dtype=torch.long)
    shape = {0: _dimension("sources"), 1: _dimension("length", model.settings.context_length)}
    return Example((tokens, tokens > 0), (shape, shape))


def _best_example(model: DecoderOnly | EncoderDecoder) -> Example:
    vocab_size = _embedding(model).tokens.num_embeddings
    inputs = (torch.zeros(N_SOURCES, vocab_size), Utf8Rules.free(vocab_size).bits, torch.zeros(N_SOURCES).long())
    rows = {0: _dimension("rows")}
    return Example(inputs, (rows, None, rows))


def _generation_example(model: DecoderOnly, *, many: bool) -> Example:
    rows = {0: _dimension("rows")} if many else {}
    tokens = torch.zeros(N_SOURCES if many else 1, dtype=torch.long)
    cached = _cache_tensors(model, len(tokens))
    cached_shape = {**rows, 2: _dimension("room", model.settings.context_length)}
    inputs: Inputs = (tokens, tokens.clone(), cached, None, [], None)
    return Example(inputs, (rows, rows, [cached_shape] * len(cached), None, [], None))


def _prompt_example(model: DecoderOnly | EncoderDecoder) -> Example:
    tokens, cached = torch.zeros(N_SOURCES, dtype=torch.long), _cache_tensors(model, 1)
    room = {2: _dimension("room", model.settings.context_length)}
    inputs = (tokens, torch.zeros(1, dtype=torch.long), cached)
    return Example(inputs, ({0: _dimension("targets", MOST_TARGETS)}, None, [room] * len(cached)))


def _translation_example(model: EncoderDecoder, n_sources: int, n_beams: int) -> Example:
    many = n_beams > 1
    tokens = torch.zeros(n_sources, n_beams, dtype=torch.long)
    cached = _cache_tensors(model, tokens.numel() + many)  # the cache may also hold rows of finished texts
    source = _keys_values(_embedding(model).tokens.weight, model, n_sources, N_TOKENS)
    is_token = torch.ones(n_sources, N_TOKENS, dtype=torch.bool)
    length, room = {2: _dimension("length")}, {2: _dimension("room", model.settings.context_length)}
    sources = {0: _dimension("sources")} if n_sources > 1 else {}
    rows = {**sources, 1: _dimension("beams")} if many else {}
    cached_shapes = [{0: _dimension("cached_rows"), **room} if many else room] * len(cached)
    origins = torch.zeros(n_sources, n_beams, cached[0].shape[2], dtype=torch.long) if many else None
    return Example(
        (tokens, tokens.clone(), cached, origins, source, is_token),
        (
            rows,
            rows,
            cached_shapes,
            {**rows, **room} if many else None,
            [{**sources, **length}] * len(source),
            {**sources, 1: length[2]},
        ),
    )


def _cache_tensors(model: DecoderOnly | EncoderDecoder, n_rows: int) -> list[Tensor]:
    return _keys_values(model.decoder.cache_like, model, n_rows, min(ROOM, model.settings.context_length))


def _keys_values(like: Tensor, model: DecoderOnly | EncoderDecoder, n: int, length: int) -> list[Tensor]:
    shape = (n, model.settings.n_kv_heads, length, model.settings.d_head)
    return [like.new_zeros(shape) for _ in range(2 * len(model.decoder.blocks))]


def _embedding(model: DecoderOnly | EncoderDecoder) -> Embedding:
    return model.embedding if isinstance(model, DecoderOnly) else model.target_embedding
