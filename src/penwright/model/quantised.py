"""Linear layers with weights of 8 bits: a quarter of the memory to read, which writing token by token waits for."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int8, Int32
from torch import Tensor, nn
from torch.nn import functional as F

from penwright.config import Precision
from penwright.native.toolchain import SOURCES

LARGEST = 127  # of int8, symmetric
TINY = 1e-8
WHOLE_VECTORS = 32  # widths that torch's product of one row handles: of others it reads past the end
BLOCK = 64  # columns of the product, and numbers of a row, that int8_product.cpp takes together
ZERO = 128  # what stands for it there in rows, which are without sign
SOURCE = SOURCES / "int8_product.cpp"
COMPILES = torch.cpu._is_vnni_supported()  # else it is of no use


class Packed(NamedTuple):
    """Weights as int8_product.cpp reads them."""

    packed: Int8[Tensor, "blocks quarters 64 4"]
    offsets: Int32[Tensor, " columns"]  # what ZERO adds to each sum
    scales: Float[Tensor, " columns"]


class Int8Linear(nn.Module):
    """A linear layer whose rows of weights are whole numbers times one scale each (Dettmers et al. 2022, section 2.1).

    What is multiplied is rounded to int8 as well, each row by its own largest number, since products of int8 are the
    quickest that a CPU has; but for a single row where nothing is compiled: then that is quicker as it is.
    """

    whole: Int8[Tensor, "out_features in_features"]
    scale: Float[Tensor, " out_features"]
    bias: Float[Tensor, " out_features"] | None
    packed: Tensor  # and what follows: a Packed, where it is of use
    offsets: Tensor
    scales: Tensor

    def __init__(self, layer: nn.Linear):
        super().__init__()
        weight = layer.weight.detach().float()
        exact = weight.abs().amax(1).clamp(min=TINY) / LARGEST
        scale = exact.to(torch.bfloat16)  # as the kernel wants it; before rounding, so that nothing is lost by it
        whole = (weight / scale.float()[:, None]).round().clamp(-LARGEST, LARGEST)
        self.register_buffer("whole", whole.to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())
        if COMPILES:
            for name, tensor in packed_weights(self.whole, self.scale)._asdict().items():
                self.register_buffer(name, tensor, persistent=False)

    @property
    def weight(self) -> Float[Tensor, "out_features in_features"]:
        """The weights that this layer stands for."""
        return self.whole * self.scale.float()[:, None]

    def forward(self, x: Float[Tensor, "*rows in_features"]) -> Float[Tensor, "*rows out_features"]:
        compiled = COMPILES and torch.compiler.is_exporting()
        product = (compiled_product if compiled else torch_product)(self, x.flatten(0, -2))
        product = product if self.bias is None else product + self.bias
        return product.to(x.dtype).unflatten(0, x.shape[:-1])


def torch_product(layer: Int8Linear, rows: Float[Tensor, "rows in_features"]) -> Float[Tensor, "rows out_features"]:
    """By what torch has: one row by whole weights alone, many both ways; a GPU has neither for few rows."""
    if rows.is_cuda:
        return F.linear(rows.float(), layer.weight)
    if rows.shape[0] == 1 and rows.shape[1] % WHOLE_VECTORS == 0:
        return torch._weight_int8pack_mm(rows.to(torch.bfloat16), layer.whole, layer.scale)
    return both_ways(rows, layer.whole, layer.scale.float())


def both_ways(
    rows: Float[Tensor, "rows in_features"],
    whole: Int8[Tensor, "out_features in_features"],
    scale: Float[Tensor, " out_features"],
) -> Float[Tensor, "rows out_features"]:
    wide = rows.float()
    largest = wide.abs().amax(-1, keepdim=True).clamp(min=TINY) / LARGEST
    return torch._int_mm((wide * (1 / largest)).round().to(torch.int8), whole.T).float() * (largest * scale)


def compiled_product(layer: Int8Linear, rows: Float[Tensor, "rows in_features"]) -> Float[Tensor, "rows out_features"]:
    """By int8_product.cpp, once it is compiled: the same numbers whichever rows are multiplied together."""
    packed, offsets, scales = layer.packed, layer.offsets, layer.scales
    return torch.ops.penwright.int8_product(rows.float().contiguous(), packed, offsets, scales, len(layer.whole))


@torch.library.custom_op("penwright::int8_product", mutates_args=())
def _int8_product(
    rows: torch.Tensor, packed: torch.Tensor, offsets: torch.Tensor, scales: torch.Tensor, n_columns: int
) -> torch.Tensor:
    """What int8_product.cpp does, as torch does it."""
    return both_ways(rows, _unpacked(packed)[:n_columns, : rows.shape[1]], scales[:n_columns])


@_int8_product.register_fake
def _(
    rows: torch.Tensor, packed: torch.Tensor, offsets: torch.Tensor, scales: torch.Tensor, n_columns: int
) -> torch.Tensor:
    return rows.new_empty(rows.shape[0], n_columns)


def packed_weights(whole: Int8[Tensor, "out_features in_features"], scale: Float[Tensor, " out_features"]) -> Packed:
    """In blocks of columns of the product, four numbers of each beside each other, filled up with zeros."""
    rows, width = whole.shape
    filled = F.pad(whole, (0, -width % BLOCK, 0, -rows % BLOCK))
    packed = filled.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, 4)).transpose(1, 2).contiguous()
    offsets = ZERO * packed.sum((1, 3), dtype=torch.int32).flatten()
    return Packed(packed, offsets, F.pad(scale.float(), (0, -rows % BLOCK)))


def _unpacked(packed: Int8[Tensor, "blocks quarters 64 4"]) -> Int8[Tensor, "all_rows all_columns"]:
    return packed.transpose(1, 2).flatten(2).flatten(0, 1)


def quantise(module: nn.Module) -> None:
    """Put Int8Linear in the place of every linear layer in the module."""
    for name, part in list(module.named_children()):
        if isinstance(part, nn.Linear):
            setattr(module, name, Int8Linear(part))
        else:
            quantise(part)


def outputs_kept_like(layer: nn.Module) -> Tensor:
    """A tensor on the device and in the precision that outputs are kept in: with weights of 8 bits, 16 are enough."""
    like = layer.scale if isinstance(layer, Int8Linear) else layer.weight
    assert isinstance(like, Tensor)
    return like


def to_precision(module: nn.Module, precision: Precision) -> None:
    """Keep the weights so from now on; with int8, what is no linear layer (embeddings, norms) stays in float32.

    Angles of positions, which bfloat16 would blur, stay as they are.
    """
    if precision == "int8":
        quantise(module)
    if precision == "bfloat16":
        for parameter in module.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
