"""Each architecture learns, in a few hundred steps, a task that needs its kind of attention."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from penwright.config import ModelSettings, Table
from penwright.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly

pytestmark = pytest.mark.usefixtures("no_type_checks")
LETTERS, LENGTH, START, COUNTED = 8, 6, 0, 1
Task = Callable[[int], tuple[Tensor, Tensor]]  # maps a number of examples to logits and targets


def settings_of(changes: Table) -> ModelSettings:
    return ModelSettings.model_validate({"d_model": 32, "n_layers": 2, "n_heads": 4, "context_length": 32} | changes)


def accuracy_after_training(model: nn.Module, task: Task, learning_rate: float, steps: int) -> float:
    """Train, and return the accuracy on new examples."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    for _ in range(steps):
        logits, targets = task(32)
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, -2), targets.flatten()).backward()
        optimizer.step()
    with torch.no_grad():
        logits, targets = task(256)
    return (logits.argmax(-1) == targets).float().mean().item()


def random_words(batch: int) -> Tensor:
    return torch.randint(1, LETTERS + 1, (batch, LENGTH))


def test_decoder_only_learns_to_copy() -> None:
    torch.manual_seed(0)
    model = DecoderOnly(LETTERS + 1, settings_of({}))

    def copy(batch: int) -> tuple[Tensor, Tensor]:
        words = random_words(batch)
        tokens = torch.cat([words, torch.full((batch, 1), START), words], 1)
        return model(tokens[:, :-1])[:, LENGTH:], words

    assert accuracy_after_training(model, copy, 1e-2, steps=150) > 0.98


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_encoder_decoder_learns_to_copy(norm_position: str) -> None:
    torch.manual_seed(0)
    changes = {"positions": {"type": "sinusoidal"}, "scale_embeddings": True, "norm_position": norm_position}
    model = EncoderDecoder(LETTERS + 1, settings_of(changes))

    def copy(batch: int) -> tuple[Tensor, Tensor]:
        words = random_words(batch)
        target = torch.cat([torch.full((batch, 1), START), words[:, :-1]], 1)
        return model(words, torch.ones_like(words, dtype=torch.bool), target), words

    assert accuracy_after_training(model, copy, 5e-3, steps=220) > 0.9


def test_encoder_only_learns_to_count() -> None:
    torch.manual_seed(0)
    model = EncoderOnly(LETTERS + 1, settings_of({}), n_labels=4)

    def count(batch: int) -> tuple[Tensor, Tensor]:
        counts, lengths = torch.randint(4, (batch,)), torch.randint(4, 11, (batch,))
        real = torch.arange(10) < lengths[:, None]
        shuffled = torch.rand(batch, 10).masked_fill(~real, 1.0).argsort(1).argsort(1)
        others = torch.randint(COUNTED + 1, LETTERS + 1, (batch, 10))
        tokens = others.where(shuffled >= counts[:, None], torch.tensor(COUNTED)).where(real, torch.tensor(0))
        return model(tokens, real), counts

    assert accuracy_after_training(model, count, 3e-3, steps=200) > 0.9
