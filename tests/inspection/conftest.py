"""Inspectors of small random models of each task, in double precision."""

from collections.abc import Callable

import pytest
import torch

from penwright.classification.classifier import Classifier
from penwright.config import ModelSettings, Table, Task, merge
from penwright.generation.generator import Generator
from penwright.inspection import Inspector
from penwright.model import make_model
from penwright.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.translation.translator import Translator

SMALL: Table = {
    "d_model": 24,
    "n_layers": 2,
    "n_heads": 4,
    "d_head": 6,
    "d_ff": 20,
    "context_length": 24,
    "zero_init_outputs": False,
}
CLASSIC: Table = {
    "norm": {"type": "layer"},
    "norm_position": "post",
    "feed_forward": "relu",
    "positions": {"type": "sinusoidal"},
    "bias": True,
    "scale_embeddings": True,
}
VARIANTS: dict[str, Table] = {
    "modern": {},
    "classic": CLASSIC,
    "grouped": {"n_kv_heads": 2, "tie_embeddings": "none"},
    "qk-norm": {"qk_norm": True, "n_kv_heads": 1},
    "window": {"window": 3, "positions": {"type": "learned"}},
    "shallow-decoder": {"n_decoder_layers": 1, "output_bias": True},
}
TASKS: tuple[Task, ...] = ("generate", "translate", "classify")
LABELS = ("bad", "fair", "good")
TEXT, TARGET = "abc bad cab", "a bad ace"

MakeInspector = Callable[..., Inspector]


@pytest.fixture(scope="session")
def characters() -> Tokenizer:
    return train_tokenizer("characters", ["abcdefghij ,.ABCé\n"])


@pytest.fixture(scope="session")
def pieces() -> Tokenizer:
    """A byte-level BPE tokenizer, whose tokens are words, parts of words and parts of characters."""
    return train_tokenizer("bpe", ["the red fox and the blue fox saw the red sky, naïve"] * 9, 300)


@pytest.fixture
def make_inspector(characters: Tokenizer) -> MakeInspector:
    """A function that makes an inspector of a random model of a task, with changed settings."""

    def make(task: Task, changes: Table | None = None, tokenizer: Tokenizer = characters, seed: int = 0) -> Inspector:
        torch.manual_seed(seed)
        settings = ModelSettings.model_validate(merge(SMALL, changes or {}))
        model = make_model(task, tokenizer.vocab_size, settings, len(LABELS)).double()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(2.0)  # sharper attention, so that positions differ
                else:
                    parameter.add_(torch.randn_like(parameter) / 5)  # norms and biases with an effect
        match model:
            case DecoderOnly():
                return Inspector(Generator(model, tokenizer))
            case EncoderDecoder():
                return Inspector(Translator(model, tokenizer))
            case EncoderOnly():
                return Inspector(Classifier(model, tokenizer, LABELS))

    return make


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize("variant", list(VARIANTS.values()), ids=list(VARIANTS))
    if "task" in metafunc.fixturenames:
        metafunc.parametrize("task", TASKS)


@pytest.fixture
def text_and_target(task: Task) -> tuple[str, str | None]:
    """A text, and the target of this task, if it has one."""
    return TEXT, TARGET if task == "translate" else None
