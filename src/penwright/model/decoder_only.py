"""The decoder-only Transformer: reads tokens from left to right and predicts the next token at each position."""

from typing import TYPE_CHECKING

from jaxtyping import Float, Int
from torch import Tensor, nn

from penwright.config import ModelSettings
from penwright.model.block import Stack
from penwright.model.cache import Cache, positions_of
from penwright.model.embedding import Embedding, output_layer
from penwright.model.init import initialise
from penwright.model.mask import Mask

if TYPE_CHECKING:
    from penwright.model.fused import FusedDecoder


class DecoderOnly(nn.Module):
    """A causal language model: Llama (Touvron et al. 2023) or Qwen3 (modern block), or GPT-2 (classic block)."""

    fused: "FusedDecoder | None" = None  # faster decoder for inference, set by model.fused.fuse()

    def __init__(self, vocab_size: int, settings: ModelSettings):
        super().__init__()
        self.settings = settings
        self.embedding = Embedding(vocab_size, settings)
        self.decoder = Stack(settings, settings.n_layers)
        self.output = output_layer(vocab_size, settings, tied=self.embedding.tokens)
        initialise(self, settings)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        segments: Int[Tensor, "batch length"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch length vocab_size"]:
        """Return the logits of the next token at each position."""
        return self.output(self.hidden(tokens, segments, cache))

    def hidden(
        self,
        tokens: Int[Tensor, "batch length"],
        segments: Int[Tensor, "batch length"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the hidden states that the output layer reads.

        Tokens attend only within their own segment. With a cache, they follow the cached tokens.
        """
        positions = positions_of(tokens, cache, self.settings)
        mask = Mask(causal=True, window=self.settings.window, segments=segments)
        return self.decoder(self.embedding(tokens, positions), positions, mask, cache)

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """Return an empty cache for `batch` rows of at most `capacity` tokens."""
        return Cache(self.settings, self.settings.n_layers, batch, capacity, like=self.decoder.kept_like)
