"""Compiled steps: the same logits as without, for one row and for many, with other weights than they were made with."""

from collections.abc import Callable
from pathlib import Path

import jaxtyping
import pytest
import torch

from penwright import compiler
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


def compile_unchecked(model: DecoderOnly | EncoderDecoder) -> None:
    """Without the checks of types that tests run under: while it is traced, an int is a symbol."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        compile_steps(model)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


@NEEDS_COMPILER
def test_a_compiled_writer_gives_the_same_logits_with_other_weights_and_past_the_first_room(
    writer: Callable[..., DecoderOnly], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"n_layers": 1, "context_length": 80, "n_kv_heads": 2, "qk_norm": True}
    other, model = writer(VOCABULARY, seed=1, **settings), writer(VOCABULARY, seed=2, **settings)
    before = [logits_of(model, n_rows) for n_rows in (1, 3)]
    compile_unchecked(other)
    loaded: list[Path] = []
    load = step._load
    monkeypatch.setattr(step, "_load", lambda plain, rows, path: (loaded.append(path), load(plain, rows, path))[1])
    after = [logits_of(model, n_rows) for n_rows in (1, 3)]
    assert len(loaded) == 2  # else both ran as they are written
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
