"""Multi-head attention and its masks. Keys and values come from the layer's own input, a cache or an encoder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from penwright.config import ModelSettings
from penwright.model.embedding import Rotation
from penwright.model.layers import drop, make_norm


class KernelMask(NamedTuple):
    """A mask in the cheapest form that the attention kernel accepts."""

    allowed: Bool[Tensor, "rows 1 targets sources"] | None = None
    is_causal: bool = False  # a flag, because a mask tensor would rule out the fastest kernels


@dataclass(frozen=True)
class Mask:
    """The rules that decide which sources a target sees. All rules must hold; Mask() allows everything."""

    causal: bool = False  # whether a target sees only itself and the tokens before it
    window: int | None = None  # tokens that a target sees on each side (if causal, on the left only), itself included
    is_token: Bool[Tensor, "batch sources"] | None = None  # False at padding
    segments: Int[Tensor, "batch sources"] | None = None  # index of each token's document; a token sees only its own

    def resolve(
        self, positions: Int[Tensor, "rows targets"], sources: int, *, whole: bool = True, last: bool = False
    ) -> KernelMask:
        """Return the mask for the attention kernel; call this once per forward pass, not once per layer.

        `positions` are the positions of the targets among the sources. `whole` means that targets and sources are the
        same tokens. `last` means that each row has a single target: the last source, which sees all sources. A target
        without any allowed source is padding. It sees all sources instead, because a softmax over no sources would give
        NaN, which would spread.
        """
        unmasked = self.is_token is None and self.segments is None
        is_causal = self.causal and not last
        if unmasked and (whole or not is_causal) and (self.window is None or self.window >= sources):
            return KernelMask(is_causal=is_causal)
        sources_at = positions[:, None] if whole else torch.arange(sources, device=positions.device)
        allowed = torch.ones((1, 1, sources), dtype=torch.bool, device=positions.device)
        if self.causal:
            allowed = allowed & (sources_at <= positions[..., None])
        if self.window is not None:
            allowed = allowed & (sources_at > positions[..., None] - self.window)
            if not self.causal:
                allowed = allowed & (sources_at < positions[..., None] + self.window)
        if self.is_token is not None:
            allowed = allowed & self.is_token[:, None, :]
        if self.segments is not None:
            allowed = allowed & (self.segments[:, :, None] == self.segments[:, None, :])
        return KernelMask((allowed | ~allowed.any(-1, keepdim=True))[:, None])


class KeysValues(NamedTuple):
    """The keys and values to which an attention layer attends."""

    keys: Float[Tensor, "batch n_kv_heads sources d_head"]
    values: Float[Tensor, "batch n_kv_heads sources d_head"]

    def select(self, rows: Int[Tensor, " selected"]) -> "KeysValues":
        """Return the keys and values of these rows, in this order; a row may occur more than once."""
        return KeysValues(self.keys.index_select(0, rows), self.values.index_select(0, rows))


Kernel = Callable[[Tensor, Tensor, Tensor, KernelMask, float], Tensor]
CAUSAL_BLOCK = 128  # number of targets per block in plain causal attention; each block skips later sources
PLAIN_UP_TO = 512  # maximum number of source positions for plain attention, which stores the whole matrix of weights
CAUSAL_UP_TO = 1024  # maximum number of source positions for causal attention that is computed block by block


def disable_cudnn_attention() -> None:
    """Disable cuDNN's attention: it builds a plan for every shape, and batches come in hundreds of shapes."""
    torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def allow_cudnn_attention(allowed: bool) -> Iterator[None]:
    """Let torch choose cuDNN's attention inside the `with` block if `allowed`. It is the fastest on some GPUs."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(before or allowed)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def fused_attention(
    queries: Float[Tensor, "batch n_heads targets d_head"],
    keys: Float[Tensor, "batch n_kv_heads sources d_head"],
    values: Float[Tensor, "batch n_kv_heads sources d_head"],
    mask: KernelMask,
    dropout: float,
) -> Float[Tensor, "batch n_heads targets d_head"]:
    """Compute softmax(Q K^T / sqrt(d_head)) V without storing the whole matrix of attention weights."""
    grouped = queries.shape[1] != keys.shape[1]
    if grouped and mask.allowed is not None and queries.is_cuda:  # no fast GPU kernel combines GQA with a mask
        if queries.shape[2] == 1:
            return _single_target_attention(queries, keys, values, mask, dropout)
        keys, values = repeat_kv(keys, queries), repeat_kv(values, queries)
        grouped = False
    return F.scaled_dot_product_attention(
        queries, keys, values, mask.allowed, dropout, is_causal=mask.is_causal, enable_gqa=grouped
    )


def _single_target_attention(
    queries: Float[Tensor, "batch n_heads 1 d_head"],
    keys: Float[Tensor, "batch n_kv_heads sources d_head"],
    values: Float[Tensor, "batch n_kv_heads sources d_head"],
    mask: KernelMask,
    dropout: float,
) -> Float[Tensor, "batch n_heads 1 d_head"]:
    """Compute grouped-query attention of a single target without copying keys and values.

    The query heads that share keys become the targets of one head.
    """
    queries = queries[:, :, 0].unflatten(1, (keys.shape[1], -1))
    heads = F.scaled_dot_product_attention(queries, keys, values, mask.allowed, dropout)
    return heads.flatten(1, 2)[:, :, None]


def plain_attention(
    queries: Float[Tensor, "batch n_heads targets d_head"],
    keys: Float[Tensor, "batch n_kv_heads sources d_head"],
    values: Float[Tensor, "batch n_kv_heads sources d_head"],
    mask: KernelMask,
    dropout: float,
) -> Float[Tensor, "batch n_heads targets d_head"]:
    """Compute attention explicitly, with the full matrix of attention weights.

    Causal attention of many targets is computed in blocks of targets; each block skips the sources that come after it.
    """
    keys, values = repeat_kv(keys, queries), repeat_kv(values, queries)
    if not _in_blocks(queries, mask):
        return drop(attention_weights(queries, keys, mask), dropout) @ values
    ends = [min(start + CAUSAL_BLOCK, queries.shape[2]) for start in range(0, queries.shape[2], CAUSAL_BLOCK)]
    blocks = zip(queries.split(CAUSAL_BLOCK, dim=2), ends, strict=True)
    weights = ((attention_weights(block, keys[:, :, :end], mask), end) for block, end in blocks)
    return torch.cat([drop(weight, dropout) @ values[:, :, :end] for weight, end in weights], dim=2)


def _in_blocks(queries: Float[Tensor, "batch n_heads targets d_head"], mask: KernelMask) -> bool:
    """Return whether to compute causal attention in blocks.

    Compiled code with dynamic lengths uses no blocks, since every new number of blocks would be compiled separately.
    """
    if not torch.compiler.is_compiling():
        return mask.is_causal and queries.shape[2] > CAUSAL_BLOCK
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # noqa: PLC0415 - a slow import (0.5 s)

    return mask.is_causal and statically_known_true(queries.shape[2] > CAUSAL_BLOCK)


def attention_weights(
    queries: Float[Tensor, "batch n_heads targets d_head"],
    keys: Float[Tensor, "batch n_kv_heads sources d_head"],
    mask: KernelMask,
) -> Float[Tensor, "batch n_heads targets sources"]:
    """Return softmax(Q K^T / sqrt(d_head)), the weight of each source for each target; rows sum to 1.

    With a causal mask, the targets are assumed to be the last positions of the sources.
    """
    scores = (queries * queries.shape[-1] ** -0.5) @ repeat_kv(keys, queries).mT
    targets, sources = scores.shape[-2:]
    allowed = mask.allowed
    if mask.is_causal:
        allowed = torch.ones_like(scores[0, 0], dtype=torch.bool).tril(sources - targets)
    return (scores if allowed is None else scores.masked_fill(~allowed, -inf)).softmax(-1)


def repeat_kv(
    shared: Float[Tensor, "batch n_kv_heads sources d_head"], queries: Float[Tensor, "batch n_heads targets d_head"]
) -> Float[Tensor, "batch n_heads sources d_head"]:
    """Repeat shared keys or values for each query head (grouped-query attention)."""
    groups = queries.shape[1] // shared.shape[1]
    return shared if groups == 1 else shared.repeat_interleave(groups, 1)


def fastest_attention(
    queries: Float[Tensor, "batch n_heads targets d_head"],
    keys: Float[Tensor, "batch n_kv_heads sources d_head"],
    values: Float[Tensor, "batch n_kv_heads sources d_head"],
    mask: KernelMask,
    dropout: float,
) -> Float[Tensor, "batch n_heads targets d_head"]:
    """Compute attention with the fastest kernel.

    The fused kernel is the fastest, except for training in bfloat16 on a CPU. There, its backward pass is up to ten
    times slower.
    """
    slow_backward = queries.device.type == "cpu" and queries.dtype == torch.bfloat16 and queries.requires_grad
    if slow_backward and keys.shape[2] <= (CAUSAL_UP_TO if _in_blocks(queries, mask) else PLAIN_UP_TO):
        return plain_attention(queries, keys, values, mask, dropout)
    return fused_attention(queries, keys, values, mask, dropout)


class Attention(nn.Module):
    """Multi-head attention; with n_kv_heads < n_heads, query heads share keys and values (Ainslie et al. 2023)."""

    def __init__(self, settings: ModelSettings, *, qk_norm: bool = False):
        super().__init__()
        width, d_head, bias = settings.d_model, settings.d_head, settings.bias
        self.d_head = d_head
        self.dropout = settings.attention_dropout
        qkv_bias = bias if settings.qkv_bias is None else settings.qkv_bias
        self.query = nn.Linear(width, settings.n_heads * d_head, bias=qkv_bias)
        self.key = nn.Linear(width, settings.n_kv_heads * d_head, bias=qkv_bias)
        self.value = nn.Linear(width, settings.n_kv_heads * d_head, bias=qkv_bias)
        self.output = nn.Linear(settings.n_heads * d_head, width, bias=bias)
        self.query_norm = make_norm(d_head, settings.norm, bias=bias) if qk_norm else nn.Identity()
        self.key_norm = make_norm(d_head, settings.norm, bias=bias) if qk_norm else nn.Identity()
        self.kernel: Kernel = fastest_attention  # inspection swaps in a kernel that records attention weights

    def keys_values(self, x: Float[Tensor, "batch sources d_model"], rotation: Rotation | None = None) -> KeysValues:
        """Return the keys and values of `x`."""
        keys = self.key_norm(self._split_heads(self.key(x)))
        return KeysValues(rotation.apply(keys) if rotation else keys, self._split_heads(self.value(x)))

    def forward(
        self,
        x: Float[Tensor, "batch targets d_model"],
        source: KeysValues,
        mask: KernelMask,
        rotation: Rotation | None = None,
    ) -> Float[Tensor, "batch targets d_model"]:
        """Attend from each target in `x` to the keys and values of `source`."""
        queries = self.query_norm(self._split_heads(self.query(x)))
        queries = rotation.apply(queries) if rotation else queries
        heads = self.kernel(queries, *source, mask, self.dropout if self.training else 0.0)
        return self.output(heads.transpose(1, 2).flatten(2))  # concatenate the heads

    def _split_heads(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch heads length d_head"]:
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)


@contextmanager
def swap_kernels(module: nn.Module, swap: Callable[[str, Kernel], Kernel]) -> Iterator[None]:
    """Replace the kernel of each attention layer with `swap(name, kernel)` inside the `with` block."""
    attentions = {name: part for name, part in module.named_modules() if isinstance(part, Attention)}
    kernels = {name: attention.kernel for name, attention in attentions.items()}
    try:
        for name, attention in attentions.items():
            attention.kernel = swap(name, attention.kernel)
        yield
    finally:
        for name, attention in attentions.items():
            attention.kernel = kernels[name]
