"""The three Transformer architectures: decoder-only, encoder-decoder, encoder-only."""

from penwright.config import ModelSettings, Task
from penwright.model.block import Encoded
from penwright.model.decoder_only import DecoderOnly
from penwright.model.encoder_decoder import EncoderDecoder
from penwright.model.encoder_only import EncoderOnly

Model = DecoderOnly | EncoderDecoder | EncoderOnly

__all__ = ["DecoderOnly", "Encoded", "EncoderDecoder", "EncoderOnly", "Model", "make_model"]


def make_model(task: Task, vocab_size: int, settings: ModelSettings, n_labels: int = 0) -> Model:
    """Make a new model of the architecture that this task needs."""
    match task:
        case "generate":
            return DecoderOnly(vocab_size, settings)
        case "translate":
            return EncoderDecoder(vocab_size, settings)
        case "classify":
            return EncoderOnly(vocab_size, settings, n_labels)
