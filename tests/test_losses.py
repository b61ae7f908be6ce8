from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from penwright import losses
from penwright.config import ModelSettings, ProblemType, Task
from penwright.data.batches import IGNORED, Batch, LabelledBatch, MaskedBatch, PairBatch, TextBatch
from penwright.losses import Teachers, consistent_loss, summed_loss, vocabulary_loss
from penwright.model import Model, make_model
from penwright.model.block import Stack
from penwright.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly
from penwright.native import cross_entropy


def reference_loss(hidden: Tensor, output: nn.Module, targets: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(output(hidden), targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk", [1, 7 * 33, 10**9])
def test_chunked_loss_and_gradients_equal_the_reference(
    smoothing: float, bias: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cross_entropy.CHUNK, "cpu", chunk)
    monkeypatch.setattr(cross_entropy, "FEWEST_TARGETS", 1)
    output = nn.Linear(5, 33, bias=bias).double()
    hidden = torch.randn(20, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(33, (20,))
    targets[[0, 8, 19]] = IGNORED
    inputs = [hidden, *output.parameters()]
    loss, expected = (f(hidden, output, targets, smoothing) for f in (vocabulary_loss, reference_loss))
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(
        torch.autograd.grad(loss / 3, inputs), torch.autograd.grad(expected / 3, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_form_to_fuse_equals_the_usual_cross_entropy(
    smoothing: float, bias: bool, soft: bool, dtype: torch.dtype
) -> None:
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    logits, biases = (3 * torch.randn(20, 33)).to(dtype), torch.randn(33, dtype=wide) if bias else None
    targets = torch.randint(33, (20,))
    targets[[0, 8]] = IGNORED
    mixed = (torch.randn(20, 33).softmax(-1).to(wide), 0.7) if soft else ()
    losses, gradient = cross_entropy.cross_entropy_to_fuse(logits, biases, targets, smoothing, *mixed)
    expected, its_gradient = cross_entropy.cross_entropy(logits, biases, targets, smoothing, *mixed)
    real = targets != IGNORED
    torch.testing.assert_close(losses[real], expected[real])
    torch.testing.assert_close(gradient[real], its_gradient[real])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by imports of torch's compiler
@pytest.mark.usefixtures("no_type_checks")
def test_compiled_loss_equals_the_usual_loss_and_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cross_entropy.CHUNK, "cpu", 8 * 33)
    monkeypatch.setattr(cross_entropy, "FEWEST_TARGETS", 1)
    torch.compiler.reset()
    cross_entropy.compiled_cross_entropy.cache_clear()
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]  # earlier tests may have compiled, too
    output, hidden = nn.Linear(16, 33), torch.randn(20, 16, requires_grad=True)
    targets = torch.randint(33, (20,))
    targets[[0, 19]] = IGNORED
    inputs = [hidden, *output.parameters()]
    with torch._dynamo.config.patch(error_on_recompile=True):
        loss = vocabulary_loss(hidden, output, targets, 0.1, compiled=True)
    expected = vocabulary_loss(hidden, output, targets, 0.1)
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert graphs["unique_graphs"] == before + 1


def test_loss_in_bfloat16_is_summed_in_float32() -> None:
    output, hidden = nn.Linear(16, 4000, bias=False), torch.randn(64, 16)
    targets = torch.randint(4000, (64,))
    with torch.autocast("cpu", torch.bfloat16):
        loss = vocabulary_loss(hidden, output, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, reference_loss(hidden, output, targets, 0.0), rtol=2e-3, atol=0)


def test_loss_and_gradients_without_targets_are_zero() -> None:
    output, hidden = nn.Linear(4, 9), torch.randn(3, 4, requires_grad=True)
    loss = vocabulary_loss(hidden, output, torch.full((3,), IGNORED))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in (hidden, *output.parameters()))


def test_loss_without_grad_requires_no_grad() -> None:
    output, hidden = nn.Linear(4, 9), torch.randn(3, 4)
    with torch.no_grad():
        assert not vocabulary_loss(hidden, output, torch.tensor([1, 2, 3])).requires_grad


def test_scaling_the_loss_scales_gradients_exactly_in_bfloat16() -> None:
    """1/3 is not exact in bfloat16. Rounding it would scale the gradients by another factor."""
    output, targets = nn.Linear(16, 40, bias=False), torch.randint(40, (8,))
    gradients = []
    for scale in (1.0, 1 / 3):
        hidden = torch.randn(8, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            loss = vocabulary_loss(hidden, output, targets)
        gradients.append(torch.autograd.grad(loss * scale, hidden)[0].norm())
    assert float(gradients[1] / gradients[0]) == pytest.approx(1 / 3, rel=5e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 10**9])
def test_distillation_loss_equals_the_mixed_cross_entropy(
    smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cross_entropy.CHUNK, "cpu", chunk)
    monkeypatch.setattr(cross_entropy, "FEWEST_TARGETS", 1)
    output, teacher = nn.Linear(5, 33).double(), nn.Linear(7, 33).double()
    hidden, inputs_seen = (
        torch.randn(20, 5, dtype=torch.float64, requires_grad=True),
        torch.randn(20, 7, dtype=torch.float64),
    )
    targets = torch.randint(33, (20,))
    targets[3] = IGNORED
    distillation = losses._TeacherOutputs([(inputs_seen, teacher)], 0.7)
    loss = vocabulary_loss(hidden, output, targets, smoothing, distillation)
    soft = -(teacher(inputs_seen).float().softmax(-1) * output(hidden).log_softmax(-1)).sum(-1)
    expected = 0.3 * reference_loss(hidden, output, targets, smoothing) + 0.7 * soft[targets != IGNORED].sum()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    inputs = [hidden, *output.parameters()]
    for ours, theirs in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_self_distillation_has_zero_gradient() -> None:
    output, hidden = nn.Linear(4, 9), torch.randn(3, 4, requires_grad=True)
    distillation = losses._TeacherOutputs([(hidden.detach(), output)], 1.0)
    vocabulary_loss(hidden, output, torch.tensor([1, 2, 3]), 0.0, distillation).backward()
    assert hidden.grad is not None and hidden.grad.abs().max() < 1e-6


def settings() -> ModelSettings:
    return ModelSettings(d_model=16, n_layers=1, n_heads=2, context_length=16, zero_init_outputs=False)


TOKENS = torch.tensor([[1, 2, 3, 4], [2, 3, 4, 1]])
REAL = torch.ones(2, 4, dtype=torch.bool)
BATCHES: dict[Task, Batch] = {
    "generate": TextBatch(8, TOKENS, TOKENS.roll(-1, 1), None),
    "translate": PairBatch(8, TOKENS, REAL, TOKENS, TOKENS.roll(-1, 1)),
    "classify": LabelledBatch(2, TOKENS, REAL, torch.tensor([0, 2])),
}


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("task", BATCHES)
def test_student_converges_to_its_teachers(task: Task) -> None:
    student, *teachers = (make_model(task, 9, settings(), 3).eval() for _ in range(3))
    distillation_loss = partial(summed_loss, student, BATCHES[task], teachers=Teachers(teachers, 1.0))
    optimizer, before = torch.optim.Adam(student.parameters(), 0.01), float(distillation_loss().detach())
    for _ in range(150):
        optimizer.zero_grad()
        distillation_loss().backward()
        optimizer.step()
    least = _entropy_of_their_mean(task, teachers)
    assert float(distillation_loss().detach()) - least < 0.05 * (before - least)
    assert all(parameter.grad is None for teacher in teachers for parameter in teacher.parameters())


@pytest.mark.parametrize("task", ["generate", "translate"])
def test_each_of_two_passes_learns_from_the_other(task: Task) -> None:
    changes = {"dropout": 0.2, "tie_embeddings": "none"}
    model, batch = make_model(task, 9, settings().model_copy(update=changes), 3).double(), BATCHES[task]
    batch = replace(batch, targets=batch.targets.clone().index_fill_(1, torch.tensor([2]), IGNORED))
    torch.manual_seed(3)
    loss = consistent_loss(model, batch, 0.1, 0.7)
    torch.manual_seed(3)
    logits = _logits(model, batch.twice())
    targets = batch.targets.flatten()
    own = reference_loss(logits.flatten(0, 1), nn.Identity(), targets.repeat(2), 0.1)
    one, other = (each[targets != IGNORED] for each in logits.flatten(0, 1).log_softmax(-1).chunk(2))
    assert not torch.allclose(one, other), "dropout makes the passes differ"
    exchanged = -(other.detach().exp() * one).sum() - (one.detach().exp() * other).sum()
    expected = (0.3 * own + 0.7 * exchanged) / 2
    torch.testing.assert_close(loss, expected)
    parameters = list(model.parameters())
    for ours, theirs in zip(*(torch.autograd.grad(each, parameters) for each in (loss, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification", "regression"])
def test_distillation_of_a_classifier_mixes_its_two_losses(problem: ProblemType) -> None:
    changed = settings().model_copy(update={"problem_type": problem})
    student, teacher = (make_model("classify", 9, changed, 3).eval() for _ in range(2))
    targets = (
        torch.tensor([0, 2]) if problem == "single_label_classification" else torch.tensor([[0.0, 1, 1], [1, 0, 0]])
    )
    batch = LabelledBatch(2, TOKENS, REAL, targets)
    first, mixed, last = (summed_loss(student, batch, teachers=Teachers([teacher], w)) for w in (0.0, 0.25, 1.0))
    torch.testing.assert_close(first, summed_loss(student, batch))
    torch.testing.assert_close(mixed, 0.75 * first + 0.25 * last)
    assert not torch.allclose(first, last)
    summed_loss(student, batch, teachers=Teachers([student], 1.0)).backward()
    assert all(p.grad is None or p.grad.abs().max() < 1e-6 for p in student.parameters()), "nothing to learn"


def test_losses_of_classifiers_equal_the_references() -> None:
    model = make_model("classify", 9, settings(), 3).eval()
    batch = BATCHES["classify"]
    assert isinstance(batch, LabelledBatch)
    logits = model(batch.tokens, batch.is_token)
    expected = F.cross_entropy(logits, batch.targets, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(summed_loss(model, batch, 0.1), expected)
    scores = torch.tensor([[0.5, 1.0, 2.0], [-1.0, 0.0, 1.0]])
    model.settings = settings().model_copy(update={"problem_type": "regression"})
    found = summed_loss(model, replace(batch, targets=scores))
    torch.testing.assert_close(found, (logits - scores).square().sum() / 2)


def test_loss_of_masked_tokens_has_label_smoothing() -> None:
    model = make_model("encode", 9, settings(), 0).eval()
    targets = TOKENS.clone().index_fill_(1, torch.tensor([0, 2]), IGNORED)
    batch = MaskedBatch(4, TOKENS, REAL, targets)
    logits = F.linear(model.hidden(TOKENS, REAL), model.embedding.tokens.weight)
    expected = reference_loss(logits.flatten(0, 1), nn.Identity(), targets.flatten(), 0.1)
    torch.testing.assert_close(summed_loss(model, batch, 0.1), expected)


def test_teacher_gets_the_same_positions_and_padding_as_the_student() -> None:
    student, teacher = (make_model("classify", 9, settings(), 3) for _ in range(2))
    inputs_seen: list[tuple[Tensor, ...]] = []
    for model in (student, teacher):
        model.encoder.register_forward_pre_hook(lambda _, args: inputs_seen.append((args[1], args[2].is_token)))
    places = torch.tensor([[0, 1, 5, 7], [1, 2, 0, 0]])
    batch = LabelledBatch(2, TOKENS, places > torch.tensor([[-1], [0]]), torch.tensor([0, 2]), places)
    summed_loss(student, batch, teachers=Teachers([teacher], 0.5))
    assert len(inputs_seen) == 2
    for positions, padding in inputs_seen:
        assert torch.equal(positions, places) and torch.equal(padding, batch.is_token)


def _entropy_of_their_mean(task: Task, teachers: Sequence[Model]) -> float:
    with torch.no_grad():
        probabilities = torch.stack([_logits(teacher, BATCHES[task]).softmax(-1) for teacher in teachers]).mean(0)
    return float(-(probabilities * probabilities.log()).sum())


def _logits(model: Model, batch: Batch) -> Tensor:
    match model, batch:
        case EncoderDecoder(), PairBatch():
            return model(batch.source, batch.source_is_token, batch.target)
        case EncoderOnly(), LabelledBatch():
            return model(batch.tokens, batch.is_token)
        case DecoderOnly(), TextBatch():
            return model(batch.tokens)
    raise TypeError


@pytest.mark.parametrize(
    "change", ["nothing", "dynamic shapes", "segments", "window", "dropout", "recomputing", "translation"]
)
def test_only_training_on_one_shape_without_masks_and_dropout_uses_cudnn_attention(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task: Task = "translate" if change == "translation" else "generate"
    changed = {"window": {"window": 3}, "dropout": {"attention_dropout": 0.1}}.get(change, {})
    model = make_model(task, 9, settings().model_copy(update=changed), 3)
    batch = BATCHES[task]
    if change == "segments":
        batch = TextBatch(8, TOKENS, TOKENS, torch.zeros_like(TOKENS))
    for module in model.modules():
        if isinstance(module, Stack):
            module.has_fixed_shapes, module.recomputes = change != "dynamic shapes", change == "recomputing"
    allowed = []

    def note(*_: object, **__: object) -> Tensor:
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return torch.zeros(())

    loss = losses.LossModule(model, 0.0, None)
    monkeypatch.setattr(losses, "summed_loss", note)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        loss(batch)
        assert allowed == [change == "nothing"] and not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
