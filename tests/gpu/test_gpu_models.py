"""Losses and gradients of every variant of the Transformer are those of the CPU."""

from math import sqrt

import pytest
import torch
from torch import Tensor, nn

from penwright.config import Table, Task
from penwright.data.batches import IGNORED, Batch, LabelledBatch, MaskedBatch, PairBatch, TextBatch
from penwright.losses import LossModule, summed_loss, vocabulary_loss
from penwright.model import Model
from penwright.model.attention import KernelMask, fastest_attention
from penwright.training.auto.machine import compile_blocks

from ..models.test_every_variant import LABELS, VARIANTS, VOCABULARY, build
from .conftest import DEVICE, pytestmark_of_gpu

pytestmark = pytestmark_of_gpu
TASKS: tuple[Task, ...] = ("generate", "translate", "classify", "encode")
every_task = pytest.mark.parametrize("task", TASKS)
CPU = torch.device("cpu")


def random_batch(task: Task, length: int = 7, rows: int = 3, *, packed: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(VOCABULARY, (rows, length), generator=generator)
    targets = torch.randint(VOCABULARY, (rows, length), generator=generator)
    real = torch.arange(length) < torch.tensor([length - row for row in range(rows)])[:, None]
    targets = targets.where(real, IGNORED)
    if task == "generate":
        segments = (torch.arange(length) >= 3).long().expand(rows, -1) if packed else None
        return TextBatch(int(real.sum()), tokens, targets, segments)
    if task == "translate":
        return PairBatch(int(real.sum()), tokens, real, tokens.flip(1), targets)
    if task == "classify":
        return LabelledBatch(rows, tokens, real, torch.arange(rows) % LABELS)
    masked = targets.where(torch.arange(length) % 2 == 0, IGNORED)
    return MaskedBatch(int((masked != IGNORED).sum()), tokens, real, masked)


def float_model(task: Task, variant: str, changes: Table | None = None) -> Model:
    return build(task, variant, changes).float()


def loss_and_gradient(
    model: Model, batch: Batch, device: str | torch.device, dtype: torch.dtype
) -> tuple[float, Tensor]:
    """Return the loss, and the gradients of all parameters as one vector."""
    model = model.to(device)
    kind = torch.device(device).type
    with torch.autocast(kind, dtype, enabled=dtype != torch.float32):
        loss = summed_loss(model, batch.to(torch.device(device)))
    model.zero_grad(set_to_none=True)
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(each.device.type == kind for each in gradients) and loss.device.type == kind
    return float(loss.detach()), torch.cat([each.float().cpu().flatten() for each in gradients])


def assert_close(one: tuple[float, Tensor], other: tuple[float, Tensor], loss: float, gradient: float) -> None:
    assert one[0] == pytest.approx(other[0], rel=loss)
    assert one[1].shape == other[1].shape
    assert (one[1] - other[1]).norm() <= gradient * other[1].norm()


@pytest.mark.parametrize("variant", VARIANTS)
@every_task
def test_loss_and_gradients_equal_those_of_the_cpu(task: Task, variant: str) -> None:
    batch = random_batch(task)
    expected = loss_and_gradient(float_model(task, variant), batch, CPU, torch.float32)
    assert_close(loss_and_gradient(float_model(task, variant), batch, DEVICE, torch.float32), expected, 1e-4, 1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
@every_task
def test_bfloat16_loss_and_gradients_are_close_to_float32(task: Task, variant: str) -> None:
    batch = random_batch(task)
    expected = loss_and_gradient(float_model(task, variant), batch, CPU, torch.float32)
    assert_close(loss_and_gradient(float_model(task, variant), batch, DEVICE, torch.bfloat16), expected, 0.02, 0.2)


@pytest.mark.parametrize("variant", ["modern", "grouped", "window", "learned", "post-layer-norm"])
def test_packed_documents_have_the_loss_of_the_cpu(variant: str) -> None:
    batch = random_batch("generate", packed=True)
    expected = loss_and_gradient(float_model("generate", variant), batch, CPU, torch.float32)
    found = loss_and_gradient(float_model("generate", variant), batch, DEVICE, torch.float32)
    assert_close(found, expected, 1e-4, 1e-4)


@pytest.mark.parametrize("recomputes", [False, True])
@every_task
def test_long_rows_of_wide_heads_have_the_loss_of_the_cpu(task: Task, recomputes: bool) -> None:
    changes: Table = {"d_model": 128, "n_heads": 2, "n_kv_heads": 1, "context_length": 700}
    models = [float_model(task, "modern", changes) for _ in range(2)]
    for module in models[1].modules():
        if hasattr(module, "recomputes"):
            module.recomputes = recomputes
    batch = random_batch(task, 600)
    expected = loss_and_gradient(models[0], batch, CPU, torch.float32)
    assert_close(loss_and_gradient(models[1], batch, DEVICE, torch.float32), expected, 1e-4, 1e-3)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("task", ["generate", "translate"])
@pytest.mark.parametrize("variant", ["modern", "post-layer-norm"])
def test_compiled_blocks_equal_uncompiled_ones(task: Task, variant: str) -> None:
    torch.compiler.reset()
    plain, compiled = float_model(task, variant), float_model(task, variant)
    compile_blocks(compiled, dynamic=task != "generate")
    for length in (7,) if task == "generate" else (7, 5, 11, 16):  # 16 is the width of the model
        batch = random_batch(task, length)
        expected = loss_and_gradient(plain, batch, DEVICE, torch.float32)
        assert_close(loss_and_gradient(compiled, batch, DEVICE, torch.float32), expected, 1e-4, 1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", ["all", "causal", "masked"])
@pytest.mark.parametrize("length", [5, 130, 1100])
def test_attention_equals_softmax_of_scaled_scores(length: int, kind: str, n_kv_heads: int, dtype: torch.dtype) -> None:
    torch.manual_seed(length)
    q, k, v = (torch.randn(2, n, length, 64) for n in (4, n_kv_heads, n_kv_heads))
    allowed = torch.rand(2, 1, length, length) < 0.5
    allowed[..., 0] = True
    mask = KernelMask(allowed.to(DEVICE)) if kind == "masked" else KernelMask(is_causal=kind == "causal")
    found = fastest_attention(*(x.to(DEVICE, dtype) for x in (q, k, v)), mask, 0.0).float().cpu()
    k, v = (x.repeat_interleave(4 // n_kv_heads, 1) for x in (k, v))
    scores = q @ k.mT / sqrt(64)
    if kind != "all":
        keep = allowed if kind == "masked" else torch.ones(length, length).tril().bool()
        scores = scores.masked_fill(~keep, -torch.inf)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, scores.softmax(-1) @ v, rtol=tolerance, atol=tolerance)


def test_dropout_acts_on_the_gpu_and_follows_the_seed() -> None:
    model, batch = (
        float_model("generate", "modern", {"dropout": 0.5, "attention_dropout": 0.5}),
        random_batch("generate"),
    )
    model = model.to(DEVICE).train()
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(float(summed_loss(model, batch.to(torch.device(DEVICE))).detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and abs(losses[2] - losses[0]) > 1e-3


def test_chunks_of_the_vocabulary_do_not_change_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = random_batch("generate", 20, 20)
    expected = loss_and_gradient(float_model("generate", "biases"), batch, DEVICE, torch.float32)
    monkeypatch.setattr("penwright.native.cross_entropy.GPU_SHARE", 0.0)
    found = loss_and_gradient(float_model("generate", "biases"), batch, DEVICE, torch.float32)
    assert_close(found, expected, 1e-5, 1e-5)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_compiled_loss_equals_the_usual_one(
    bias: bool, smoothing: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penwright.native.cross_entropy.GPU_SHARE", 0.0)  # chunks of 128 targets
    torch.compiler.reset()  # torch compiles a function for at most eight kinds of arguments
    torch.manual_seed(1)
    output, hidden = nn.Linear(64, 5000, bias=bias, device=DEVICE), torch.randn(300, 64, device=DEVICE)
    hidden.requires_grad_()
    targets = torch.randint(5000, (300,), device=DEVICE)
    targets[::7] = IGNORED
    found = []
    for compiled in (False, True):
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            loss = vocabulary_loss(hidden, output, targets, smoothing, compiled=compiled)
        gradients = torch.autograd.grad(loss, [hidden, *output.parameters()])
        found.append((float(loss.detach()), torch.cat([each.float().flatten() for each in gradients])))
    assert_close(found[1], found[0], 1e-5, 1e-4 if dtype == torch.float32 else 1e-2)


@pytest.mark.usefixtures("no_type_checks")
def test_training_of_fixed_windows_has_the_loss_of_other_kernels() -> None:
    torch.compiler.reset()
    changes: Table = {"d_model": 128, "n_heads": 2, "n_kv_heads": 2, "context_length": 256}
    plain, compiled = (float_model("generate", "modern", changes).to(DEVICE) for _ in range(2))
    batch = random_batch("generate", 256).to(torch.device(DEVICE))
    compile_blocks(compiled, dynamic=False)
    found = []
    for model in (plain, compiled):
        with torch.autocast("cuda", torch.bfloat16):
            loss = LossModule(model, 0.0, None)(batch)
        loss.backward()
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        found.append((float(loss.detach()), torch.cat([each.float().flatten() for each in gradients])))
    assert_close(found[1], found[0], 2e-3, 0.05)
