"""The models with which `benchmarks/engines.py` compares engines: of a run, or of a shape, with random weights."""

import random
from pathlib import Path
from typing import NamedTuple

import torch

from penwright.classification.classifier import Classifier
from penwright.config import ModelSettings, Table, Task
from penwright.model import Model, make_model
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.workflows.load import load


class Shape(NamedTuple):
    """The shape of a model with random weights."""

    task: Task
    vocab_size: int
    model: Table


SHAPES = {
    "writer-12M": Shape("generate", 4096, {"size": "medium"}),
    "writer-88M": Shape("generate", 4096, {"size": "large"}),
    "translator-tiny": Shape("translate", 8000, {"size": "tiny"}),
    "translator-base": Shape("translate", 8000, {"size": "base"}),
}


class Measured(NamedTuple):
    """A model with its task and tokenizer."""

    task: Task
    model: Model
    tokenizer: Tokenizer


def random_model(shape: Shape) -> Measured:
    """Return a random model that writes ASCII letters only, so that texts can be compared.

    Its weights are doubled, so that the most likely token is clear.
    """
    torch.manual_seed(0)
    tokenizer = made_up_tokenizer(shape.vocab_size)
    settings = ModelSettings(**shape.model, zero_init_outputs=False)
    model = make_model(shape.task, tokenizer.vocab_size, settings).eval()
    unwritable = [token for token in range(tokenizer.vocab_size) if not tokenizer.token_bytes(token).isalpha()]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2)
        model.output.weight[unwritable] = 0
    return Measured(shape.task, model, tokenizer)


def made_up_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a BPE tokenizer trained on random words."""
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9))) for _ in range(vocab_size)]
    tokenizer = train_tokenizer("bpe", [" ".join(words)] * 2, vocab_size)
    assert tokenizer.vocab_size == vocab_size, tokenizer.notes
    return tokenizer


def trained_model(run: Path) -> Measured:
    """Load the model of a run."""
    application = load(run)
    if isinstance(application, Classifier):
        raise SystemExit(f"{run} is a classifier, which does not generate text")
    task: Task = "generate" if hasattr(application, "generate") else "translate"
    return Measured(task, application.model, application.tokenizer)
