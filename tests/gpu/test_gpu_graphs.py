"""Decoding steps on a GPU run as CUDA graphs, and write the same texts as without graphs and on the CPU."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from penwright.config import DecodingSettings, Precision
from penwright.decoding import cuda_graphs
from penwright.decoding.cuda_graphs import Pool, Recorded
from penwright.generation.generator import Generator
from penwright.model import Model
from penwright.model.attention import Mask, fused_attention, plain_attention
from penwright.model.fused import fuse
from penwright.model.quantized import to_precision
from penwright.model.transformer import DecoderOnly, EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.translation.translator import Translator

from ..decoding.conftest import VARIANTS, characters, random_model  # noqa: F401  # a fixture
from ..decoding.test_cuda_graphs import Recorder
from .conftest import DEVICE, IS_CUDA, needs_cuda, pytestmark_of_gpu

pytestmark = pytestmark_of_gpu
PROMPTS = ["ab", "cde", "f", "ghij a"]
SOURCES = ["abcdefgh", "j a b", "hhhh", "c"]


class Counter:
    """Counts the graphs that are captured and replayed."""

    def __init__(self) -> None:
        self.record = cuda_graphs.record_cuda_graph if IS_CUDA else Recorder()
        self.n_captured = self.n_replayed = 0

    def __call__(self, step: Callable[[], Tensor], device: torch.device, pool: Pool) -> Recorded:
        replay, logits, pool = self.record(step, device, pool)
        self.n_captured += 1

        def counted() -> None:
            self.n_replayed += 1
            replay()

        return counted, logits, pool


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    """Count graphs. At the end, some must have been captured, and replayed more often."""
    counter = Counter()
    monkeypatch.setattr(cuda_graphs, "DEVICES", (DEVICE,))
    monkeypatch.setattr(cuda_graphs, "record_cuda_graph", counter)
    yield counter
    assert counter.n_captured >= 1 and counter.n_replayed > 2 * counter.n_captured


def placed(model: Model, precision: Precision, device: str) -> Model:
    to_precision(model.eval(), precision)
    model.to(device)
    assert isinstance(model, DecoderOnly | EncoderDecoder)
    fuse(model)  # as `penwright.load` does
    return model


def writes(tokenizer: Tokenizer, device: str, precision: Precision = "float32", **changes: object) -> Generator:
    model = random_model("generate", tokenizer.vocab_size, {"context_length": 100, **changes})
    return Generator(placed(model, precision, device), tokenizer, DecodingSettings(max_new_tokens=90, temperature=0.0))


def translates(tokenizer: Tokenizer, device: str, precision: Precision = "float32", **changes: object) -> Translator:
    model = random_model("translate", tokenizer.vocab_size, {"context_length": 100, **changes})
    return Translator(placed(model, precision, device), tokenizer, DecodingSettings(max_new_tokens=60, beam_size=1))


def texts(found: list) -> list[str]:
    return [each.text for each in found]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=list(VARIANTS))
def test_greedy_texts_equal_those_of_the_cpu(variant: dict, graphs: Counter, characters: Tokenizer) -> None:  # noqa: F811
    assert texts(writes(characters, DEVICE, **variant).generate(PROMPTS)) == texts(
        writes(characters, "cpu", **variant).generate(PROMPTS)
    )
    for beams in (1, 3):
        found, expected = (
            translates(characters, device, **variant).translate(SOURCES, beam_size=beams) for device in (DEVICE, "cpu")
        )
        assert texts(found) == texts(expected)


def test_sampled_texts_equal_those_of_the_cpu(graphs: Counter, characters: Tokenizer) -> None:  # noqa: F811
    options = {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2, "n": 3, "seed": 5}
    found, expected = (texts(writes(characters, device).generate(PROMPTS, **options)) for device in (DEVICE, "cpu"))
    same = sum(one == other for one, other in zip(found, expected, strict=True))
    assert len(found) == 12 and same >= 10  # a random number may fall between two roundings


def test_log_probabilities_equal_those_of_the_cpu(graphs: Counter, characters: Tokenizer) -> None:  # noqa: F811
    for options in ({}, {"temperature": 0.7, "top_k": 1}):
        written = (writes(characters, device).generate(PROMPTS, **options) for device in (DEVICE, "cpu"))
        for found, expected in zip(*written, strict=True):
            assert found.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
    translated = (translates(characters, device).translate(SOURCES, beam_size=3) for device in (DEVICE, "cpu"))
    for found, expected in zip(*translated, strict=True):
        assert found.candidates[0].log_prob == pytest.approx(expected.candidates[0].log_prob, abs=1e-3)


def test_rows_that_leave_and_join_do_not_change_others(graphs: Counter, characters: Tokenizer) -> None:  # noqa: F811
    alone = [writes(characters, DEVICE).generate(prompt)[0].text for prompt in PROMPTS * 3]
    assert texts(writes(characters, DEVICE).generate(PROMPTS * 3)) == alone
    many = [f"{a}{b}" for a in "abcdefghij" for b in "abcdefghij"]  # more prompts than rows of a batch
    assert texts(writes(characters, DEVICE).generate(many, max_new_tokens=30)) == [
        each.text for each in writes(characters, "cpu").generate(many, max_new_tokens=30)
    ]


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_other_precisions_give_the_texts_of_steps_without_graphs(
    precision: Precision,
    graphs: Counter,
    characters: Tokenizer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = texts(writes(characters, DEVICE, precision).generate(PROMPTS))
    translated = texts(translates(characters, DEVICE, precision).translate(SOURCES, beam_size=3))
    monkeypatch.setattr(cuda_graphs, "STEPS_BEFORE", 10**9)
    assert texts(writes(characters, DEVICE, precision).generate(PROMPTS)) == written
    assert texts(translates(characters, DEVICE, precision).translate(SOURCES, beam_size=3)) == translated


@needs_cuda
def test_two_threads_generate_at_once(graphs: Counter, characters: Tokenizer) -> None:  # noqa: F811
    writer, translator = writes(characters, DEVICE), translates(characters, DEVICE)
    other = Generator(writer.model, characters, writer.defaults)  # the same weights, in another engine
    expected = texts(writer.generate(PROMPTS)), texts(translator.translate(SOURCES, beam_size=2))
    with ThreadPoolExecutor(3) as threads:
        for _ in range(5):
            written = [threads.submit(each.generate, PROMPTS) for each in (writer, other)]
            translated = threads.submit(translator.translate, SOURCES, beam_size=2)
            assert [texts(each.result()) for each in written] == [expected[0]] * 2
            assert texts(translated.result()) == expected[1]


@needs_cuda
def test_long_text_grows_its_cache_and_frees_its_graphs(graphs: Counter, characters: Tokenizer) -> None:  # noqa: F811
    writer = writes(characters, DEVICE, context_length=2000)
    writer.generate(["ab"] * 4, max_new_tokens=1500, stop=[])
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        writer.generate(["ab"] * 4, max_new_tokens=1500, stop=[])
    assert torch.cuda.memory_allocated() < before + 50e6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_a_single_target_equals_explicit_attention(dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(5, heads, length, 64, generator=rng).to(DEVICE, dtype)
        for heads, length in ((8, 1), (2, 128), (2, 128))
    )
    positions = torch.tensor([[0], [127], [3], [64], [90]], device=DEVICE)
    mask = Mask(causal=True).resolve(positions, 128, whole=False)
    found = fused_attention(queries, keys, values, mask, 0.0).float()
    expected = plain_attention(queries.double(), keys.double(), values.double(), mask, 0.0).float()
    assert (found - expected).norm() < (0.01 if dtype == torch.bfloat16 else 1e-5) * expected.norm()
