"""The arithmetic of one head, number by number (Vaswani et al. 2017, equation 1).

scores = Q K^T; scaled = scores / sqrt(d_head); masked = scaled with -inf where a target may not attend; weights =
softmax(masked); output = weights V.
"""

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from penwright.inspection.attention_maps import Head, attentions
from penwright.inspection.forward_pass import ForwardPass, PartName, Token, hidden_states, require_position
from penwright.model import Model, evaluating
from penwright.model.attention import Kernel, KernelMask, swap_kernels


@dataclass(frozen=True)
class HeadArithmetic:
    """Every step of one head's computation on one text.

    Queries and keys include QK-norm and rotary positions, if the model uses these. If several heads share keys and
    values (n_kv_heads < n_heads), the shared ones are repeated for each head.
    """

    name: PartName
    layer: int
    head: int
    target_tokens: tuple[Token, ...]
    source_tokens: tuple[Token, ...]
    queries: Float64[np.ndarray, "targets d_head"]
    keys: Float64[np.ndarray, "sources d_head"]
    values: Float64[np.ndarray, "sources d_head"]
    scores: Float64[np.ndarray, "targets sources"]
    scaled: Float64[np.ndarray, "targets sources"]
    masked: Float64[np.ndarray, "targets sources"]
    weights: Float64[np.ndarray, "targets sources"]
    output: Float64[np.ndarray, "targets d_head"]  # output before the output projection, which mixes all heads

    def row(self, position: int) -> "HeadArithmetic":
        """Return a copy that is restricted to one target position."""
        require_position(position, len(self.target_tokens))
        one = slice(position, position + 1)
        parts = ("target_tokens", "queries", "scores", "scaled", "masked", "weights", "output")
        return replace(self, **{name: getattr(self, name)[one] for name in parts})


@torch.inference_mode()
def head_arithmetic(model: Model, reading: ForwardPass, head: Head) -> HeadArithmetic:
    """Record a head's queries, keys and values in one pass, and recompute its output from them in float64."""
    recorded: list[tuple[Tensor, Tensor, Tensor, KernelMask]] = []

    def _recording(name: str, kernel: Kernel) -> Kernel:
        def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: KernelMask, dropout: float) -> Tensor:
            recorded.append((queries[0], keys[0], values[0], mask))
            return kernel(queries, keys, values, mask, dropout)

        return attend

    attention = model.get_submodule(attentions(model)[head.part, head.layer])
    with evaluating(model), swap_kernels(attention, _recording):
        hidden_states(model, reading)
    ((queries, keys, values, mask),) = recorded
    shared = head.number * len(keys) // len(queries)
    q, k, v = (x.cpu().double().numpy() for x in (queries[head.number], keys[shared], values[shared]))
    return _steps(head, reading, q, k, v, _allowed(mask, len(q), len(k)))


def _steps(
    head: Head,
    reading: ForwardPass,
    queries: Float64[np.ndarray, "targets d_head"],
    keys: Float64[np.ndarray, "sources d_head"],
    values: Float64[np.ndarray, "sources d_head"],
    allowed: np.ndarray,
) -> HeadArithmetic:
    raw = queries @ keys.T
    scaled = raw / sqrt(queries.shape[1])
    masked = np.where(allowed, scaled, -np.inf)
    weights = np.exp(masked - masked.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    sides = reading.sides(head.part)
    return HeadArithmetic(*head, *sides, queries, keys, values, raw, scaled, masked, weights, weights @ values)


def _allowed(mask: KernelMask, targets: int, sources: int) -> np.ndarray:
    """Return a mask that is True where a target may attend."""
    if mask.is_causal:
        return np.tri(targets, sources, dtype=bool)
    return np.ones((targets, sources), bool) if mask.allowed is None else mask.allowed[0, 0].cpu().numpy()
