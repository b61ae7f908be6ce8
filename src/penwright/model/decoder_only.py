"""Decoder-only: reads tokens from left to right and scores, at each of them, what comes next."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from penwright.config import ModelSettings
from penwright.model.block import Stack
from penwright.model.cache import Cache, positions_of
from penwright.model.embedding import Embedding, output_layer
from penwright.model.init import initialise
from penwright.model.mask import Mask


class DecoderOnly(nn.Module):
    """With the modern block this is Llama (Touvron et al. 2023) or Qwen3; with the classic one, GPT-2."""

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
        """The logits of the token after each."""
        return self.output(self.hidden(tokens, segments, cache))

    def hidden(
        self,
        tokens: Int[Tensor, "batch length"],
        segments: Int[Tensor, "batch length"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """What the output layer reads. Tokens see only their own segment; with a cache, they follow what it holds."""
        positions = positions_of(tokens, cache, self.settings)
        mask = Mask(causal=True, window=self.settings.window, segments=segments)
        return self.decoder(self.embedding(tokens, positions), positions, mask, cache)

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache for this many rows and tokens a row."""
        return Cache(self.settings, self.settings.n_layers, batch, capacity, like=self.decoder.kept_like)
