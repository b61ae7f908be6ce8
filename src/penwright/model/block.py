"""The Transformer block (self-attention, optional cross-attention, feed-forward), and a stack of blocks."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from penwright.config import ModelSettings
from penwright.model.attention import Attention, KernelMask, KeysValues, Mask
from penwright.model.cache import Cache, LayerCache
from penwright.model.embedding import Rotary, Rotation, rotary_positions
from penwright.model.layers import Dropout, FeedForward, make_norm
from penwright.model.quantized import outputs_like


class ForwardContext(NamedTuple):
    """The inputs that all layers share in one forward pass: positions, masks and rotations."""

    positions: Int[Tensor, "rows targets"]
    end: int  # self-attention attends to the tokens before this position
    mask: KernelMask
    rotation: Rotation | None
    source_mask: KernelMask = KernelMask()  # mask of the cross-attention
    origins: Int[Tensor, "rows room"] | None = None  # index of the cache row that holds each cached token
    start: int | None = None  # the position of the first target, if it is known to be the same in all rows


class Residual(nn.Module):
    """A residual connection: x + sublayer(norm(x)), or norm(x + sublayer(x)) with post-norm.

    Dropout is applied to the output of the sublayer.
    """

    def __init__(self, settings: ModelSettings):
        super().__init__()
        self.norm = make_norm(settings.d_model, settings.norm, bias=settings.bias)
        self.norm_first = settings.norm_position == "pre"
        self.dropout = Dropout(settings.dropout)

    def forward(
        self, x: Float[Tensor, "batch length d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length d_model"]:
        """Add the sublayer's output to `x`."""
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class Block(nn.Module):
    """A Transformer block: self-attention, optional cross-attention and feed-forward, with residual connections."""

    def __init__(self, settings: ModelSettings, *, cross_attention: bool = False):
        super().__init__()
        self.attention = Attention(settings, qk_norm=settings.qk_norm)
        self.attention_residual = Residual(settings)
        self.cross_attention = Attention(settings) if cross_attention else None
        self.cross_residual = Residual(settings) if cross_attention else None
        self.feed_forward = FeedForward(settings)
        self.feed_forward_residual = Residual(settings)

    def forward(
        self,
        x: Float[Tensor, "batch targets d_model"],
        context: ForwardContext,
        cache: LayerCache | None = None,
        encoded: KeysValues | None = None,
    ) -> Float[Tensor, "batch targets d_model"]:
        """Run the block; with a cache, append the new keys and values to it and attend to all cached tokens."""

        def attend(x: Tensor) -> Tensor:
            source = self.attention.keys_values(x, context.rotation)
            source = (
                source
                if cache is None
                else cache.append(source, context.positions, context.end, context.origins, context.start)
            )
            return self.attention(x, source, context.mask, context.rotation)

        x = self.cross(self.attention_residual(x, attend), context, encoded)
        return self.feed_forward_residual(x, self.feed_forward)

    def source_keys_values(self, x: Float[Tensor, "batch sources d_model"]) -> KeysValues:
        """Compute the keys and values of the cross-attention from the encoder's output."""
        assert self.cross_attention is not None
        return self.cross_attention.keys_values(x)

    def cross(
        self, x: Float[Tensor, "batch targets d_model"], context: ForwardContext, encoded: KeysValues | None
    ) -> Float[Tensor, "batch targets d_model"]:
        """Run the cross-attention, if the block has one."""
        if self.cross_attention is None or self.cross_residual is None or encoded is None:
            return x
        cross_attention = self.cross_attention

        def attend(x: Tensor) -> Tensor:
            by_source = x.reshape(encoded.keys.shape[0], -1, x.shape[-1])  # concatenate the target rows of each source
            return cross_attention(by_source, encoded, context.source_mask).reshape(x.shape)

        return self.cross_residual(x, attend)


class Encoded(NamedTuple):
    """Encoded sources: the keys and values for the cross-attention of each decoder layer.

    Every source has the same number of adjacent target rows: one, or one per beam.
    """

    layers: tuple[KeysValues, ...]
    is_token: Bool[Tensor, "batch sources"]  # False at padding

    def select(self, rows: Int[Tensor, " selected"]) -> "Encoded":
        """Return the sources of these rows, in this order; a row may occur more than once."""
        return Encoded(tuple(layer.select(rows) for layer in self.layers), self.is_token[rows])

    def contiguous(self) -> "Encoded":
        """Return the encoded sources with contiguous keys and values, as compiled steps require."""
        return Encoded(tuple(KeysValues(*(x.contiguous() for x in layer)) for layer in self.layers), self.is_token)


class Stack(nn.Module):
    """A stack of blocks, with a final norm in the pre-norm variant."""

    is_compiled = False  # whether torch.compile compiles the blocks for training
    has_fixed_shapes = False  # whether training is compiled and all batches have the same shape
    recomputes = False  # activation checkpointing: store only block inputs, and recompute the rest in the backward pass

    def __init__(self, settings: ModelSettings, n_layers: int, *, cross_attention: bool = False):
        super().__init__()
        self.rotary = rotary_positions(settings)
        self.blocks = nn.ModuleList(Block(settings, cross_attention=cross_attention) for _ in range(n_layers))
        pre_norm = settings.norm_position == "pre"
        self.norm = make_norm(settings.d_model, settings.norm, bias=settings.bias) if pre_norm else nn.Identity()

    @property
    def cache_like(self) -> Tensor:
        """A tensor with the device and dtype of cached keys and values."""
        return outputs_like(self.blocks[0].get_submodule("attention.key"))

    def forward(
        self,
        x: Float[Tensor, "batch targets d_model"],
        positions: Int[Tensor, "rows targets"],
        mask: Mask,
        cache: Cache | None = None,
        encoded: Encoded | None = None,
    ) -> Float[Tensor, "batch targets d_model"]:
        """Run all blocks; with a cache, the tokens of `x` follow the cached tokens."""
        context = self.context(x.shape[1], positions, mask, cache, encoded, self.rotary)
        for layer, block in enumerate(self.blocks):
            layer_cache = cache.layers[layer] if cache else None
            run = partial(checkpoint, block, use_reentrant=False) if self.recomputes and self.training else block
            x = run(x, context, layer_cache, encoded.layers[layer] if encoded else None)
        return self.norm(x)

    def context(
        self,
        n_targets: int,
        positions: Int[Tensor, "rows targets"],
        mask: Mask,
        cache: Cache | None,
        encoded: Encoded | None,
        rotary: Rotary | None,
    ) -> ForwardContext:
        """Return the inputs that all layers share; grow the cache if the new tokens do not fit."""
        end = n_targets + (cache.longest if cache else 0)
        if cache:
            cache.make_room(n_targets)
        start = None if cache and cache.ragged else end - n_targets
        return ForwardContext(
            positions,
            end,
            mask.resolve(positions, end, whole=end == n_targets, last=n_targets == 1 and start is not None),
            rotary(positions) if rotary else None,
            Mask(is_token=encoded.is_token).resolve(positions, encoded.is_token.shape[1]) if encoded else KernelMask(),
            cache.origins if cache else None,
            start,
        )

    def encode(self, x: Float[Tensor, "batch sources d_model"], is_token: Bool[Tensor, "batch sources"]) -> Encoded:
        """Compute the keys and values of every layer's cross-attention from the encoder's output."""
        return Encoded(
            tuple(block.source_keys_values(x) for block in self.blocks if isinstance(block, Block)), is_token
        )
