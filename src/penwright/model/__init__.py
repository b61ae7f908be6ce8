"""The three Transformer architectures: decoder-only, encoder-decoder, encoder-only."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from penwright.config import LoraSettings, ModelSettings, Task
from penwright.model.block import Encoded
from penwright.model.lora import add_lora
from penwright.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly

HEAD = ("output", "pooler")  # modules of a classifier's head; LoRA trains them in full, because the labels may be new
Model = DecoderOnly | EncoderDecoder | EncoderOnly

__all__ = ["DecoderOnly", "Encoded", "EncoderDecoder", "EncoderOnly", "Model", "evaluating", "make_model"]


def make_model(
    task: Task, vocab_size: int, settings: ModelSettings, n_labels: int = 0, lora: LoraSettings | None = None
) -> Model:
    """Make a new model of the architecture for this task; with `lora`, freeze it and add adapters."""
    model: Model
    match task:
        case "generate" | "chat":
            model = DecoderOnly(vocab_size, settings)
        case "translate":
            model = EncoderDecoder(vocab_size, settings)
        case "classify":
            model = EncoderOnly(vocab_size, settings, n_labels)
        case "encode":
            model = EncoderOnly(vocab_size, settings, 0)
    if lora is not None:
        add_lora(model, lora, HEAD if task == "classify" else ())
    return model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """Put the model in evaluation mode inside the `with` block, then restore its mode; yield the model's device."""
    device = next(model.parameters()).device
    if not model.training:  # setting evaluation mode again would take longer than a step of a small model
        yield device
        return
    model.eval()
    try:
        yield device
    finally:
        model.train()
