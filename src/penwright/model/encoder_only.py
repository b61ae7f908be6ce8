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
        initialise(self, settings)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        padding: Bool[Tensor, "batch length"],
        positions: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch n_labels"]:
        """Return the label logits of each text. `padding` is True at real tokens.

        `positions` are needed only if tokens were removed from the texts.
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
        in_second = self._in_second_text(tokens, padding) if self.settings.text_pairs else None
        return self.encoder(self.embedding(tokens, positions, in_second), positions, mask)

    @staticmethod
    def _in_second_text(
        tokens: Int[Tensor, "batch length"], padding: Bool[Tensor, "batch length"]
    ) -> Bool[Tensor, "batch length"]:
        """Return which tokens come after the first end token. The last token of every row is an end token."""
        ends = tokens == tokens.gather(1, padding.sum(1, keepdim=True) - 1)
        return ends.cumsum(1) > ends.long()

    def label_logits(
        self, hidden: Float[Tensor, "batch length d_model"], padding: Bool[Tensor, "batch length"]
    ) -> Float[Tensor, "batch n_labels"]:
        """Compute the label logits of each text from its hidden states."""
        return self.output(self.dropout(self.pool(hidden, padding)))

    def pool(
        self, hidden: Float[Tensor, "batch length d_model"], padding: Bool[Tensor, "batch length"]
    ) -> Float[Tensor, "batch d_model"]:
        """Return one vector per text, from its first token or the mean over its real tokens."""
        weights = padding[..., None].to(hidden.dtype)
        mean = self.settings.pooling == "mean"
        pooled = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1) if mean else hidden[:, 0]
        return pooled if self.pooler is None else self.activation(self.pooler(pooled))
