"""Training with graphs gives the same weights as training without. Without a GPU, a graph runs its work again."""

import gc
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from penwright.config import Table
from penwright.decoding import cuda_graphs as decoding_graphs
from penwright.decoding.cuda_graphs import Recorded
from penwright.errors import PenwrightWarning
from penwright.training import cuda_graphs
from penwright.training.trainer import Trainer

from .test_trainer import MakeTrainer, train

Record = Callable[..., Recorded]


class Recorder:
    """Records work without running it, and counts recordings and replays."""

    def __init__(self) -> None:
        self.n_recorded = self.n_replayed = 0

    def __call__(self, work: Callable[[], Tensor], *_: object) -> Recorded:
        self.n_recorded += 1
        loss = torch.full((), torch.nan)

        def replay() -> None:
            self.n_replayed += 1
            result = work()
            if result.numel():  # an update has no result
                loss.copy_(result)

        return replay, loss, None


def record_fails(*_: object) -> Recorded:
    raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


def losses_and_weights(trainer: Trainer) -> tuple[list[float], dict[str, Tensor]]:
    losses = [report.loss for report in trainer.steps()]
    return losses, trainer.weights()


@pytest.fixture
def use_graphs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Record], None]:
    """Return a function that makes training on the CPU use graphs recorded by `record`."""

    def use(record: Record) -> None:
        monkeypatch.setattr(cuda_graphs, "DEVICES", ("cpu",))
        monkeypatch.setattr(cuda_graphs, "record_cuda_graph", record)

    return use


@pytest.mark.parametrize(
    "changes", [{}, {"training": {"accumulate": 3}}, {"training": {"ema_decay": 0.9}, "optimizer": {"type": "adamw"}}]
)
def test_graphs_give_the_same_weights(
    changes: Table, make_trainer: MakeTrainer, use_graphs: Callable[[Record], None]
) -> None:
    expected_losses, expected = losses_and_weights(make_trainer(**changes))
    recorder = Recorder()
    use_graphs(recorder)
    losses, weights = losses_and_weights(make_trainer(**changes))
    assert recorder.n_recorded == 2 and recorder.n_replayed >= 6
    assert losses == pytest.approx(expected_losses, rel=1e-6)
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-6)


def test_graphs_are_captured_again_when_consistency_begins(
    make_trainer: MakeTrainer, use_graphs: Callable[[Record], None]
) -> None:
    changes: Table = {"training": {"steps": 12, "consistency": 0.7}}
    expected_losses, expected = losses_and_weights(make_trainer(**changes))
    recorder = Recorder()
    use_graphs(recorder)
    losses, weights = losses_and_weights(make_trainer(**changes))
    assert recorder.n_recorded == 3  # the gradients before and after the change, and the update
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-5)


def test_full_memory_frees_the_graphs_and_repeats_the_step(
    make_trainer: MakeTrainer, use_graphs: Callable[[Record], None]
) -> None:
    changes: Table = {"model": {"dropout": 0.0}, "training": {"accumulate": 3}}
    expected_losses, expected = losses_and_weights(make_trainer(**changes))
    recorder = Recorder()

    def record(work: Callable[[], Tensor], *_: object) -> Recorded:
        replay, loss, pool = recorder(work)

        def replay_or_fail() -> None:
            replay()
            if recorder.n_replayed == 4:  # the last batch of the second step
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

        return replay_or_fail, loss, pool

    use_graphs(record)
    with pytest.warns(PenwrightWarning, match="The reason: CUDA out of memory"):
        losses, weights = losses_and_weights(make_trainer(**changes))
    assert recorder.n_replayed == 4
    assert losses == pytest.approx(expected_losses, rel=1e-6)
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-6)


def test_failed_capture_changes_nothing(make_trainer: MakeTrainer, use_graphs: Callable[[Record], None]) -> None:
    expected = train(make_trainer()).weights()
    use_graphs(record_fails)
    with pytest.warns(PenwrightWarning, match="CUDA graphs do not work"):
        weights = train(make_trainer()).weights()
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-6)


def test_graph_is_captured_again_for_moved_parameters(
    make_trainer: MakeTrainer, use_graphs: Callable[[Record], None]
) -> None:
    recorder = Recorder()
    use_graphs(recorder)
    trainer = make_trainer(training={"steps": 12})
    for report in trainer.steps():
        if report.step == 6:
            assert recorder.n_recorded == 2
            for parameter in trainer.model.parameters():
                parameter.data = parameter.data.clone()
    assert recorder.n_recorded == 4


def test_no_garbage_is_collected_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector may free an older graph, which ends the capture."""

    class Graph:
        replay = staticmethod(lambda: None)

        def capture_begin(self, pool: object, capture_error_mode: str) -> None: ...

        def capture_end(self) -> None: ...

        def pool(self) -> None: ...

    class Stream:
        def wait_stream(self, other: object) -> None: ...

    collects = []

    def step() -> Tensor:
        collects.append(gc.isenabled())
        return torch.zeros(1)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(decoding_graphs, "own_stream", lambda device: Stream())
    decoding_graphs.record_cuda_graph(step, torch.device("cpu"), None)
    assert collects == [False] and gc.isenabled()
