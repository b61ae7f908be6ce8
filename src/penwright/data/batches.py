"""Batches: the tensors that a model reads in one pass, with the number of targets that count in the loss."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

IGNORED = -100  # target that the loss ignores: padding, or a position with nothing to predict
LENGTH_STEP = 4  # lengths are padded to multiples of this, so that few distinct shapes occur

AnyBatch = TypeVar("AnyBatch", bound="_Batch")


@dataclass(frozen=True)
class _Batch:
    """A batch; subclasses add its tensors, one row per example."""

    n_targets: int  # targets that count in the loss

    def to(self: AnyBatch, device: torch.device) -> AnyBatch:
        """Return the batch on this device. The copy to a GPU is asynchronous if the batch is pinned."""
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=device.type == "cuda"))

    def pinned(self: AnyBatch) -> AnyBatch:
        """Return the batch in pinned memory, from which a GPU copies asynchronously."""
        return self._map_tensors(Tensor.pin_memory)

    @property
    def n_rows(self) -> int:
        """Number of rows: windows, pairs or texts."""
        return min(len(part) for part in vars(self).values() if isinstance(part, Tensor))

    def every(self: AnyBatch, nth: int, first: int = 0) -> AnyBatch:
        """Return every nth row, from row `first` on. `n_targets` still counts the targets of the whole batch."""
        return self._map_tensors(lambda tensor: tensor[first::nth].contiguous())

    def _map_tensors(self: AnyBatch, change: Callable[[Tensor], Tensor]) -> AnyBatch:
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {name: change(part) for name, part in parts.items() if isinstance(part, Tensor)}
        return replace(self, **changed)  # type: ignore[arg-type]  # n_targets is not a tensor, so it stays as it is


@dataclass(frozen=True)
class TextBatch(_Batch):
    """Windows of running text. The target of each token is the next token."""

    tokens: Int[Tensor, "batch length"]
    targets: Int[Tensor, "batch length"]
    segments: Int[Tensor, "batch length"] | None  # document number of each token; None: all in one document


@dataclass(frozen=True)
class PairBatch(_Batch):
    """Source sentences and their translations, right-padded."""

    source: Int[Tensor, "batch sources"]
    source_padding: Bool[Tensor, "batch sources"]  # True at real tokens
    target: Int[Tensor, "batch length"]  # decoder input: the start token, then the translation
    targets: Int[Tensor, "batch length"]  # expected output: the translation, then the end token


@dataclass(frozen=True)
class LabelledBatch(_Batch):
    """Texts and their labels, right-padded."""

    tokens: Int[Tensor, "batch length"]
    padding: Bool[Tensor, "batch length"]  # True at real tokens
    targets: Int[Tensor, " batch"]  # label ids
    positions: Int[Tensor, "batch length"] | None = None  # of tokens in the whole texts; None: 0, 1, 2, ...


Batch = TextBatch | PairBatch | LabelledBatch
