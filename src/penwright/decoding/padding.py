"""Token sequences of different lengths side by side: which go together, and how they are filled up."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Padded(NamedTuple):
    """Rows of different lengths, with fillers on the right."""

    tokens: Int[Tensor, "rows width"]
    padding: Bool[Tensor, "rows width"]  # True at real tokens


def right_padded(rows: Sequence[Sequence[int]], device: torch.device, width: int = 0) -> Padded:
    """The rows side by side, as wide as the longest or wider; fillers are token 0, which no mask lets through."""
    lengths = np.array([len(row) for row in rows])
    padding = np.arange(max(width, lengths.max())) < lengths[:, None]
    tokens = np.zeros(padding.shape, dtype=np.int64)
    tokens[padding] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return Padded(torch.from_numpy(tokens).to(device), torch.from_numpy(padding).to(device))


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Numbers of sequences of like length, at most max_tokens a batch with padding; one sequence is never too many."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[number] > max_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
