"""Batches of token sequences: grouping by length, and padding."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Padded(NamedTuple):
    """Rows of different lengths, padded on the right."""

    tokens: Int[Tensor, "rows width"]
    padding: Bool[Tensor, "rows width"]  # False at padding, True at real tokens


def right_padded(rows: Sequence[Sequence[int]], device: torch.device, width: int = 0) -> Padded:
    """Pad rows on the right with token 0 to the length of the longest row or to `width`. The mask excludes padding."""
    lengths = np.array([len(row) for row in rows])
    padding = np.arange(max(width, lengths.max())) < lengths[:, None]
    tokens = np.zeros(padding.shape, dtype=np.int64)
    tokens[padding] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return Padded(torch.from_numpy(tokens).to(device), torch.from_numpy(padding).to(device))


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices of sequences of similar length; a batch has at most max_tokens, padding included.

    A sequence that is longer than max_tokens gets a batch of its own.
    """
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[number] > max_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
