"""Which source each target may attend to: rules first, a tensor only when a kernel needs one."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class KernelMask(NamedTuple):
    """A mask in the cheapest form that the attention kernel accepts."""

    allowed: Bool[Tensor, "rows 1 targets sources"] | None = None
    is_causal: bool = False  # a tensor rules out the fastest kernels, so plain causality is only a flag


@dataclass(frozen=True)
class Mask:
    """Rules that must all hold; Mask() allows everything. True means allowed."""

    causal: bool = False  # a target sees itself and what comes before it
    window: int | None = None  # and no further back than this many tokens, itself included
    padding: Bool[Tensor, "batch sources"] | None = None  # True at real tokens
    segments: Int[Tensor, "batch sources"] | None = None  # packed documents do not see each other

    def resolve(self, positions: Int[Tensor, "rows targets"], sources: int, *, whole: bool = True) -> KernelMask:
        """The form for the kernel; called once a pass, not once a layer.

        `positions` are those of the targets among the sources; `whole` says that targets and sources are the same.
        A target that may see nothing sees everything instead: such rows are padding, and NaN would spread from them.
        """
        unmasked = self.padding is None and self.segments is None
        if unmasked and (whole or not self.causal) and (self.window is None or self.window >= sources):
            return KernelMask(is_causal=self.causal)
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
