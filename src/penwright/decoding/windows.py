"""Processing of long texts in windows that fit in the context, and embedding vectors of such texts."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from penwright.decoding.batches import Padded, batches_by_length, right_padded
from penwright.model import Model, evaluating

BATCH_TOKENS = 8192  # maximum number of tokens per batch on a GPU, padding included
BATCH_TOKENS_ON_CPU = 1024  # texts of a small batch have similar lengths, so it has less padding


def n_windows(n_tokens: int, room: int) -> int:
    """Return the number of windows of at most `room` tokens; an empty text has one window."""
    return max(1, -(-n_tokens // room))


def split(tokens: Sequence[int], room: int) -> list[list[int]]:
    """Split a text into windows of similar size and at most `room` tokens."""
    return [part.tolist() for part in np.array_split(np.asarray(tokens, dtype=np.int64), n_windows(len(tokens), room))]


@torch.inference_mode()
def read_windows(
    model: Model, texts: Sequence[Sequence[Sequence[int]]], read: Callable[[Padded], Tensor]
) -> list[Float[Tensor, "_ width"]]:
    """Apply `read` to batches of windows of similar length. Return the results, grouped by text."""
    windows = [window for text in texts for window in text]
    outputs: list[Tensor] = [torch.empty(0)] * len(windows)
    with evaluating(model) as device:
        most = BATCH_TOKENS_ON_CPU if device.type == "cpu" else BATCH_TOKENS
        for batch in batches_by_length([len(window) for window in windows], most):
            rows = read(right_padded([windows[number] for number in batch], device)).float().cpu()
            for number, row in zip(batch, rows, strict=True):
                outputs[number] = row
    rest = iter(outputs)
    return [torch.stack([next(rest) for _ in text]) for text in texts]


def mean_vectors(vectors: Sequence[Float[Tensor, "_ width"]], width: int) -> Float[Tensor, "texts width"]:
    """Return the mean vector of the windows of each text."""
    return torch.stack([each.mean(0) for each in vectors]) if vectors else torch.zeros(0, width)
