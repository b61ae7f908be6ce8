"""Fused decoding steps, whose logits equal those of the unfused model."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch

from penwright.config import Precision, Table
from penwright.decoding import engine
from penwright.decoding.batches import PromptBatch, TargetBatch
from penwright.devices import with_threads
from penwright.model.attention_kernels import record_attention
from penwright.model.fused import fuse
from penwright.model.quantized import to_precision
from penwright.model.transformer import DecoderOnly, EncoderDecoder
from penwright.model.weights import weights_of

VOCABULARY, N_NEW = 29, 20
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9], [8, 3, 8, 3, 5, 1, 2, 9, 11, 12, 3, 4, 5]]
SOURCES = [[4, 5, 6, 2], [7, 2], [1, 9, 8, 7, 6, 5, 4, 3, 2]]
Make = Callable[..., DecoderOnly]
MakeTranslator = Callable[..., EncoderDecoder]


@torch.inference_mode()
def generator_logits(model: DecoderOnly, prompts: list[list[int]]) -> torch.Tensor:
    new = torch.randint(0, VOCABULARY, (N_NEW, len(prompts)), generator=torch.Generator().manual_seed(0))
    rows = PromptBatch(model, prompts, N_NEW)
    return torch.stack([rows.first(), *(rows.step(tokens) for tokens in new)])


@torch.inference_mode()
def translator_logits(model: EncoderDecoder, n_beams: int) -> torch.Tensor:
    """Return the logits of targets while beams are reordered."""
    rng, n_rows = torch.Generator().manual_seed(0), len(SOURCES) * n_beams
    rows = TargetBatch(model, SOURCES, start_id=1, max_new_tokens=12)
    logits = [rows.first().repeat_interleave(n_beams, 0)]
    rows.branch(n_beams)
    for _ in range(10):
        if n_beams > 1:
            parents = torch.randint(0, n_beams, (n_rows,), generator=rng)
            rows.reorder(torch.arange(n_rows) // n_beams * n_beams + parents)
        logits.append(rows.step(torch.randint(0, VOCABULARY, (n_rows,), generator=rng)))
    return torch.stack(logits)


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one row", "rows of different lengths"])
def test_fused_generator_has_the_same_logits(generating_model: Make, variant: Table, prompts: list[list[int]]) -> None:
    model = generating_model(VOCABULARY, **variant).double()  # so that every difference above rounding shows
    before = generator_logits(model, prompts)
    fuse(model)
    calls = record_fused_calls(model)
    torch.testing.assert_close(generator_logits(model, prompts), before, atol=1e-5, rtol=1e-6)
    assert calls


def test_rotations_are_computed_as_texts_grow(generating_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penwright.model.fused.FEW_POSITIONS", 2)
    model = generating_model(VOCABULARY, positions={"type": "rotary"}).double()
    before = generator_logits(model, PROMPTS)
    fuse(model)
    torch.testing.assert_close(generator_logits(model, PROMPTS), before, atol=1e-5, rtol=1e-6)


def test_a_huge_context_costs_no_memory(generating_model: Make) -> None:
    model = generating_model(VOCABULARY, positions={"type": "rotary"}, context_length=10**12)
    fuse(model)
    assert generator_logits(model, PROMPTS[:1]).isfinite().all()


@pytest.mark.parametrize("n_beams", [1, 3])
def test_fused_translator_has_the_same_logits(translating_model: MakeTranslator, variant: Table, n_beams: int) -> None:
    model = translating_model(VOCABULARY, **variant).double()
    before = translator_logits(model, n_beams)
    fuse(model)
    calls = record_fused_calls(model)
    torch.testing.assert_close(translator_logits(model, n_beams), before, atol=1e-5, rtol=1e-6)
    assert calls


def record_fused_calls(model: DecoderOnly | EncoderDecoder) -> list[object]:
    """Return a list that collects the inputs of the fused decoder from now on."""
    fused, calls = model.fused, list[object]()
    assert fused is not None
    original = fused.next_logits
    fused.next_logits = lambda *inputs: calls.append(inputs) or original(*inputs)  # type: ignore[method-assign]
    return calls


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
@pytest.mark.parametrize("changes", [{}, {"bias": True, "norm": {"type": "layer"}}], ids=["modern", "bias"])
def test_int8_and_bfloat16_models_can_be_fused(generating_model: Make, precision: Precision, changes: Table) -> None:
    model = generating_model(VOCABULARY, **changes)
    to_precision(model, precision)
    before = generator_logits(model, PROMPTS[:1])
    fuse(model)
    error = (generator_logits(model, PROMPTS[:1]) - before).norm() / before.norm()
    assert error < 0.05  # fused steps round bfloat16 elsewhere


def test_fused_weights_keep_names_values_and_later_changes(generating_model: Make) -> None:
    model = generating_model(VOCABULARY)
    before = {name: weight.clone() for name, weight in weights_of(model).items()}
    fuse(model)
    after = weights_of(model)
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    with torch.no_grad():
        model.decoder.blocks[0].get_submodule("attention.key").weight.mul_(2)
    plain = deepcopy(model)
    plain.fused = None
    torch.testing.assert_close(
        generator_logits(model, PROMPTS[:1]), generator_logits(plain, PROMPTS[:1]), atol=1e-5, rtol=1e-5
    )


def test_model_converted_after_fusing_uses_unfused_steps(generating_model: Make) -> None:
    model = generating_model(VOCABULARY)
    fuse(model)
    assert model.fused is not None and model.fused.is_current
    model.double()
    assert not model.fused.is_current
    assert generator_logits(model, PROMPTS[:1]).dtype == torch.float64


def test_replaced_attention_kernels_are_used(generating_model: Make) -> None:
    model = generating_model(VOCABULARY)
    fuse(model)
    with record_attention(model) as maps:
        generator_logits(model, PROMPTS[:1])
    assert maps and all(len(recorded) > N_NEW for recorded in maps.values())  # the prompt and each step


@pytest.mark.parametrize(("precision", "n_threads"), [("float32", 2), ("int8", 1)])
def test_single_int8_row_begins_in_one_thread(
    generating_model: Make, monkeypatch: pytest.MonkeyPatch, precision: Precision, n_threads: int
) -> None:
    monkeypatch.setitem(engine.WORTH_THREADS, "one", 0)
    model = generating_model(VOCABULARY)
    to_precision(model, precision)
    with with_threads(2), engine.DecodeEngine(model)._threads_of(1):
        assert torch.get_num_threads() == n_threads
