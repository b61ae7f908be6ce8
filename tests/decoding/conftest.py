"""Small random models whose outputs vary from token to token, and tokenizers for them."""

from collections.abc import Callable

import pytest
import torch

from penwright.config import ModelSettings, Table, Task, merge
from penwright.model import Model, make_model
from penwright.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer

SMALL: Table = {
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "context_length": 16,
    "tie_embeddings": "none",
    "zero_init_outputs": False,
}
LAYER_NORM: Table = {"norm": {"type": "layer"}, "bias": True}
VARIANTS: dict[str, Table] = {
    "modern": {},
    "sinusoidal, post-norm": {"positions": {"type": "sinusoidal"}, "norm_position": "post"},
    "learned, post-layer-norm": {"positions": {"type": "learned"}, "norm_position": "post", **LAYER_NORM},
    "no positions, multi-query": {"positions": {"type": "none"}, "n_kv_heads": 1},
    "grouped, qk-norm, window": {"n_kv_heads": 2, "qk_norm": True, "window": 3},
    "learned, grouped, window": {"positions": {"type": "learned"}, "n_kv_heads": 2, "window": 5},
    "tied, layer-norm": {"tie_embeddings": "all", "scale_embeddings": True, **LAYER_NORM},
}


def random_model(task: Task, vocab_size: int, changes: Table, seed: int = 0, n_labels: int = 0) -> Model:
    torch.manual_seed(seed)
    model = make_model(task, vocab_size, ModelSettings(**merge(SMALL, changes)), n_labels).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2.0)  # sharper distributions, so that the likeliest token varies by position
    return model


@pytest.fixture
def generating_model() -> Callable[..., DecoderOnly]:
    def make(vocab_size: int = 29, seed: int = 0, **changes: object) -> DecoderOnly:
        model = random_model("generate", vocab_size, changes, seed)
        assert isinstance(model, DecoderOnly)
        return model

    return make


@pytest.fixture
def translating_model() -> Callable[..., EncoderDecoder]:
    def make(vocab_size: int = 29, seed: int = 0, **changes: object) -> EncoderDecoder:
        model = random_model("translate", vocab_size, changes, seed)
        assert isinstance(model, EncoderDecoder)
        return model

    return make


@pytest.fixture
def classifying_model() -> Callable[..., EncoderOnly]:
    def make(vocab_size: int = 29, n_labels: int = 3, seed: int = 0, **changes: object) -> EncoderOnly:
        model = random_model("classify", vocab_size, changes, seed, n_labels)
        assert isinstance(model, EncoderOnly)
        return model

    return make


@pytest.fixture(scope="session")
def characters() -> Tokenizer:
    return train_tokenizer("characters", ["abcdefghij ,.ABCé\n"])


@pytest.fixture(scope="session")
def raw_bytes() -> Tokenizer:
    return train_tokenizer("bytes", ["any"])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize("variant", list(VARIANTS.values()), ids=list(VARIANTS))
