"""Compiled steps: the same logits as without, for one row and for many, with other weights than they were made with."""

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
from penwright.model import quantised
from penwright.model.cached_attention import stepping_attention
from penwright.model.decoder_only import DecoderOnly
from penwright.model.encoder_decoder import EncoderDecoder
from penwright.model.mask import KernelMask
from penwright.model.quantised import Int8Linear, compiled_product, to_precision
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
def unchecked() -> Iterator[None]:
    """Without the checks of types that tests run under: while it is traced, an int is a symbol."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def compile_unchecked(model: DecoderOnly | EncoderDecoder) -> None:
    with unchecked():
        compile_steps(model)


@pytest.mark.filterwarnings("ignore")  # of torch's, about itself
def test_every_variant_can_be_compiled(
    writer: Callable[..., DecoderOnly], translating_model: Callable[..., EncoderDecoder], variant: Table
) -> None:
    with unchecked():
        for part in ("one", "prompt"):
            engine.exported(writer(VOCABULARY, **variant | {"n_layers": 1}), part)
        for part in ("many", "sources"):
            engine.exported(translating_model(VOCABULARY, **variant | {"n_layers": 1}), part)


@pytest.mark.parametrize("checksum", [None, "0" * 64, "right"])
def test_a_damaged_step_is_named_and_done_without(writer: Callable[..., DecoderOnly], checksum: str | None) -> None:
    model = writer(VOCABULARY)
    before = logits_of(model, 1)
    path = ahead_of_time._path(engine.DecodeStep(model), "one", engine.DecodeEngine(model).n_threads)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half of a file")
    if checksum is not None:
        right = hashlib.sha256(path.read_bytes()).hexdigest()
        path.with_suffix(".sha256").write_text(right if checksum == "right" else checksum, "ascii")
    expected = "has no checksum" if checksum is None else "is damaged"
    with pytest.warns(UserWarning, match=expected):
        torch.testing.assert_close(logits_of(model, 1), before)


def test_steps_that_others_could_have_made_are_not_run(writer: Callable[..., DecoderOnly]) -> None:
    model = writer(VOCABULARY)
    before = logits_of(model, 1)
    path = ahead_of_time._path(engine.DecodeStep(model), "one", engine.DecodeEngine(model).n_threads)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"code of a stranger")
    path.parent.chmod(0o777)
    with pytest.warns(UserWarning, match=r"not used: other users can write to .*PENWRIGHT_CACHE"):
        torch.testing.assert_close(logits_of(model, 1), before)


@NEEDS_COMPILER
def test_a_compiled_writer_gives_the_same_logits_with_other_weights_and_past_the_first_room(
    writer: Callable[..., DecoderOnly], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"n_layers": 1, "context_length": 80, "n_kv_heads": 2, "qk_norm": True}
    other, model = writer(VOCABULARY, seed=1, **settings), writer(VOCABULARY, seed=2, **settings)
    before = [logits_of(model, n_rows) for n_rows in (1, 3)]
    monkeypatch.setattr(engine, "_parts", lambda _: ("one", "many", "prompt"))
    compile_unchecked(other)
    load, loaded = engine.load, []
    monkeypatch.setattr(engine, "load", lambda *what: loaded.append(load(*what)) or loaded[-1])
    after = [logits_of(model, n_rows) for n_rows in (1, 3)]
    assert len(loaded) == 3 and None not in loaded  # else both ran as they are written
    for plain, compiled in zip(before, after, strict=True):
        torch.testing.assert_close(compiled, plain, atol=1e-4, rtol=1e-4)


@NEEDS_COMPILER
def test_what_is_compiled_wrongly_is_not_kept(
    writer: Callable[..., DecoderOnly], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = writer(VOCABULARY, seed=1, n_layers=1), writer(VOCABULARY, seed=2, n_layers=1)
    monkeypatch.setattr(engine, "_parts", lambda _: ("one",))
    monkeypatch.setattr(
        engine, "compile_ahead", lambda whole, part, n, graph: marked(ahead_of_time._path(whole, part, n))
    )
    monkeypatch.setattr(engine, "load", lambda *what: lambda *inputs: [engine.DecodeStep(other)(*inputs)])
    with pytest.raises(PenwrightError, match="gives different results than the model"):
        compile_unchecked(model)
    assert not engine.are_steps_kept(model) and not list(cache_folder("compiled").glob("*.pt2"))
    monkeypatch.setattr(engine, "load", lambda *what: lambda *inputs: [engine.DecodeStep(model)(*inputs)])
    compile_unchecked(model)
    assert engine.are_steps_kept(model)


def marked(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


@NEEDS_COMPILER
@pytest.mark.skipif(not quantised.COMPILES, reason="this processor has no instructions for int8")
def test_a_compiled_writer_of_several_layers_in_int8_gives_the_same_logits(
    writer: Callable[..., DecoderOnly], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = writer(VOCABULARY, n_layers=2, context_length=80, qk_norm=True)
    to_precision(model, "int8")
    before = logits_of(model, 9)
    monkeypatch.setattr(engine, "_parts", lambda _: ("many",))
    compile_unchecked(model)
    after = logits_of(model, 9)
    assert not torch.equal(after, before)  # else both ran as they are written
    off = (after - before).norm(dim=-1) / before.norm(dim=-1)
    assert off.mean() < 0.01 and off.max() < 0.1


@torch.inference_mode()
def logits_of(model: DecoderOnly, n_rows: int) -> torch.Tensor:
    """Of 75 tokens after a prompt."""
    prompts, stepper = [[5, 6, 7], [8], [9, 3], *[[n] for n in range(10, 16)]][:n_rows], DecodeEngine(model)
    rows = PromptBatch(model, prompts, 75, stepper)
    generator = torch.Generator().manual_seed(0)
    new = torch.randint(0, VOCABULARY, (n_rows, 75), generator=generator)  # columns, whose numbers are not side by side
    return torch.stack([rows.first(), *(rows.step(tokens) for tokens in new.unbind(1))])


@NEEDS_COMPILER
def test_a_compiled_translator_gives_the_same_logits_however_many_sources_and_beams(
    translating_model: Callable[..., EncoderDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = translating_model(VOCABULARY, n_layers=1, context_length=80)
    shapes = [(1, 1), (2, 1), (1, 3), (3, 2)]

    def found() -> list[list[torch.Tensor]]:
        stepper = DecodeEngine(model)
        return [
            translated(TargetBatch(model, SOURCES[:n_sources], start_id=1, max_new_tokens=80, stepper=stepper), n_beams)
            for n_sources, n_beams in shapes
        ]

    plain = found()
    monkeypatch.setattr(engine, "_parts", lambda _: ("one", "many", "sources"))
    compile_unchecked(model)
    load, loaded = engine.load, []
    monkeypatch.setattr(engine, "load", lambda *what: loaded.append(load(*what)) or loaded[-1])
    compiled = found()
    assert len(loaded) == 3 and None not in loaded  # reading, and steps of one row and of many
    for got, expected in zip(compiled, plain, strict=True):
        off = [(one - other).norm() / other.norm() for one, other in zip(got, expected, strict=True)]
        assert mean(map(float, off)) < 1e-4


@torch.inference_mode()
def translated(rows: TargetBatch, n_beams: int) -> list[torch.Tensor]:
    """The logits of a search whose beams change places, past the first room, and whose first source leaves."""
    chance, logits = torch.Generator().manual_seed(0), [rows.first()]
    rows.branch(n_beams)
    n_rows = len(logits[0]) * n_beams
    for place in range(70):
        if place == 65 and n_rows > n_beams:
            n_rows -= n_beams
            rows.select(torch.arange(n_beams, n_beams + n_rows))
        elif n_beams > 1:
            parents = torch.randint(0, n_beams, (n_rows,), generator=chance)
            rows.reorder(torch.arange(n_rows) // n_beams * n_beams + parents)
        logits.append(rows.step(torch.randint(0, VOCABULARY, (n_rows,), generator=chance)))
    return logits


class Operators(ahead_of_time.ModelPart):
    """Logits by a product of int8, the likeliest of them, and attention to what rows keep for each other."""

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
        return logits, *torch.ops.penwright.likeliest(logits, allowed, situations, 8), *heads


@NEEDS_COMPILER
@pytest.mark.skipif(not quantised.COMPILES, reason="the machine has no AVX-512 VNNI")
def test_operators_in_cpp_give_what_torch_gives_however_many_rows(writer: Callable[..., DecoderOnly]) -> None:
    width, columns, d_head = 100, 70, 72
    part = Operators(writer(VOCABULARY), Int8Linear(torch.nn.Linear(width, columns, bias=False)))
    pieces = [b"", b"\xf0", *(bytes([byte]) for byte in range(0x80, 0x80 + columns - 2))]
    allowed = Utf8Rules(pieces, banned=(9, 69), end_id=0).bits

    def inputs(n_rows: int, n_sources: int, n_targets: int) -> tuple[object, ...]:
        chance = torch.Generator().manual_seed(n_rows)
        seen = torch.rand(n_rows, 1, 1, n_sources, generator=chance) < 0.7
        seen[..., 0] = True
        return (
            torch.randn(n_rows, width),
            allowed,
            torch.randint(0, len(allowed), (n_rows,), generator=chance),
            torch.randn(n_rows, 4, n_targets, d_head, generator=chance),
            [torch.randn(n_rows, 2, n_sources, d_head, generator=chance) for _ in "kv"],
            seen,
            torch.randint(0, n_rows, (n_rows, n_sources), generator=chance),
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
    with unchecked():
        graph = torch.export.export(part, inputs(3, 5, 4), dynamic_shapes=shapes, strict=False)
        ahead_of_time.compile_ahead(part, "operators", 1, graph)
    compiled = ahead_of_time.load(part, "operators", 1)
    assert compiled is not None
    for n_rows, n_sources, n_targets in ((2, 2, 2), (6, 16, 3), (7, 15, 2), (8, 33, 2), (23, 48, 5), (41, 70, 2)):
        given = inputs(n_rows, n_sources, n_targets)
        (logits, values, places, normalisers, *heads), expected = compiled(*given), part(*given)
        assert torch.equal(logits, expected[0])
        assert torch.equal(values, expected[1])
        assert torch.equal(places[values > -torch.inf], expected[2][values > -torch.inf])
        torch.testing.assert_close(normalisers, expected[3])
        for found, wanted in zip(heads, expected[4:], strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")  # of torch's, about itself
def test_what_is_compiled_in_int8_has_its_products_from_cpp_where_that_is_of_use(
    writer: Callable[..., DecoderOnly],
) -> None:
    model = writer(VOCABULARY, n_layers=1)
    to_precision(model, "int8")
    with unchecked():
        graph = engine.exported(model, "many").graph
    products = [node for node in graph.nodes if node.target == torch.ops.penwright.int8_product.default]
    layers = [part for part in model.modules() if isinstance(part, Int8Linear)]
    assert len(products) == (len(layers) if quantised.COMPILES else 0)


def test_without_a_compiler_nothing_is_compiled_and_the_error_says_why(
    writer: Callable[..., DecoderOnly], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "missing_requirement", lambda: "there is no C++ compiler")
    with pytest.raises(PenwrightError, match="no C\\+\\+ compiler"):
        compile_steps(writer())
