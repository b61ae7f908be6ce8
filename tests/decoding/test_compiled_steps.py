"""Compiled decoding steps: the same logits as uncompiled, for any number of rows and other weights."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean

import jaxtyping
import pytest
import torch

from penwright.config import Table
from penwright.decoding import ahead_of_time, engine
from penwright.decoding.batches import PromptBatch, TargetBatch
from penwright.decoding.engine import DecodeEngine, compile_steps
from penwright.decoding.sampling.utf8 import Utf8Rules
from penwright.errors import PenwrightError
from penwright.model import quantized
from penwright.model.attention import KernelMask
from penwright.model.attention_kernels import stepping_attention
from penwright.model.quantized import Int8Linear, compiled_product, to_precision
from penwright.model.transformer import DecoderOnly, EncoderDecoder
from penwright.native import toolchain
from penwright.storage import cache_folder

VOCABULARY = 29
SOURCES = [[4, 5, 6, 2], [2], [7, 8, 9, 2]]
NEEDS_COMPILER = pytest.mark.skipif(
    bool(toolchain.missing_requirement()), reason=toolchain.missing_requirement() or "compiles"
)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path))


@contextmanager
def no_type_checks() -> Iterator[None]:
    """Turn off type checks: in a traced function, an int is a symbol."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def compile_without_type_checks(model: DecoderOnly | EncoderDecoder) -> None:
    with no_type_checks():
        compile_steps(model)


@pytest.mark.filterwarnings("ignore")  # from torch internals
def test_every_variant_can_be_exported(
    generating_model: Callable[..., DecoderOnly], translating_model: Callable[..., EncoderDecoder], variant: Table
) -> None:
    with no_type_checks():
        engine.exported(generating_model(VOCABULARY, **variant | {"n_layers": 1}), "prompt")
        for part in ("many", "sources"):
            engine.exported(translating_model(VOCABULARY, **variant | {"n_layers": 1}), part)


@pytest.mark.parametrize("checksum", [None, "0" * 64, "right"])
def test_damaged_compiled_step_is_reported_and_not_used(
    generating_model: Callable[..., DecoderOnly], checksum: str | None
) -> None:
    model = generating_model(VOCABULARY)
    before = logits_of(model, 1)
    path = ahead_of_time._path(engine.DecodeStep(model), "one", 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half of a file")
    if checksum is not None:
        right = hashlib.sha256(path.read_bytes()).hexdigest()
        path.with_suffix(".sha256").write_text(right if checksum == "right" else checksum, "ascii")
    expected = "has no checksum" if checksum is None else "is damaged"
    with pytest.warns(UserWarning, match=expected):
        torch.testing.assert_close(logits_of(model, 1), before)


def test_compiled_steps_in_a_world_writable_folder_are_not_used(generating_model: Callable[..., DecoderOnly]) -> None:
    model = generating_model(VOCABULARY)
    before = logits_of(model, 1)
    path = ahead_of_time._path(engine.DecodeStep(model), "one", 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"code of a stranger")
    path.parent.chmod(0o777)
    with pytest.warns(UserWarning, match=r"not used: other users can write to .*PENWRIGHT_CACHE"):
        torch.testing.assert_close(logits_of(model, 1), before)


@NEEDS_COMPILER
def test_compiled_generator_matches_with_other_weights_and_growing_cache(
    generating_model: Callable[..., DecoderOnly], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"n_layers": 1, "context_length": 80, "n_kv_heads": 2, "qk_norm": True}
    other, model = generating_model(VOCABULARY, seed=1, **settings), generating_model(VOCABULARY, seed=2, **settings)
    before = logits_of(model, 1)
    monkeypatch.setattr(engine, "_parts", lambda _: ("one", "prompt"))
    compile_without_type_checks(other)
    load, loaded = engine.load, []
    monkeypatch.setattr(engine, "load", lambda *what: loaded.append(load(*what)) or loaded[-1])
    after = logits_of(model, 1)
    assert len(loaded) == 2 and None not in loaded  # otherwise both ran uncompiled
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)


@NEEDS_COMPILER
def test_compiled_step_is_published_only_if_it_is_right(
    generating_model: Callable[..., DecoderOnly], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = generating_model(VOCABULARY, seed=1, n_layers=1), generating_model(VOCABULARY, seed=2, n_layers=1)
    monkeypatch.setattr(engine, "_parts", lambda _: ("one",))
    published: list[bool] = []

    def compile_to(graph: object, *, package_path: str, inductor_configs: object) -> None:
        Path(package_path).touch()

    def run(*inputs: ahead_of_time.Input) -> list[torch.Tensor]:
        published.append(engine.are_steps_compiled(model))
        return [engine.DecodeStep(computing)(*inputs)]

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compile_to)
    monkeypatch.setattr(ahead_of_time, "_opened", lambda *_: run)
    computing = other
    with pytest.raises(PenwrightError, match="gives different results from the model"):
        compile_without_type_checks(model)
    assert not engine.are_steps_compiled(model) and not list(cache_folder("compiled").glob("*.pt2"))
    computing = model
    compile_without_type_checks(model)
    assert engine.are_steps_compiled(model) and published == [False, False]


def test_compiled_steps_of_another_processor_are_not_used(
    generating_model: Callable[..., DecoderOnly], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, keys = generating_model(VOCABULARY), []
    for flags in ("fpu avx2", "avx2 fpu", "avx2 avx512f fpu"):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\n", "ascii")
        monkeypatch.setattr(toolchain, "PROCESSORS", tmp_path / "cpuinfo")
        toolchain.processor_key.cache_clear()
        keys.append(engine.shape_key(model))
    toolchain.processor_key.cache_clear()
    assert keys[0] == keys[1] != keys[2]


@NEEDS_COMPILER
@pytest.mark.skipif(not quantized.COMPILES, reason="this processor has no instructions for int8")
def test_compiled_int8_generator_of_two_layers_matches(
    generating_model: Callable[..., DecoderOnly], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = generating_model(VOCABULARY, n_layers=2, context_length=80, qk_norm=True)
    to_precision(model, "int8")
    before = logits_of(model, 9)
    monkeypatch.setattr(engine, "_parts", lambda _: ("many",))
    compile_without_type_checks(model)
    after = logits_of(model, 9)
    assert not torch.equal(after, before)  # otherwise both ran uncompiled
    error = (after - before).norm(dim=-1) / before.norm(dim=-1)
    assert error.mean() < 0.01 and error.max() < 0.1


@torch.inference_mode()
def logits_of(model: DecoderOnly, n_rows: int) -> torch.Tensor:
    """Return the logits of 75 tokens after a prompt."""
    prompts, engine = [[5, 6, 7], [8], [9, 3], *[[n] for n in range(10, 16)]][:n_rows], DecodeEngine(model)
    rows = PromptBatch(model, prompts, 75, engine)
    generator = torch.Generator().manual_seed(0)
    new = torch.randint(0, VOCABULARY, (n_rows, 75), generator=generator)  # its columns are not contiguous
    return torch.stack([rows.first(), *(rows.step(tokens) for tokens in new.unbind(1))])


@NEEDS_COMPILER
def test_compiled_translator_matches_for_any_number_of_sources_and_beams(
    translating_model: Callable[..., EncoderDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = translating_model(VOCABULARY, n_layers=1, context_length=80, n_kv_heads=2)
    shapes = [(1, 1), (2, 1), (1, 3), (3, 2)]

    def compute_logits() -> list[list[torch.Tensor]]:
        engine = DecodeEngine(model)
        return [
            search_logits(
                TargetBatch(model, SOURCES[:n_sources], start_id=1, max_new_tokens=80, engine=engine), n_beams
            )
            for n_sources, n_beams in shapes
        ]

    plain = compute_logits()
    monkeypatch.setattr(engine, "_parts", lambda _: ("one", "many", "sources"))
    compile_without_type_checks(model)
    load, loaded = engine.load, []
    monkeypatch.setattr(engine, "load", lambda *what: loaded.append(load(*what)) or loaded[-1])
    compiled = compute_logits()
    assert len(loaded) == 3 and None not in loaded  # encoding, and steps of one row and of many
    for got, expected in zip(compiled, plain, strict=True):
        error = [(one - other).norm() / other.norm() for one, other in zip(got, expected, strict=True)]
        assert mean(map(float, error)) < 1e-4


@torch.inference_mode()
def search_logits(rows: TargetBatch, n_beams: int) -> list[torch.Tensor]:
    """Return the logits of a search with reordered beams, a growing cache and a first source that leaves."""
    rng, logits = torch.Generator().manual_seed(0), [rows.first()]
    rows.branch(n_beams)
    n_rows = len(logits[0]) * n_beams
    for place in range(70):
        if place == 65 and n_rows > n_beams:
            n_rows -= n_beams
            rows.select(torch.arange(n_beams, n_beams + n_rows))
        elif n_beams > 1:
            parents = torch.randint(0, n_beams, (n_rows,), generator=rng)
            rows.reorder(torch.arange(n_rows) // n_beams * n_beams + parents)
        logits.append(rows.step(torch.randint(0, VOCABULARY, (n_rows,), generator=rng)))
    return logits


class Operators(ahead_of_time.ModelPart):
    """A model part with our C++ operators: int8 product, likeliest tokens, and cached attention."""

    def __init__(self, model: DecoderOnly, layer: Int8Linear):
        super().__init__(model)
        self.layer = layer

    def forward(
        self,
        rows: torch.Tensor,
        allowed: torch.Tensor,
        situations: torch.Tensor,
        queries: torch.Tensor,
        kept: list[torch.Tensor],
        seen: torch.Tensor,
        origins: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        logits = compiled_product(self.layer, rows)
        heads = [
            stepping_attention(origins if origins_too else None)(queries, keys, values, KernelMask(mask), 0.0)
            for keys, values in (kept, [x.bfloat16() for x in kept])
            for origins_too, mask in ((True, seen), (False, None))
        ]
        return logits, *torch.ops.penwright.masked_topk(logits, allowed, situations, 8), *heads


@NEEDS_COMPILER
@pytest.mark.skipif(not quantized.COMPILES, reason="the machine has no AVX-512 VNNI")
def test_cpp_operators_match_torch_for_any_number_of_rows(generating_model: Callable[..., DecoderOnly]) -> None:
    width, columns, d_head = 100, 70, 72
    part = Operators(generating_model(VOCABULARY), Int8Linear(torch.nn.Linear(width, columns, bias=False)))
    pieces = [b"", b"\xf0", *(bytes([byte]) for byte in range(0x80, 0x80 + columns - 2))]
    allowed = Utf8Rules(pieces, banned=(9, 69), end_ids=[0]).bits

    def inputs(n_rows: int, n_sources: int, n_targets: int) -> tuple[object, ...]:
        rng = torch.Generator().manual_seed(n_rows)
        seen = torch.rand(n_rows, 1, 1, n_sources, generator=rng) < 0.7
        seen[..., 0] = True
        return (
            torch.randn(n_rows, width),
            allowed,
            torch.randint(0, len(allowed), (n_rows,), generator=rng),
            torch.randn(n_rows, 4, n_targets, d_head, generator=rng),
            [torch.randn(n_rows, 2, n_sources, d_head, generator=rng) for _ in "kv"],
            seen,
            torch.randint(0, n_rows, (n_rows, n_sources), generator=rng),
        )

    rows, sources, targets = (torch.export.Dim(name, min=2, max=100) for name in ("rows", "sources", "targets"))
    kept = {0: rows, 2: sources}
    shapes = (
        {0: rows},
        None,
        {0: rows},
        {0: rows, 2: targets},
        [kept, kept],
        {0: rows, 3: sources},
        {0: rows, 1: sources},
    )
    with no_type_checks():
        graph = torch.export.export(part, inputs(3, 5, 4), dynamic_shapes=shapes, strict=False)
        ahead_of_time.compile_ahead(part, "operators", 1, graph, lambda _: True)
    compiled = ahead_of_time.load(part, "operators", 1)
    assert compiled is not None
    for n_rows, n_sources, n_targets in ((2, 2, 2), (6, 16, 3), (7, 15, 2), (8, 33, 2), (23, 48, 5), (41, 70, 2)):
        given = inputs(n_rows, n_sources, n_targets)
        (logits, values, places, logsumexp, *heads), expected = compiled(*given), part(*given)
        assert torch.equal(logits, expected[0])
        assert torch.equal(values, expected[1])
        assert torch.equal(places[values > -torch.inf], expected[2][values > -torch.inf])
        torch.testing.assert_close(logsumexp, expected[3])
        for found, wanted in zip(heads, expected[4:], strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")  # from torch internals
def test_exported_int8_model_uses_the_cpp_product_if_supported(
    generating_model: Callable[..., DecoderOnly],
) -> None:
    model = generating_model(VOCABULARY, n_layers=1)
    to_precision(model, "int8")
    with no_type_checks():
        graph = engine.exported(model, "many").graph
    products = [node for node in graph.nodes if node.target == torch.ops.penwright.int8_product.default]
    layers = [part for part in model.modules() if isinstance(part, Int8Linear)]
    assert len(products) == (len(layers) if quantized.COMPILES else 0)


def test_missing_compiler_is_reported(
    generating_model: Callable[..., DecoderOnly], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "missing_requirement", lambda: "there is no C++ compiler")
    with pytest.raises(PenwrightError, match="no C\\+\\+ compiler"):
        compile_steps(generating_model())
