import pytest
import torch

from penwright.config import ModelSettings, Task, TrainingSettings
from penwright.losses import summed_loss
from penwright.training.auto import throughput as throughput_module
from penwright.training.auto.machine import choose_machine
from penwright.training.auto.throughput import throughput_meter


@pytest.mark.parametrize("task", ["generate", "translate", "classify"])
def test_larger_model_has_lower_throughput(task: Task) -> None:
    machine = choose_machine(TrainingSettings(steps=1, device="cpu", precision="float32", threads=1))
    throughput = throughput_meter(machine, task)
    small, large = (ModelSettings(d_model=width, n_layers=2, context_length=64) for width in (16, 256))
    assert throughput(small, 300, 1024) > throughput(large, 300, 1024) > 0


def test_context_longer_than_the_batch_is_measured_with_one_row() -> None:
    machine = choose_machine(TrainingSettings(steps=1, device="cpu", precision="float32", threads=1))
    assert throughput_meter(machine, "generate")(ModelSettings(d_model=16, n_layers=1, context_length=128), 300, 32) > 0


def test_throughput_of_a_classifier_excludes_dropped_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(throughput_module, "MOST_TOKENS", 4096)  # other tests time small batches
    monkeypatch.setattr(
        throughput_module, "summed_loss", lambda model, batch: seen.append(batch) or summed_loss(model, batch)
    )
    machine = choose_machine(TrainingSettings(steps=1, device="cpu", precision="float32", threads=1))
    settings = ModelSettings(d_model=16, n_layers=1, context_length=50, token_dropout=0.6)
    assert throughput_meter(machine, "classify")(settings, 300, 1000) > 0
    assert {batch.tokens.shape for batch in seen} == {(20, 20)}


@pytest.mark.parametrize("task", ["generate", "translate", "classify"])
def test_throughput_is_measured_within_learned_positions(task: Task) -> None:
    machine = choose_machine(TrainingSettings(steps=1, device="cpu", precision="float32", threads=1))
    settings = ModelSettings.model_validate(
        {"d_model": 16, "n_layers": 1, "context_length": 8, "positions": {"type": "learned"}}
    )
    assert throughput_meter(machine, task)(settings, 300, 64) > 0


@pytest.mark.parametrize(
    ("durations", "fastest", "n_steps"),
    [
        ([2.0, 0.5, 0.51, 0.1], 0.5, 3),  # a quiet machine: two steps agree
        ([0.5, 0.3, 0.4, 0.2, 0.15, 0.1, 0.1, 0.05], 0.1, 7),  # a busy one, which becomes quiet
        ([0.8, 0.4, 0.2, 0.1, 0.05, 0.02, 0.01, 0.004, 0.001], 0.004, 8),
        ([4.0, 1.0], 4.0, 1),
    ],
)
def test_steps_are_timed_until_the_two_fastest_agree(
    durations: list[float], fastest: float, n_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, left = [0.0], list(durations)
    monkeypatch.setattr(throughput_module, "STEPS", 3)  # other tests time a single step

    def spend(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(throughput_module, "perf_counter", lambda: now[0])
    monkeypatch.setattr(throughput_module, "sleep", spend)
    assert throughput_module._fastest(lambda: spend(left.pop(0))) == pytest.approx(fastest)
    assert len(durations) - len(left) == n_steps


def test_throughput_is_zero_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(throughput_module, "summed_loss", too_large)
    machine = choose_machine(TrainingSettings(steps=1, device="cpu", precision="float32", threads=1))
    assert throughput_meter(machine, "generate")(ModelSettings(d_model=16, n_layers=1, context_length=8), 300, 64) == 0
