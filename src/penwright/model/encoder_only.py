"""The encoder-only Transformer: reads a whole text and scores each label."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from penwright.config import ModelSettings
from penwright.model.block import Stack
from penwright.model.cache import positions_of
from penwright.model.dropout import Dropout
from penwright.model.embedding import Embedding
from penwright.model.init import initialise
from penwright.model.mask import Mask


class EncoderOnly(nn.Module):
    """A Transformer encoder with a classification head; with the classic block, BERT (Devlin et al. 2019)."""

    def __init__(self, vocab_size: int, settings: ModelSettings, n_labels: int):
        super().__init__()
        self.settings = settings
        self.embedding = Embedding(vocab_size, settings)
        self.encoder = Stack(settings, settings.n_layers)
        self.pooler = nn.Linear(settings.d_model, settings.d_model) if settings.pooler else None
        self.dropout = Dropout(settings.dropout)
        self.output = nn.Linear(settings.d_model, n_labels)
        if settings.ngrams:  # weights of this model and of the n-grams in their mixture, fitted on held-out texts
            self.mixture = nn.Parameter(torch.tensor([0.0, 1.0]), requires_grad=False)
        if settings.balanced:  # logarithms of the shares of the labels in the training part
            self.log_prior = nn.Parameter(torch.zeros(n_labels), requires_grad=False)
        initialise(self, settings)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        padding: Bool[Tensor, "batch length"],
        positions: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch n_labels"]:
        """Return the label logits of each text. `padding` is True at real tokens.

        `positions` are needed only if tokens were left out of the texts.
        """
        return self.label_logits(self.hidden(tokens, padding, positions), padding)

    def hidden(
        self,
        tokens: Int[Tensor, "batch length"],
        padding: Bool[Tensor, "batch length"],
        positions: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the hidden state of each token."""
        positions = positions_of(tokens, None, self.settings) if positions is None else positions
        mask = Mask(window=self.settings.window, padding=padding)
        return self.encoder(self.embedding(tokens, positions), positions, mask)

    def label_logits(
        self, hidden: Float[Tensor, "batch length d_model"], padding: Bool[Tensor, "batch length"]
    ) -> Float[Tensor, "batch n_labels"]:
        """Return the label logits of each text from its hidden states."""
        pooled = self.pool(hidden, padding)
        if self.pooler is not None:
            pooled = self.pooler(pooled).tanh()
        return self.output(self.dropout(pooled))

    def pool(
        self, hidden: Float[Tensor, "batch length d_model"], padding: Bool[Tensor, "batch length"]
    ) -> Float[Tensor, "batch d_model"]:
        """Return one vector per text: the mean over its real tokens, or its first token."""
        if self.settings.pooling == "first":
            return hidden[:, 0]
        weights = padding[..., None].to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
