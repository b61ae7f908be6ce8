"""Compiled steps: the same logits as without, for one row and for many, with other weights than they were made with."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jaxtyping
import pytest
import torch

from penwright import compiler
from penwright.config import Table
from penwright.decoding import step
from penwright.decoding.decodable import Continuing, Translating
from penwright.decoding.step import Stepper, compile_steps
from penwright.errors import PenwrightError
from penwright.layers.quantised import to_precision
from penwright.models import DecoderOnly, EncoderDecoder

VOCABULARY = 29
NEEDS_COMPILER = pytest.mark.skipif(bool(compiler.what_is_missing()), reason=compiler.what_is_missing() or "compiles")


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
        step.exported(step.Step(writer(VOCABULARY, **variant | {"n_layers": 1})), "one")
        step.exported(step.Step(translating_model(VOCABULARY, **variant | {"n_layers": 1})), "many")


def test_a_damaged_step_is_named_and_done_without(writer: Callable[..., DecoderOnly]) -> None:
    model = writer(VOCABULARY)
    before = logits_of(model, 1)
    path = step._path(step.Step(model), "one")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half of a file")
    with pytest.warns(UserWarning, match="is damaged"):
        torch.testing.assert_close(logits_of(model, 1), before)


@NEEDS_COMPILER
def test_a_compiled_writer_gives_the_same_logits_with_other_weights_and_past_the_first_room(
    writer: Callable[..., DecoderOnly], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"n_layers": 1, "context_length": 80, "n_kv_heads": 2, "qk_norm": True}
    other, model = writer(VOCABULARY, seed=1, **settings), writer(VOCABULARY, seed=2, **settings)
    before = [logits_of(model, n_rows) for n_rows in (1, 3)]
    compile_unchecked(other)
    load, loaded = step._load, []
    monkeypatch.setattr(step, "_load", lambda plain, rows: loaded.append(load(plain, rows)) or loaded[-1])
    after = [logits_of(model, n_rows) for n_rows in (1, 3)]
    assert len(loaded) == 2 and None not in loaded  # else both ran as they are written
    for plain, compiled in zip(before, after, strict=True):
        torch.testing.assert_close(compiled, plain, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def logits_of(model: DecoderOnly, n_rows: int) -> torch.Tensor:
    prompts, stepper = [[5, 6, 7], [8], [9, 3]][:n_rows], Stepper(model)
    rows = Continuing(model, prompts, 75, stepper)
    generator = torch.Generator().manual_seed(0)
    new = torch.randint(0, VOCABULARY, (75, n_rows), generator=generator)
    return torch.stack([rows.first(), *(rows.step(tokens) for tokens in new)])


@NEEDS_COMPILER
@torch.inference_mode()
def test_a_compiled_translator_in_int8_stays_close_to_float32(
    translating_model: Callable[..., EncoderDecoder],
) -> None:
    exact, model = (translating_model(VOCABULARY, n_layers=1) for _ in range(2))
    to_precision(model, "int8")
    compile_unchecked(model)
    stepper, sources = Stepper(model), [[4, 5, 6, 2], [2]]
    rows, plain = (
        Translating(each, sources, start_id=1, max_new_tokens=8, stepper=given)
        for each, given in ((model, stepper), (exact, None))
    )
    got = torch.stack([rows.first(), *(rows.step(torch.tensor([7, 8])) for _ in range(5))]).float()
    expected = torch.stack([plain.first(), *(plain.step(torch.tensor([7, 8])) for _ in range(5))])
    assert (got - expected).norm() < 0.05 * expected.norm()


def test_without_a_compiler_nothing_is_compiled_and_the_error_says_why(
    writer: Callable[..., DecoderOnly], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "what_is_missing", lambda: "there is no C++ compiler")
    with pytest.raises(PenwrightError, match="no C\\+\\+ compiler"):
        compile_steps(writer())
