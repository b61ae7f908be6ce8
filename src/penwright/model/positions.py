"""How a Transformer knows the order of its tokens: vectors added to embeddings, or rotated queries and keys."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from penwright.config import ModelSettings

SinusoidLayout = Literal["interleaved", "halves", "tensor2tensor"]


class Sinusoidal(nn.Module):
    """sin(p / 10000^(2i/d)) and cos of the same (Vaswani et al. 2017, section 3.5), for any position p.

    "interleaved" puts each sine beside its cosine, as the paper does; "halves" (Marian) puts all sines first;
    "tensor2tensor" (M2M100) does so too, and lets the frequencies fall to 1/10000 itself.
    """

    frequencies: Float[Tensor, " half_width"]

    def __init__(self, d_model: int, layout: SinusoidLayout = "interleaved", offset: int = 0):
        super().__init__()
        self.layout, self.offset = layout, offset
        last = d_model - 2 if layout == "tensor2tensor" else d_model
        exponents = torch.arange(0, d_model, 2) / max(1, last)
        self.register_buffer("frequencies", 10_000.0**-exponents, persistent=False)

    def forward(self, positions: Int[Tensor, "rows length"]) -> Float[Tensor, "rows length d_model"]:
        angles = (positions + self.offset)[..., None] * self.frequencies
        if self.layout == "interleaved":
            return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Learned(nn.Embedding):
    """One learned vector for each position up to context_length, beyond which there is none to look up."""


class Rotation(NamedTuple):
    """The angles of one pass, as cosines and sines, ready to turn queries and keys."""

    cosines: Float[Tensor, "rows 1 length half_head"]
    sines: Float[Tensor, "rows 1 length half_head"]

    def apply(self, x: Float[Tensor, "batch heads length d_head"]) -> Float[Tensor, "batch heads length d_head"]:
        """Turn the pair (x_i, x_(i + d_head/2)) by its angle, as Llama does; d_head = 2 half_head."""
        first, second = x.chunk(2, dim=-1)
        cosines, sines = self.cosines.to(x.dtype), self.sines.to(x.dtype)
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021): a score depends on how far apart query and key are, at any position."""

    frequencies: Float[Tensor, " half_head"]

    def __init__(self, d_head: int, base: float):
        super().__init__()
        self.register_buffer("frequencies", base ** -(torch.arange(0, d_head, 2) / d_head), persistent=False)

    def forward(self, positions: Int[Tensor, "rows length"]) -> Rotation:
        angles = positions[:, None, :, None] * self.frequencies
        return Rotation(angles.cos(), angles.sin())


def added_positions(settings: ModelSettings) -> Sinusoidal | Learned | None:
    """What is added to the embeddings to tell positions; None for rotary and for no positions."""
    match settings.positions.type:
        case "sinusoidal":
            return Sinusoidal(settings.d_model, settings.positions.layout, settings.positions.offset)
        case "learned":
            return Learned(settings.context_length, settings.d_model)
        case _:
            return None


def rotary_positions(settings: ModelSettings) -> Rotary | None:
    """What turns queries and keys; None unless positions are rotary."""
    return Rotary(settings.d_head, settings.positions.base) if settings.positions.type == "rotary" else None
