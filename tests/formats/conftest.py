"""Small models with random weights in which no two variants agree, and tokenizers of awkward texts."""

from collections.abc import Callable

import pytest
import torch

from penwright.config import ModelSettings, Table, Task, merge
from penwright.model import Model, make_model
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer

SMALL: Table = {
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 48,
    "context_length": 24,
    "zero_init_outputs": False,
}
AWKWARD = [
    "The cat sat on the mat, and the dog's mat was sat on. " * 9,
    "  two leading, double  inside, trailing  \ttabs\t\r\nCRLF\n\n\n",
    "family 👨‍👩‍👧‍👦 nul \0 separator \u2028 paragraph \u2029 bom \ufeff nbsp\u00a0 controls \x1b\x1c \x7f\x85",
    "</s><pad><s><unk> <0x0A> ▁ Ġ Ċ Ā don't Zażółć gęślą jaźń 日本語の文章です。 שלום replacement \ufffd",
]
RandomModel = Callable[..., Model]


def make_random_model(task: Task, tokenizer: Tokenizer, seed: int = 0, **changes: object) -> Model:
    """In evaluation mode; each number is moved a little, so that no norm is one and no bias is zero."""
    torch.manual_seed(seed)
    model = make_model(task, tokenizer.vocab_size, ModelSettings(**merge(SMALL, changes)), n_labels=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.05 * torch.randn(parameter.shape))
    return model


@pytest.fixture
def random_model() -> RandomModel:
    return make_random_model


@pytest.fixture(scope="session")
def bpe() -> Tokenizer:
    return train_tokenizer("bpe", AWKWARD, 300)


@pytest.fixture(scope="session", params=["characters", "bytes", "bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Of each kind."""
    return train_tokenizer(request.param, AWKWARD, 300 if request.param in ("bpe", "unigram") else None)


@pytest.fixture(scope="session")
def awkward() -> list[str]:
    """Hard texts, which the tokenizers have seen."""
    return AWKWARD
