"""Encoder-decoder: reads a source as a whole, and scores a target token by token while looking at it."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from penwright.config import ModelSettings
from penwright.model.block import Encoded, Stack
from penwright.model.cache import Cache, positions_of
from penwright.model.embedding import Embedding, output_layer
from penwright.model.init import initialise
from penwright.model.mask import Mask


class EncoderDecoder(nn.Module):
    """The shape of "Attention Is All You Need"; Marian and M2M100 are values of its settings."""

    def __init__(self, vocab_size: int, settings: ModelSettings):
        super().__init__()
        self.settings = settings
        self.n_decoder_layers = settings.n_decoder_layers or settings.n_layers
        self.source_embedding = Embedding(vocab_size, settings)
        shared = self.source_embedding.tokens if settings.tie_embeddings == "all" else None
        self.target_embedding = Embedding(vocab_size, settings, tokens=shared)
        self.encoder = Stack(settings, settings.n_layers)
        self.decoder = Stack(settings, self.n_decoder_layers, cross_attention=True)
        self.output = output_layer(vocab_size, settings, tied=self.target_embedding.tokens)
        initialise(self, settings)

    def forward(
        self,
        source: Int[Tensor, "batch sources"],
        source_padding: Bool[Tensor, "batch sources"],
        target: Int[Tensor, "batch targets"],
    ) -> Float[Tensor, "batch targets vocab_size"]:
        """The logits of the token after each target token."""
        return self.output(self.hidden(target, self.encode(source, source_padding)))

    def encode(self, source: Int[Tensor, "batch sources"], padding: Bool[Tensor, "batch sources"]) -> Encoded:
        """Read the sources (padding: True at real tokens) and make the keys and values of every decoder layer."""
        positions = positions_of(source, None, self.settings)
        mask = Mask(window=self.settings.window, padding=padding)
        return self.decoder.encode(self.encoder(self.source_embedding(source, positions), positions, mask), padding)

    def hidden(
        self, target: Int[Tensor, "batch targets"], encoded: Encoded, cache: Cache | None = None
    ) -> Float[Tensor, "batch targets d_model"]:
        """What the output layer reads at each target token; with a cache, the tokens follow what it holds."""
        positions = positions_of(target, cache, self.settings)
        mask = Mask(causal=True, window=self.settings.window)
        return self.decoder(self.target_embedding(target, positions), positions, mask, cache, encoded)

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache for this many rows and target tokens a row."""
        return Cache(self.settings, self.n_decoder_layers, batch, capacity, like=self.decoder.kept_like)
