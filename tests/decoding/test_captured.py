"""Steps by graphs are the steps themselves, while caches grow, beams change places and rows leave.

Where there is no GPU, a graph is what torch has recorded of the operators: it reads and writes the same tensors each
time, as a CUDA graph does, and cannot be recorded where Python looks at a number.
"""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from penwright.config import DecodingSettings
from penwright.decoding import cuda_graphs
from penwright.decoding.cuda_graphs import Replay
from penwright.errors import PenwrightWarning
from penwright.generation.generator import Generator
from penwright.model.decoder_only import DecoderOnly
from penwright.model.encoder_decoder import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.translation.translator import Translator

Made = Callable[[], list[str]]
Record = Callable[[Callable[[], Tensor], torch.device], tuple[Replay, Tensor]]


class Recorder:
    """Records operators, and counts how often they are done again."""

    def __init__(self) -> None:
        self.n_recorded = self.n_replayed = 0

    def __call__(self, step: Callable[[], Tensor], _: torch.device) -> tuple[Replay, Tensor]:
        self.n_recorded += 1
        graph = make_fx(step)()
        found = torch.empty_like(step())

        def replay() -> None:
            self.n_replayed += 1
            found.copy_(graph())

        return replay, found


def fails(step: Callable[[], Tensor], _: torch.device) -> tuple[Replay, Tensor]:
    raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


def errs(step: Callable[[], Tensor], _: torch.device) -> tuple[Replay, Tensor]:
    found = torch.empty_like(step())

    def replay() -> None:
        found.zero_()

    return replay, found


def does_nothing(step: Callable[[], Tensor], _: torch.device) -> tuple[Replay, Tensor]:
    return lambda: None, step()


@pytest.fixture
def by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Record], None]:
    """Has all steps on a CPU taken by graphs of this kind."""

    def use(record: Record) -> None:
        monkeypatch.setattr(cuda_graphs, "DEVICES", ("cpu",))
        monkeypatch.setattr(cuda_graphs, "record_cuda_graph", record)

    return use


@pytest.fixture(params=["writer", "translator, greedily", "translator, three beams"])
def made(
    request: pytest.FixtureRequest,
    writer: Callable[..., DecoderOnly],
    translating_model: Callable[..., EncoderDecoder],
    characters: Tokenizer,
) -> Made:
    """Texts by a new writer or translator, which has to take care of caches that grow and rows that leave."""
    n, n_beams = characters.vocab_size, 3 if "beams" in request.param else 1
    if request.param == "writer":
        model, settings = writer(n, context_length=100), DecodingSettings(max_new_tokens=90, temperature=0.8)
        return lambda: [
            each.text for _ in range(2) for each in Generator(model, characters, settings).generate(["ab", "c"])
        ]
    translating = translating_model(n, context_length=100)
    chosen = DecodingSettings(beam_size=n_beams, max_new_tokens=90)
    return lambda: [
        each.text for each in Translator(translating, characters, chosen).translate(["abcdefgh", "j a b", "hhhh"] * 2)
    ]


def test_what_is_written_is_the_same_by_graphs(made: Made, by: Callable[[Record], None]) -> None:
    expected, recorder = made(), Recorder()
    by(recorder)
    assert made() == expected
    assert recorder.n_recorded >= 2 and recorder.n_replayed > 2 * recorder.n_recorded


@pytest.mark.parametrize("record", [fails, errs, does_nothing])
def test_graphs_that_do_not_work_are_done_without(made: Made, by: Callable[[Record], None], record: Record) -> None:
    expected = made()
    by(record)
    with pytest.warns(PenwrightWarning, match="CUDA graphs do not work on this GPU"):
        assert made() == expected


def test_on_a_cpu_nothing_is_captured(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "record_cuda_graph", fails)
    with warnings.catch_warnings(action="error"):
        made()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_writes_the_same_by_graphs(
    writer: Callable[..., DecoderOnly], characters: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, settings = writer(characters.vocab_size, context_length=100).cuda(), DecodingSettings(max_new_tokens=90)
    by_graphs = Generator(model, characters, settings).generate(["ab"])[0].text
    monkeypatch.setattr(cuda_graphs, "DEVICES", ())
    assert Generator(model, characters, settings).generate(["ab"])[0].text == by_graphs
