"""The encoder-decoder Transformer: encodes a source and predicts a target token by token."""

from typing import TYPE_CHECKING

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from penwright.config import ModelSettings
from penwright.model.block import Encoded, Stack
from penwright.model.cache import Cache, positions_of
from penwright.model.embedding import Embedding, output_layer
from penwright.model.init import initialise
from penwright.model.mask import Mask

if TYPE_CHECKING:
    from penwright.model.fused import FusedDecoder


class EncoderDecoder(nn.Module):
    """The Transformer of "Attention Is All You Need"; with other settings, Marian and M2M100."""

    fused: "FusedDecoder | None" = None  # faster decoder for inference, set by model.fused.fuse()

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
        """Return the logits of the next token at each target position."""
        return self.output(self.hidden(target, self.encode(source, source_padding)))

    def encode(self, source: Int[Tensor, "batch sources"], padding: Bool[Tensor, "batch sources"]) -> Encoded:
        """Encode the sources into keys and values for every decoder layer; `padding` is True at real tokens."""
        positions = positions_of(source, None, self.settings)
        mask = Mask(window=self.settings.window, padding=padding)
        return self.decoder.encode(self.encoder(self.source_embedding(source, positions), positions, mask), padding)

    def hidden(
        self, target: Int[Tensor, "batch targets"], encoded: Encoded, cache: Cache | None = None
    ) -> Float[Tensor, "batch targets d_model"]:
        """Return the hidden states that the output layer reads; with a cache, the tokens follow the cached ones."""
        positions = positions_of(target, cache, self.settings)
        mask = Mask(causal=True, window=self.settings.window)
        return self.decoder(self.target_embedding(target, positions), positions, mask, cache, encoded)

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """Return an empty cache for `batch` rows of at most `capacity` target tokens."""
        return Cache(self.settings, self.n_decoder_layers, batch, capacity, like=self.decoder.kept_like)
