"""LayerNorm and RMSNorm, chosen by the settings."""

from torch import nn

from penwright.config import NormSettings


def make_norm(width: int, settings: NormSettings, *, bias: bool) -> nn.Module:
    """A norm over the last dimension; only LayerNorm can have a bias."""
    if settings.type == "rms":
        return nn.RMSNorm(width, eps=settings.eps)
    return nn.LayerNorm(width, eps=settings.eps, bias=bias)
