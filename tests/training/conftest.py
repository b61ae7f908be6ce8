"""A tiny text and a tiny model to train, without files; and the handlers of stop signals."""

import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from penwright.config import Recipe, Table, merge, validate
from penwright.data.batches import Markers, TextBatches
from penwright.data.store import Column
from penwright.model.transformer import DecoderOnly
from penwright.training.auto.machine import Machine
from penwright.training.distributed.launcher import STOP_SIGNALS
from penwright.training.trainer import Trainer

VOCABULARY = 12
MARKERS = Markers(pad=9, start=10, end=11)
CPU = Machine(torch.device("cpu"), torch.float32, ())


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """Handle stop signals as at the start of a program, whatever the shell or other tests have set."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def text() -> Column:
    tokens = np.tile(np.arange(8, dtype=np.uint16), 40)
    return Column(tokens, np.array([0, len(tokens)]), n_bytes=len(tokens))


@pytest.fixture
def make_trainer(text: Column) -> Callable[..., Trainer]:
    def make(machine: Machine = CPU, **changes: Table) -> Trainer:
        table: Table = {
            "task": "generate",
            "data": {"train": ["nowhere"]},
            "model": {"d_model": 16, "n_layers": 1, "n_heads": 2, "context_length": 8, "dropout": 0.1},
            "optimizer": {"type": "muon"},
            "training": {"steps": 6, "batch_tokens": 32},
        }
        recipe = validate(Recipe, merge(table, changes), "test")
        torch.manual_seed(recipe.seed)
        batches = TextBatches(text, 8, recipe.training.batch_tokens, MARKERS, recipe.seed)
        return Trainer(DecoderOnly(VOCABULARY, recipe.model), batches, recipe, machine)

    return make
