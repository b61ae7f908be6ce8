"""CUDA graphs of decoding steps give the same texts while caches grow, beams are reordered and rows leave.

Without a GPU, a traced graph of the operators replaces the CUDA graph: it reads and writes the same tensors each time,
and cannot be recorded if Python reads a tensor's value.
"""

import warnings
from collections.abc import Callable
from math import nan

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from penwright.config import DecodingSettings
from penwright.decoding import cuda_graphs
from penwright.decoding.cuda_graphs import Pool, Recorded
from penwright.decoding.exported import DecodeStep, is_near
from penwright.errors import PenwrightWarning
from penwright.generation.generator import Generator
from penwright.model.fused import fuse
from penwright.model.transformer import DecoderOnly, EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.translation.translator import Translator

Generate = Callable[[], list[str]]
Record = Callable[[Callable[[], Tensor], torch.device, Pool], Recorded]


class Recorder:
    """Records the operators of a step, and counts recordings and replays."""

    def __init__(self) -> None:
        self.n_recorded = self.n_replayed = 0

    def __call__(self, step: Callable[[], Tensor], device: torch.device, pool: Pool) -> Recorded:
        self.n_recorded += 1
        graph = make_fx(step)()
        found = torch.empty_like(step())

        def replay() -> None:
            self.n_replayed += 1
            found.copy_(graph())

        return replay, found, pool


def record_fails(step: Callable[[], Tensor], device: torch.device, pool: Pool) -> Recorded:
    raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


def replay_is_wrong(step: Callable[[], Tensor], device: torch.device, pool: Pool) -> Recorded:
    found = torch.empty_like(step())

    def replay() -> None:
        found.zero_()

    return replay, found, pool


def replay_does_nothing(step: Callable[[], Tensor], device: torch.device, pool: Pool) -> Recorded:
    return lambda: None, step(), pool


@pytest.fixture
def use_graphs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Record], None]:
    """Return a function that makes all steps on the CPU use graphs recorded by `record`."""

    def use(record: Record) -> None:
        monkeypatch.setattr(cuda_graphs, "DEVICES", ("cpu",))
        monkeypatch.setattr(cuda_graphs, "record_cuda_graph", record)

    return use


@pytest.fixture(
    params=["generator", "generator, fused", "translator, greedy", "translator, three beams", "translator, fused"]
)
def generate(
    request: pytest.FixtureRequest,
    generating_model: Callable[..., DecoderOnly],
    translating_model: Callable[..., EncoderDecoder],
    characters: Tokenizer,
) -> Generate:
    """Return a function that generates texts long enough for caches to grow and rows to leave."""
    n, n_beams = characters.vocab_size, 3 if "beams" in request.param else 1
    if request.param.startswith("generator"):
        model, settings = generating_model(n, context_length=100), DecodingSettings(max_new_tokens=90, temperature=0.8)
        if "fused" in request.param:
            fuse(model)
        return lambda: [
            each.text for _ in range(2) for each in Generator(model, characters, settings).generate(["ab", "c"])
        ]
    translating = translating_model(n, context_length=100)
    if "fused" in request.param:
        fuse(translating)
    chosen = DecodingSettings(beam_size=n_beams, max_new_tokens=90)
    return lambda: [
        each.text for each in Translator(translating, characters, chosen).translate(["abcdefgh", "j a b", "hhhh"] * 2)
    ]


def test_graphs_generate_the_same_texts(generate: Generate, use_graphs: Callable[[Record], None]) -> None:
    expected, recorder = generate(), Recorder()
    use_graphs(recorder)
    assert generate() == expected
    assert recorder.n_recorded >= 2 and recorder.n_replayed > 2 * recorder.n_recorded


@pytest.mark.parametrize("generate", ["generator"], indirect=True)
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (record_fails, "operation not permitted"),
        (replay_is_wrong, "a graph computes wrong logits"),
        (replay_does_nothing, "a graph computes wrong logits"),
    ],
)
def test_faulty_graphs_are_not_used(
    generate: Generate, use_graphs: Callable[[Record], None], record: Record, reason: str
) -> None:
    expected = generate()
    use_graphs(record)
    with pytest.warns(PenwrightWarning, match=f"CUDA graphs do not work on this GPU.*{reason}"):
        assert generate() == expected


def test_graphs_may_round_in_another_way() -> None:
    exact = torch.randn(16, 1000, generator=torch.Generator().manual_seed(0))
    rounded = exact.bfloat16().float()
    assert is_near(rounded, exact) and not torch.allclose(rounded, exact, rtol=1e-3, atol=1e-3)
    wrong = exact.clone()
    wrong[3] = wrong[4]
    one_nan = exact.clone()
    one_nan[3, 5] = nan
    for found in (wrong, one_nan, torch.zeros_like(exact), torch.full_like(exact, nan)):
        assert not is_near(found, exact)
    assert is_near(one_nan, one_nan)  # the model's own NaN are no fault of the graph


@pytest.mark.parametrize("generate", ["translator, greedy"], indirect=True)
def test_graphs_share_the_pool_of_a_graph_that_exists(
    generate: Generate, use_graphs: Callable[[Record], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, recorder, given = generate(), Recorder(), list[Pool]()

    def record(step: Callable[[], Tensor], device: torch.device, pool: Pool) -> Recorded:
        given.append(pool)
        return *recorder(step, device, pool)[:2], pool or object()

    monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", 1)
    use_graphs(record)
    assert generate() == expected
    assert given[0] is None and len(given) > 1 and None not in given[1:]


@pytest.mark.parametrize("generate", ["generator"], indirect=True)
def test_no_graphs_are_recorded_on_a_cpu(generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "record_cuda_graph", record_fails)
    with warnings.catch_warnings(action="error"):
        generate()


def test_graphs_are_captured_again_after_the_model_is_fused(
    generating_model: Callable[..., DecoderOnly], characters: Tokenizer, use_graphs: Callable[[Record], None]
) -> None:
    model, recorder = generating_model(characters.vocab_size, context_length=100), Recorder()
    use_graphs(recorder)
    step, cache = cuda_graphs.StepGraphs(DecodeStep(model)), model.new_cache(1, 60)
    tokens = torch.tensor([3])

    def run() -> Tensor:
        return step((tokens, cache.lengths, [x for layer in cache.layers for x in layer.cached], None, [], None))

    before = [run() for _ in range(3)]
    assert (recorder.n_recorded, recorder.n_replayed) == (1, 2)  # a replay checks the graph
    fuse(model)
    torch.testing.assert_close([run() for _ in range(3)], before)
    assert recorder.n_recorded == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_graphs_generate_the_same_text_on_a_gpu(
    generating_model: Callable[..., DecoderOnly], characters: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, settings = (
        generating_model(characters.vocab_size, context_length=100).cuda(),
        DecodingSettings(max_new_tokens=90),
    )
    by_graphs = Generator(model, characters, settings).generate(["ab"])[0].text
    monkeypatch.setattr(cuda_graphs, "DEVICES", ())
    assert Generator(model, characters, settings).generate(["ab"])[0].text == by_graphs
