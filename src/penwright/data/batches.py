"""What a model is shown in one go: tensors, with the number of targets that the loss counts."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

IGNORED = -100  # a target that does not count: padding, or where there is nothing to predict
LENGTH_STEP = 4  # lengths are padded to multiples of this, for few distinct shapes

AnyBatch = TypeVar("AnyBatch", bound="_Batch")


@dataclass(frozen=True)
class _Batch:
    n_targets: int  # those that count

    def to(self: AnyBatch, device: torch.device) -> AnyBatch:
        """The same batch on this device; only a GPU that reads pinned memory need not be waited for."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=device.type == "cuda"))

    def pinned(self: AnyBatch) -> AnyBatch:
        """The same batch in memory that a GPU reads by itself."""
        return self._each(Tensor.pin_memory)

    @property
    def n_rows(self) -> int:
        """Windows, pairs or texts."""
        return min(len(part) for part in vars(self).values() if isinstance(part, Tensor))

    def every(self: AnyBatch, nth: int, first: int = 0) -> AnyBatch:
        """Each nth row; n_targets still counts those of the whole batch."""
        return self._each(lambda tensor: tensor[first::nth].contiguous())

    def _each(self: AnyBatch, change: Callable[[Tensor], Tensor]) -> AnyBatch:
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {name: change(part) for name, part in parts.items() if isinstance(part, Tensor)}
        return replace(self, **changed)  # type: ignore[arg-type]  # n_targets is no tensor, so it is not in there


@dataclass(frozen=True)
class TextBatch(_Batch):
    """Windows of running text, each token with the one after it."""

    tokens: Int[Tensor, "batch length"]
    targets: Int[Tensor, "batch length"]
    segments: Int[Tensor, "batch length"] | None  # which document each token belongs to; None: all to the same


@dataclass(frozen=True)
class PairBatch(_Batch):
    """Sources with their targets, right-padded."""

    source: Int[Tensor, "batch sources"]
    source_padding: Bool[Tensor, "batch sources"]  # True at real tokens
    target: Int[Tensor, "batch length"]  # what the decoder reads: the start token, then the target
    targets: Int[Tensor, "batch length"]  # what it is to say: the target, then the end token


@dataclass(frozen=True)
class LabelledBatch(_Batch):
    """Texts with their labels, right-padded."""

    tokens: Int[Tensor, "batch length"]
    padding: Bool[Tensor, "batch length"]  # True at real tokens
    targets: Int[Tensor, " batch"]  # numbers of labels
    positions: Int[Tensor, "batch length"] | None = None  # of the tokens in their texts; None: nothing was left out


Batch = TextBatch | PairBatch | LabelledBatch
