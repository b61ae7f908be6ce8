"""The three architectures of the Transformer: decoder-only, encoder-decoder and encoder-only."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from penwright.config import ModelSettings
from penwright.model.attention import Mask
from penwright.model.block import Encoded, Stack
from penwright.model.cache import Cache, positions_of
from penwright.model.embedding import Embedding, output_layer
from penwright.model.layers import Dropout
from penwright.model.weights import initialize

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
        initialize(self, settings)

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
        """Return the hidden states, which are the inputs of the output layer.

        Tokens attend only within their own segment. With a cache, they follow the cached tokens.
        """
        positions = positions_of(tokens, cache, self.settings)
        mask = Mask(causal=True, window=self.settings.window, segments=segments)
        return self.decoder(self.embedding(tokens, positions), positions, mask, cache)

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """Return an empty cache for `batch` rows of at most `capacity` tokens."""
        return Cache(self.settings, self.settings.n_layers, batch, capacity, like=self.decoder.cache_like)


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
        initialize(self, settings)

    def forward(
        self,
        source: Int[Tensor, "batch sources"],
        source_is_token: Bool[Tensor, "batch sources"],
        target: Int[Tensor, "batch targets"],
    ) -> Float[Tensor, "batch targets vocab_size"]:
        """Return the logits of the next token at each target position."""
        return self.output(self.hidden(target, self.encode(source, source_is_token)))

    def encode(self, source: Int[Tensor, "batch sources"], is_token: Bool[Tensor, "batch sources"]) -> Encoded:
        """Encode the sources into keys and values for every decoder layer; `is_token` is False at padding."""
        positions = positions_of(source, None, self.settings)
        mask = Mask(window=self.settings.window, is_token=is_token)
        return self.decoder.encode(self.encoder(self.source_embedding(source, positions), positions, mask), is_token)

    def hidden(
        self, target: Int[Tensor, "batch targets"], encoded: Encoded, cache: Cache | None = None
    ) -> Float[Tensor, "batch targets d_model"]:
        """Return the inputs of the output layer; with a cache, `target` follows the cached tokens."""
        positions = positions_of(target, cache, self.settings)
        mask = Mask(causal=True, window=self.settings.window)
        return self.decoder(self.target_embedding(target, positions), positions, mask, cache, encoded)

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """Return an empty cache for `batch` rows of at most `capacity` target tokens."""
        return Cache(self.settings, self.n_decoder_layers, batch, capacity, like=self.decoder.cache_like)


class EncoderOnly(nn.Module):
    """A Transformer encoder with a classification head; with the classic block, BERT (Devlin et al. 2019).

    Without labels, it has no head and returns the vector of each text.
    """

    def __init__(self, vocab_size: int, settings: ModelSettings, n_labels: int):
        super().__init__()
        self.settings = settings
        self.embedding = Embedding(vocab_size, settings)
        self.encoder = Stack(settings, settings.n_layers)
        self.pooler = nn.Linear(settings.d_model, settings.d_model) if settings.pooler else None
        self.activation = torch.tanh if settings.pooler_activation == "tanh" else torch.relu
        self.dropout = Dropout(settings.dropout)
        self.output = nn.Linear(settings.d_model, n_labels) if n_labels else nn.Identity()
        if settings.ngrams:  # mixture weights of this model and of the n-gram model, fitted on held-out texts
            self.mixture = nn.Parameter(torch.tensor([0.0, 1.0]), requires_grad=False)
        if settings.problem_type == "multi_label_classification":  # minimum probability at which a text gets a label
            self.thresholds = nn.Parameter(torch.full((n_labels,), 0.5), requires_grad=False)
        if settings.problem_type == "regression":  # mean and standard deviation of the scores of the training texts
            self.scale = nn.Parameter(torch.tensor([0.0, 1.0]), requires_grad=False)
        if settings.balanced:  # logarithm of each label's share of the training texts
            self.log_prior = nn.Parameter(torch.zeros(n_labels), requires_grad=False)
        initialize(self, settings)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        is_token: Bool[Tensor, "batch length"],
        positions: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch n_labels"]:
        """Return the label logits of each text. `is_token` is a mask that is False at padding.

        `positions` are needed only if tokens were removed from the texts.
        """
        return self.label_logits(self.hidden(tokens, is_token, positions), is_token)

    def hidden(
        self,
        tokens: Int[Tensor, "batch length"],
        is_token: Bool[Tensor, "batch length"],
        positions: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the hidden state of each token."""
        positions = positions_of(tokens, None, self.settings) if positions is None else positions
        mask = Mask(window=self.settings.window, is_token=is_token)
        in_second = self._in_second_text(tokens, is_token) if self.settings.text_pairs else None
        return self.encoder(self.embedding(tokens, positions, in_second), positions, mask)

    @staticmethod
    def _in_second_text(
        tokens: Int[Tensor, "batch length"], is_token: Bool[Tensor, "batch length"]
    ) -> Bool[Tensor, "batch length"]:
        """Return a mask of the tokens after the first end token. Every row must end with an end token."""
        ends = tokens == tokens.gather(1, is_token.sum(1, keepdim=True) - 1)
        return ends.cumsum(1) > ends.long()

    def label_logits(
        self, hidden: Float[Tensor, "batch length d_model"], is_token: Bool[Tensor, "batch length"]
    ) -> Float[Tensor, "batch n_labels"]:
        """Compute the label logits of each text from its hidden states."""
        return self.output(self.dropout(self.pool(hidden, is_token)))

    def pool(
        self, hidden: Float[Tensor, "batch length d_model"], is_token: Bool[Tensor, "batch length"]
    ) -> Float[Tensor, "batch d_model"]:
        """Return one vector per text, from its first token or the mean over its real tokens."""
        pooled = mean_pooled(hidden, is_token) if self.settings.pooling == "mean" else hidden[:, 0]
        return pooled if self.pooler is None else self.activation(self.pooler(pooled))


def mean_pooled(
    hidden: Float[Tensor, "batch length d_model"], is_token: Bool[Tensor, "batch length"]
) -> Float[Tensor, "batch d_model"]:
    """Return the mean hidden state of each row over its real tokens."""
    weights = is_token[..., None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
