"""Linear layers with weights of 8 bits: a quarter of the memory to read, which writing token by token waits for."""

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from penwright.config import Precision

LARGEST = 127  # of int8, symmetric
TINY = 1e-8
WHOLE_VECTORS = 32  # widths that torch's product of one row handles: of others it reads past the end


class Int8Linear(nn.Module):
    """A linear layer whose rows of weights are whole numbers times one scale each (Dettmers et al. 2022, section 2.1).

    One token at a time is multiplied as it is; many at a time are rounded to int8 as well, each by its own largest
    number, since products of int8 are the quickest that a CPU has.
    """

    whole: Int8[Tensor, "out_features in_features"]
    scale: Float[Tensor, " out_features"]
    bias: Float[Tensor, " out_features"] | None

    def __init__(self, layer: nn.Linear):
        super().__init__()
        weight = layer.weight.detach().float()
        exact = weight.abs().amax(1).clamp(min=TINY) / LARGEST
        scale = exact.to(torch.bfloat16)  # as the kernel wants it; before rounding, so that nothing is lost by it
        whole = (weight / scale.float()[:, None]).round().clamp(-LARGEST, LARGEST)
        self.register_buffer("whole", whole.to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    @property
    def weight(self) -> Float[Tensor, "out_features in_features"]:
        """The weights that this layer stands for."""
        return self.whole * self.scale.float()[:, None]

    def forward(self, x: Float[Tensor, "*rows in_features"]) -> Float[Tensor, "*rows out_features"]:
        rows = x.flatten(0, -2)
        by_row = rows.shape[0] == 1 and rows.shape[1] % WHOLE_VECTORS == 0
        product = self._one(rows) if by_row else self._many(rows)
        product = product if self.bias is None else product + self.bias
        return product.to(x.dtype).unflatten(0, x.shape[:-1])

    def _one(self, row: Float[Tensor, "1 in_features"]) -> Float[Tensor, "1 out_features"]:
        return torch._weight_int8pack_mm(row.to(torch.bfloat16), self.whole, self.scale)

    def _many(self, rows: Float[Tensor, "rows in_features"]) -> Float[Tensor, "rows out_features"]:
        wide = rows.float()
        largest = wide.abs().amax(-1, keepdim=True).clamp(min=TINY) / LARGEST
        whole = (wide / largest).round().to(torch.int8)
        return torch._int_mm(whole, self.whole.T).float() * (largest * self.scale.float())


def quantise(module: nn.Module) -> None:
    """Put Int8Linear in the place of every linear layer in the module."""
    for name, part in list(module.named_children()):
        if isinstance(part, nn.Linear):
            setattr(module, name, Int8Linear(part))
        else:
            quantise(part)


def to_precision(module: nn.Module, precision: Precision) -> None:
    """Keep the weights so from now on; with int8, what is no linear layer (embeddings, norms) stays in float32.

    Angles of positions, which bfloat16 would blur, stay as they are.
    """
    if precision == "int8":
        quantise(module)
    if precision == "bfloat16":
        for parameter in module.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
