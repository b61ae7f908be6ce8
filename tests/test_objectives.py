from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from penwright import losses
from penwright.config import ModelSettings, Task
from penwright.data.batches import IGNORED, Batch, LabelledBatch, PairBatch, TextBatch
from penwright.losses import Teachers, summed_loss, vocabulary_loss
from penwright.model import Model, make_model
from penwright.model.encoder_decoder import EncoderDecoder
from penwright.model.encoder_only import EncoderOnly


def one_by_one(hidden: Tensor, output: nn.Linear, targets: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(output(hidden), targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk", [1, 7 * 33, 10**9])
def test_loss_and_gradients_are_those_of_all_logits_at_once(
    smoothing: float, bias: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(losses.CHUNK, "cpu", chunk)
    output = nn.Linear(5, 33, bias=bias).double()
    hidden = torch.randn(20, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(33, (20,))
    targets[[0, 8, 19]] = IGNORED
    inputs = [hidden, *output.parameters()]
    loss, expected = (f(hidden, output, targets, smoothing) for f in (vocabulary_loss, one_by_one))
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(
        torch.autograd.grad(loss / 3, inputs), torch.autograd.grad(expected / 3, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_in_bfloat16_the_sums_are_still_those_of_float32() -> None:
    output, hidden = nn.Linear(16, 4000, bias=False), torch.randn(64, 16)
    targets = torch.randint(4000, (64,))
    with torch.autocast("cpu", torch.bfloat16):
        loss = vocabulary_loss(hidden, output, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, one_by_one(hidden, output, targets, 0.0), rtol=2e-3, atol=0)


def test_without_targets_there_is_no_loss_and_no_gradient() -> None:
    output, hidden = nn.Linear(4, 9), torch.randn(3, 4, requires_grad=True)
    loss = vocabulary_loss(hidden, output, torch.full((3,), IGNORED))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in (hidden, *output.parameters()))


def test_evaluation_makes_no_gradients() -> None:
    output, hidden = nn.Linear(4, 9), torch.randn(3, 4)
    with torch.no_grad():
        assert not vocabulary_loss(hidden, output, torch.tensor([1, 2, 3])).requires_grad


def test_dividing_by_the_number_of_targets_is_exact_in_bfloat16_too() -> None:
    """1/3 has no short binary form: rounded to bfloat16 it would scale one gradient otherwise than the other."""
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
def test_taught_losses_are_those_of_the_mixed_distribution(
    smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(losses.CHUNK, "cpu", chunk)
    output, teacher = nn.Linear(5, 33).double(), nn.Linear(7, 33).double()
    hidden, seen = torch.randn(20, 5, dtype=torch.float64, requires_grad=True), torch.randn(20, 7, dtype=torch.float64)
    targets = torch.randint(33, (20,))
    targets[3] = IGNORED
    taught = losses._TeacherOutputs([(seen, teacher)], 0.7)
    loss = vocabulary_loss(hidden, output, targets, smoothing, taught)
    soft = -(teacher(seen).float().softmax(-1) * output(hidden).log_softmax(-1)).sum(-1)
    expected = 0.3 * one_by_one(hidden, output, targets, smoothing) + 0.7 * soft[targets != IGNORED].sum()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    inputs = [hidden, *output.parameters()]
    for ours, theirs in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_taught_by_itself_alone_a_model_has_nothing_to_learn() -> None:
    output, hidden = nn.Linear(4, 9), torch.randn(3, 4, requires_grad=True)
    taught = losses._TeacherOutputs([(hidden.detach(), output)], 1.0)
    vocabulary_loss(hidden, output, torch.tensor([1, 2, 3]), 0.0, taught).backward()
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


@pytest.mark.parametrize("task", BATCHES)
def test_a_taught_model_comes_to_expect_what_its_teachers_do(task: Task) -> None:
    student, *teachers = (make_model(task, 9, settings(), 3).eval() for _ in range(3))
    wholly_taught = partial(summed_loss, student, BATCHES[task], teachers=Teachers(teachers, 1.0))
    optimizer, before = torch.optim.Adam(student.parameters(), 0.01), float(wholly_taught().detach())
    for _ in range(150):
        optimizer.zero_grad()
        wholly_taught().backward()
        optimizer.step()
    least = _entropy_of_their_mean(task, teachers)
    assert float(wholly_taught().detach()) - least < 0.05 * (before - least)
    assert all(parameter.grad is None for teacher in teachers for parameter in teacher.parameters())


def test_a_teacher_sees_no_more_of_a_text_than_its_pupil_does() -> None:
    pupil, teacher = (make_model("classify", 9, settings(), 3) for _ in range(2))
    seen: list[tuple[Tensor, ...]] = []
    for model in (pupil, teacher):
        model.encoder.register_forward_pre_hook(lambda _, args: seen.append((args[1], args[2].padding)))
    places = torch.tensor([[0, 1, 5, 7], [1, 2, 0, 0]])
    batch = LabelledBatch(2, TOKENS, places > torch.tensor([[-1], [0]]), torch.tensor([0, 2]), places)
    summed_loss(pupil, batch, teachers=Teachers([teacher], 0.5))
    assert len(seen) == 2
    for positions, padding in seen:
        assert torch.equal(positions, places) and torch.equal(padding, batch.padding)


def _entropy_of_their_mean(task: Task, teachers: Sequence[Model]) -> float:
    with torch.no_grad():
        probabilities = torch.stack([_logits(task, teacher).softmax(-1) for teacher in teachers]).mean(0)
    return float(-(probabilities * probabilities.log()).sum())


def _logits(task: Task, model: Model) -> Tensor:
    match model:
        case EncoderDecoder():
            return model(TOKENS, REAL, TOKENS)
        case EncoderOnly():
            return model(TOKENS, REAL)
        case _:
            return model(TOKENS)
