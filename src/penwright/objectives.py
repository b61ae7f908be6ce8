"""What training makes small: a sum over all targets of a batch, never a mean, so that each target counts alike."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from penwright.data.batches import IGNORED, Batch, LabelledBatch, PairBatch, TextBatch
from penwright.models import DecoderOnly, EncoderDecoder, EncoderOnly, Model


def logits_of(model: Model, batch: Batch) -> Float[Tensor, "*targets n_choices"]:
    """The model's logits at every target of the batch: of the next token, of the target token, or of the label."""
    match model, batch:
        case DecoderOnly(), TextBatch():
            return model(batch.tokens, batch.segments)
        case EncoderDecoder(), PairBatch():
            return model(batch.source, batch.source_padding, batch.target)
        case EncoderOnly(), LabelledBatch():
            return model(batch.tokens, batch.padding)
    raise TypeError(f"a {type(model).__name__} does not read a {type(batch).__name__}")


def summed_loss(model: Model, batch: Batch, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
    """Cross-entropy in nats, summed over the targets (Szegedy et al. 2016 for the smoothing)."""
    logits = logits_of(model, batch)
    return F.cross_entropy(
        logits.flatten(0, -2).float(),  # sums over a vocabulary need more than 8 bits of mantissa
        batch.targets.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
