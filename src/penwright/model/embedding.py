"""Embeddings of tokens, position encodings (added vectors or RoPE), and the output layer."""

from math import ceil, floor, log, pi, sqrt
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from penwright.config import ModelSettings, RotaryScaling
from penwright.model.layers import Dropout, make_norm

SinusoidLayout = Literal["interleaved", "halves", "tensor2tensor"]


class Embedding(nn.Module):
    """The sum of token embeddings and position encodings, with dropout and optional scaling and norm."""

    def __init__(self, vocab_size: int, settings: ModelSettings, tokens: nn.Embedding | None = None):
        """Make an embedding; `tokens` is the token table of another embedding, to be shared."""
        super().__init__()
        self.tokens = tokens if tokens is not None else nn.Embedding(vocab_size, settings.d_model)
        self.scale = sqrt(settings.d_model) if settings.scale_embeddings else 1.0
        self.positions = added_positions(settings)
        self.second = nn.Embedding(1, settings.d_model) if settings.token_types == 2 else None
        norm = make_norm(settings.d_model, settings.norm, bias=settings.bias)
        self.norm = norm if settings.embedding_norm else nn.Identity()
        self.dropout = Dropout(settings.dropout)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        positions: Int[Tensor, "rows length"],
        in_second: Bool[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the vectors of these tokens at these positions. `in_second` is True in the second text of a pair."""
        x = self.tokens(tokens)
        x = x if self.scale == 1 else x * self.scale
        x = x if self.positions is None else x + self.positions(positions).to(x.dtype)
        if self.second is not None and in_second is not None:
            x = x + in_second[..., None] * self.second.weight[0].to(x.dtype)
        return self.dropout(self.norm(x))


def output_layer(vocab_size: int, settings: ModelSettings, tied: nn.Embedding) -> nn.Linear:
    """Make the output layer (hidden states to logits). It shares the matrix of `tied` unless the settings forbid it."""
    layer = nn.Linear(settings.d_model, vocab_size, bias=settings.output_bias)
    if settings.tie_embeddings != "none":
        layer.weight = tied.weight
    return layer


class Sinusoidal(nn.Module):
    """Sinusoidal encodings: sin and cos of p / 10000^(2i/d) for any position p (Vaswani et al. 2017, section 3.5).

    The layout "interleaved" alternates sines and cosines, as in the paper; "halves" (Marian) puts all sines first.
    "tensor2tensor" (M2M100) also puts all sines first, and its lowest frequency is exactly 1/10000.
    """

    frequencies: Float[Tensor, " half_width"]

    def __init__(self, d_model: int, layout: SinusoidLayout = "interleaved", offset: int = 0):
        super().__init__()
        self.layout, self.offset = layout, offset
        last = d_model - 2 if layout == "tensor2tensor" else d_model
        # computed on the CPU even inside shapes_only()
        exponents = torch.arange(0, d_model, 2, device="cpu") / max(1, last)
        self.register_buffer("frequencies", 10_000.0**-exponents, persistent=False)

    def forward(self, positions: Int[Tensor, "rows length"]) -> Float[Tensor, "rows length d_model"]:
        """Return the encodings of these positions."""
        angles = (positions + self.offset)[..., None] * self.frequencies
        if self.layout == "interleaved":
            return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Learned(nn.Embedding):
    """Learned position encodings: one vector for each position below context_length."""


class Rotation(NamedTuple):
    """The RoPE rotations of one forward pass, as cosines and sines."""

    cosines: Float[Tensor, "rows 1 length half_head"]
    sines: Float[Tensor, "rows 1 length half_head"]

    def apply(self, x: Float[Tensor, "batch heads length d_head"]) -> Float[Tensor, "batch heads length d_head"]:
        """Rotate each pair (x_i, x_(i + d_head/2)) by its angle, as Llama does; d_head = 2 half_head."""
        first, second = x.chunk(2, dim=-1)
        cosines, sines = self.cosines.to(x.dtype), self.sines.to(x.dtype)
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


class Rotary(nn.Module):
    """Rotary position encodings (RoPE, Su et al. 2021): scores depend only on the distance between query and key."""

    frequencies: Float[Tensor, " half_head"]

    def __init__(self, d_head: int, base: float, scaling: RotaryScaling | None = None):
        super().__init__()
        frequencies = rotary_frequencies(d_head, base)
        self.register_buffer(
            "frequencies", scaled(frequencies, scaling, base) if scaling else frequencies, persistent=False
        )
        self.factor = scaling.attention_factor if scaling else 1.0

    def forward(self, positions: Int[Tensor, "rows length"]) -> Rotation:
        """Return the RoPE rotations at these positions."""
        angles = positions[:, None, :, None] * self.frequencies
        return Rotation(self.factor * angles.cos(), self.factor * angles.sin())


def rotary_frequencies(d_head: int, base: float) -> Float[Tensor, " half_head"]:
    """Return the unscaled RoPE frequency of each pair of dimensions, in radians per position."""
    return base ** -(torch.arange(0, d_head, 2, device="cpu") / d_head)  # computed on the CPU even inside shapes_only()


def scaled(
    frequencies: Float[Tensor, " half_head"], scaling: RotaryScaling, base: float
) -> Float[Tensor, " half_head"]:
    """Scale RoPE frequencies as in Llama 3.1: divide low ones by the factor, keep high ones, blend the rest.

    The blend is linear in the frequency, or with YaRN in the logarithm of the frequency.
    """
    if scaling.original_context is None:
        return frequencies / scaling.factor
    if scaling.yarn:
        n, turns = len(frequencies), scaling.original_context / (2 * pi)
        first, last = (n * log(turns / limit, base) for limit in (scaling.high_freq_factor, scaling.low_freq_factor))
        begin, end = max(floor(first), 0), min(ceil(last), 2 * n - 1)
        kept = 1 - (torch.arange(n, device="cpu") - begin) / (end - begin or 0.001)
    else:
        rotations = scaling.original_context * frequencies / (2 * pi)
        kept = (rotations - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def added_positions(settings: ModelSettings) -> Sinusoidal | Learned | None:
    """Make the position encodings that are added to the embeddings; return None if the settings use another type."""
    match settings.positions.type:
        case "sinusoidal":
            return Sinusoidal(settings.d_model, settings.positions.layout, settings.positions.offset)
        case "learned":
            return Learned(settings.context_length, settings.d_model)
        case _:
            return None


def rotary_positions(settings: ModelSettings) -> Rotary | None:
    """Make the rotary position encodings; return None if the settings use another type."""
    positions = settings.positions
    return Rotary(settings.d_head, positions.base, positions.scaling) if positions.type == "rotary" else None
