"""The device that the tests of this folder use, and tiny runs that were trained on a CPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ..cli.conftest import QUICK, Command, corpora, penwright, runs  # noqa: F401  # fixtures

DEVICE = "cuda"  # to debug these tests without a GPU, change this to "cpu" and run the tests of this folder
IS_CUDA = DEVICE == "cuda"
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
# GPU libraries warn about slow code. Only Penwright's own warnings are errors.
strict = pytest.mark.filterwarnings("default", "error::penwright.errors.PenwrightWarning")
pytestmark_of_gpu = [strict, *([needs_cuda] if IS_CUDA else [])]
MODEL = ["--set", "model.d_model=32", "--set", "model.n_layers=2", "--set", "model.n_heads=2"]
TRAINING = [*MODEL]
for setting in (
    "model.context_length=64",
    "training.batch_tokens=1024",
    "training.evaluate_every=20",
    "decoding.max_new_tokens=8",
):
    TRAINING += ["--set", setting]


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Multiply float32 matrices without TF32, as on a CPU."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def options(**settings: object) -> list[object]:
    """Return `--set` options; two underscores stand for the dot in the name of a setting."""
    return [part for name, value in settings.items() for part in ("--set", f"{name.replace('__', '.')}={value}")]


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest absolute difference between tensors of the same name."""
    assert one.keys() == other.keys()
    return max(float((one[name].cpu().float() - other[name].cpu().float()).abs().max()) for name in one)


@pytest.fixture(scope="session")
def chat_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts and answers to train a chat model on."""
    path = tmp_path_factory.mktemp("chat") / "chat.jsonl"
    words = ["rain", "snow", "wind", "fog"]
    line = '{{"prompt": "Will there be {word} on day {n}?", "completion": "Yes, {word}."}}\n'
    path.write_text("".join(line.format(word=word, n=n) for n in range(60) for word in words), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def scores_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts with scores to train a regression model on."""
    path = tmp_path_factory.mktemp("scores") / "scores.csv"
    moods = {"fine": 4.0, "fair": 2.5, "dull": 1.0}
    rows = [f"a {mood} film number {n},{score + n % 3 / 10}\n" for n in range(60) for mood, score in moods.items()]
    path.write_text("text,score\n" + "".join(rows), encoding="utf-8")
    return path
