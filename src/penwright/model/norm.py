"""LayerNorm and RMSNorm."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from penwright.config import NormSettings


class RMSNorm(nn.RMSNorm):
    """RMSNorm that casts its weight to the dtype of its input, as fast kernels require; it sums in float32."""

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """Normalize the last dimension."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def make_norm(width: int, settings: NormSettings, *, bias: bool) -> nn.Module:
    """Make a norm over the last dimension; only LayerNorm can have a bias."""
    if settings.type == "rms":
        return RMSNorm(width, eps=settings.eps)
    return nn.LayerNorm(width, eps=settings.eps, bias=bias)
