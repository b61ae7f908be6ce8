"""The embedding and the output layer of a Transformer."""

from math import sqrt

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from penwright.config import ModelSettings
from penwright.model.dropout import Dropout
from penwright.model.norm import make_norm
from penwright.model.positions import added_positions


class Embedding(nn.Module):
    """The sum of token embeddings and position encodings, with dropout and optional scaling and norm."""

    def __init__(self, vocab_size: int, settings: ModelSettings, tokens: nn.Embedding | None = None):
        """Make an embedding; `tokens` is the table of another embedding to share."""
        super().__init__()
        self.tokens = tokens if tokens is not None else nn.Embedding(vocab_size, settings.d_model)
        self.scale = sqrt(settings.d_model) if settings.scale_embeddings else 1.0
        self.positions = added_positions(settings)
        self.second = nn.Embedding(1, settings.d_model) if settings.token_types == 2 else None
        norm = make_norm(settings.d_model, settings.norm, bias=settings.bias)
        self.norm = norm if settings.embedding_norm else nn.Identity()
        self.dropout = Dropout(settings.dropout)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        positions: Int[Tensor, "rows length"],
        in_second: Bool[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the vectors of these tokens at these positions. `in_second` is True in the second text of a pair."""
        x = self.tokens(tokens) * self.scale
        x = x if self.positions is None else x + self.positions(positions).to(x.dtype)
        if self.second is not None and in_second is not None:
            x = x + in_second[..., None] * self.second.weight[0].to(x.dtype)
        return self.dropout(self.norm(x))


def output_layer(vocab_size: int, settings: ModelSettings, tied: nn.Embedding) -> nn.Linear:
    """Make the layer from hidden states to logits; it shares the matrix of `tied` unless the settings forbid it."""
    layer = nn.Linear(settings.d_model, vocab_size, bias=settings.output_bias)
    if settings.tie_embeddings != "none":
        layer.weight = tied.weight
    return layer
