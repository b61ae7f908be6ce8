"""Linear layers with int8 weights. They need a quarter of the memory traffic, which is the bottleneck of generation."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int8, Int32
from torch import Tensor, nn
from torch.nn import functional as F

from penwright.config import Precision
from penwright.model.weights import FITTED
from penwright.native.toolchain import SOURCES

LARGEST = 127  # largest value of symmetric int8
TINY = 1e-8  # minimum value of a scale, to avoid division by zero
WHOLE_VECTORS = 32  # torch's kernel reads past the end of a single row unless the width is a multiple of this
BLOCK = 64  # int8_product.cpp needs weights padded to a multiple of this in both dimensions
ZERO = 128  # zero point of the unsigned rows in int8_product.cpp
SOURCE = SOURCES / "int8_product.cpp"
COMPILES = torch.cpu._is_vnni_supported()  # the C++ operator needs AVX-512 VNNI


class Packed(NamedTuple):
    """Weights in the memory layout of int8_product.cpp."""

    packed: Int8[Tensor, "blocks quarters 64 4"]
    offsets: Int32[Tensor, " columns"]  # the contribution of the zero point to each sum
    scales: Float[Tensor, " columns"]


class Int8Linear(nn.Module):
    """A linear layer with int8 weights and one scale per output (Dettmers et al. 2022, section 2.1).

    The input is also rounded to int8, with one scale per row, since int8 matrix multiplication is the fastest on a
    CPU. On a CPU without int8 instructions, a single row is rounded to bfloat16 instead.
    """

    weight_int8: Int8[Tensor, "out_features in_features"]
    scale: Float[Tensor, " out_features"]
    bias: Float[Tensor, " out_features"] | None
    packed: Tensor  # packed, offsets and scales are the fields of Packed; present only if COMPILES
    offsets: Tensor
    scales: Tensor

    def __init__(self, layer: nn.Linear):
        super().__init__()
        weight = layer.weight.detach().float()
        exact = weight.abs().amax(1).clamp(min=TINY) / LARGEST
        scale = exact.to(torch.bfloat16)  # torch's kernel needs bfloat16; the weights are divided by this rounded scale
        weight_int8 = (weight / scale.float()[:, None]).round_().clamp_(-LARGEST, LARGEST)
        self.register_buffer("weight_int8", weight_int8.to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())
        if COMPILES:
            for name, tensor in packed_weights(self.weight_int8, self.scale)._asdict().items():
                self.register_buffer(name, tensor, persistent=False)

    @property
    def weight(self) -> Float[Tensor, "out_features in_features"]:
        """The dequantized weights."""
        return self.weight_int8 * self.scale.float()[:, None]

    def forward(self, x: Float[Tensor, "*rows in_features"]) -> Float[Tensor, "*rows out_features"]:
        """Apply the layer, with the compiled operator during export and torch's operators otherwise.

        If `x` requires gradients, the weights are dequantized instead, because rounding `x` would block the gradients.
        """
        if torch.is_grad_enabled() and x.requires_grad:
            return F.linear(x, self.weight.to(x.dtype), self.bias)
        compiled = COMPILES and torch.compiler.is_exporting()
        product = (compiled_product if compiled else torch_product)(self, x.flatten(0, -2))
        product = product if self.bias is None else product + self.bias
        return product.to(x.dtype).unflatten(0, x.shape[:-1])


def torch_product(layer: Int8Linear, rows: Float[Tensor, "rows in_features"]) -> Float[Tensor, "rows out_features"]:
    """Multiply with torch's operators. On a GPU, use float32, since torch's int8 operator needs more rows."""
    if rows.is_cuda:
        return F.linear(rows.float(), layer.weight)
    return int8_rows(rows, layer.weight_int8, layer.scale, layer.scale.float())


def int8_rows(
    rows: Float[Tensor, "rows in_features"],
    weight_int8: Int8[Tensor, "out_features in_features"],
    scale: Float[Tensor, " out_features"],
    scales: Float[Tensor, " out_features"],
    bias: Float[Tensor, " out_features"] | None = None,
) -> Float[Tensor, "rows out_features"]:
    """Multiply with torch's operators for CPUs; `scales` is a copy of `scale` in float32.

    Rows are rounded to int8. On a CPU without instructions for int8, a single row is rounded to bfloat16.
    """
    if rows.shape[0] == 1 and rows.shape[1] % WHOLE_VECTORS == 0 and not COMPILES:
        product = torch._weight_int8pack_mm(rows.to(torch.bfloat16), weight_int8, scale)
    else:
        product = int8_product(rows, weight_int8, scales)
    return product if bias is None else product + bias


def int8_product(
    rows: Float[Tensor, "rows in_features"],
    weight_int8: Int8[Tensor, "out_features in_features"],
    scale: Float[Tensor, " out_features"],
) -> Float[Tensor, "rows out_features"]:
    """Multiply int8 rows by int8 weights; each row is rounded with its own scale."""
    wide = rows.float()
    largest = wide.abs().amax(-1, keepdim=True).clamp_(min=TINY).div_(LARGEST)
    return torch._int_mm((wide * largest.reciprocal()).round_().to(torch.int8), weight_int8.T) * (largest * scale)


def compiled_product(layer: Int8Linear, rows: Float[Tensor, "rows in_features"]) -> Float[Tensor, "rows out_features"]:
    """Multiply with int8_product.cpp once it is compiled; the result of a row does not depend on the other rows."""
    packed, offsets, scales = layer.packed, layer.offsets, layer.scales
    return torch.ops.penwright.int8_product(rows.float().contiguous(), packed, offsets, scales, len(layer.weight_int8))


@torch.library.custom_op("penwright::int8_product", mutates_args=())
def _int8_product(
    rows: torch.Tensor, packed: torch.Tensor, offsets: torch.Tensor, scales: torch.Tensor, n_columns: int
) -> torch.Tensor:
    """Compute the same result as int8_product.cpp, in PyTorch."""
    return int8_product(rows, _unpacked(packed)[:n_columns, : rows.shape[1]], scales[:n_columns])


@_int8_product.register_fake
def _(
    rows: torch.Tensor, packed: torch.Tensor, offsets: torch.Tensor, scales: torch.Tensor, n_columns: int
) -> torch.Tensor:
    return rows.new_empty(rows.shape[0], n_columns)


def packed_weights(
    weight_int8: Int8[Tensor, "out_features in_features"], scale: Float[Tensor, " out_features"]
) -> Packed:
    """Pack weights into zero-padded blocks of 64 outputs.

    A block holds the first four weights of each output, then the next four of each output, and so on.
    """
    rows, width = weight_int8.shape
    filled = F.pad(weight_int8, (0, -width % BLOCK, 0, -rows % BLOCK))
    packed = filled.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, 4)).transpose(1, 2).contiguous()
    offsets = ZERO * packed.sum((1, 3), dtype=torch.int32).flatten()
    return Packed(packed, offsets, F.pad(scale.float(), (0, -rows % BLOCK)))


def _unpacked(packed: Int8[Tensor, "blocks quarters 64 4"]) -> Int8[Tensor, "all_rows all_columns"]:
    return packed.transpose(1, 2).flatten(2).flatten(0, 1)


def quantize(module: nn.Module) -> None:
    """Replace every linear layer in the module with an Int8Linear."""
    for name, part in list(module.named_children()):
        if isinstance(part, nn.Linear):
            setattr(module, name, Int8Linear(part))
        else:
            quantize(part)


def outputs_like(layer: nn.Module) -> Tensor:
    """Return a tensor with the device and dtype in which to store a layer's outputs: bfloat16 for int8 weights."""
    like = layer.scale if isinstance(layer, Int8Linear) else layer.weight
    assert isinstance(like, Tensor)
    return like


def to_precision(module: nn.Module, precision: Precision) -> None:
    """Convert the weights to this precision in place; with int8, embeddings and norms stay in float32.

    The frequencies of position encodings and the fitted parameters of classifiers stay in float32, because bfloat16
    would be too coarse.
    """
    if precision == "int8":
        quantize(module)
    if precision == "bfloat16":
        for name, parameter in module.named_parameters():
            if name not in FITTED:
                parameter.data = parameter.data.to(torch.bfloat16)
