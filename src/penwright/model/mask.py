"""Attention masks as rules that become a tensor only when a kernel needs one."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class KernelMask(NamedTuple):
    """A mask in the cheapest form that the attention kernel accepts."""

    allowed: Bool[Tensor, "rows 1 targets sources"] | None = None
    is_causal: bool = False  # a flag, because a mask tensor would rule out the fastest kernels


@dataclass(frozen=True)
class Mask:
    """The rules that decide which sources a target sees. All rules must hold; Mask() allows everything."""

    causal: bool = False  # whether a target sees only itself and the tokens before it
    window: int | None = None  # tokens that a target sees in each direction (backward only, if causal), itself included
    padding: Bool[Tensor, "batch sources"] | None = None  # False at padding, True at real tokens
    segments: Int[Tensor, "batch sources"] | None = None  # index of each token's document; a token sees only its own

    def resolve(
        self, positions: Int[Tensor, "rows targets"], sources: int, *, whole: bool = True, last: bool = False
    ) -> KernelMask:
        """Return the mask for the attention kernel; call this once per forward pass, not once per layer.

        `positions` are the positions of the targets among the sources. `whole` means that targets and sources are the
        same tokens. `last` means that each row has a single target: the last source, which sees all sources. A target
        without any allowed source is padding. It sees all sources instead, because a softmax over no sources would give
        NaN, which would spread.
        """
        unmasked = self.padding is None and self.segments is None
        is_causal = self.causal and not last
        if unmasked and (whole or not is_causal) and (self.window is None or self.window >= sources):
            return KernelMask(is_causal=is_causal)
        sources_at = positions[:, None] if whole else torch.arange(sources, device=positions.device)
        allowed = torch.ones((1, 1, sources), dtype=torch.bool, device=positions.device)
        if self.causal:
            allowed = allowed & (sources_at <= positions[..., None])
        if self.window is not None:
            allowed = allowed & (sources_at > positions[..., None] - self.window)
            if not self.causal:
                allowed = allowed & (sources_at < positions[..., None] + self.window)
        if self.padding is not None:
            allowed = allowed & self.padding[:, None, :]
        if self.segments is not None:
            allowed = allowed & (self.segments[:, :, None] == self.segments[:, None, :])
        return KernelMask((allowed | ~allowed.any(-1, keepdim=True))[:, None])
