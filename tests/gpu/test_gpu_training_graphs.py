"""Training with CUDA graphs is like training without, for every task, with dropout and compiled blocks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from penwright.training import cuda_graphs

from .conftest import Command, difference, needs_cuda, options, strict  # noqa: F401
from .test_gpu_training import TASKS, TRAINING, data, losses  # noqa: F401  # fixtures

pytestmark = [strict, needs_cuda]
GRAPHED = [task for task in TASKS if task != "encode"]


@pytest.fixture
def n_captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the captures."""
    captured = [0]
    record = cuda_graphs.record_cuda_graph

    def counted(*given: object) -> object:
        captured[0] += 1
        return record(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(cuda_graphs, "record_cuda_graph", counted)
    yield captured


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("task", GRAPHED)
def test_graphs_train_as_single_kernels_do(
    task: str,
    precision: str,
    penwright: Command,
    data: Path,  # noqa: F811  # a fixture
    tmp_path: Path,
    n_captured: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, *rest = TASKS[task]
    dropout = options(model__dropout=0.1, model__feed_forward_dropout=0.1, training__precision=precision)
    runs = []
    for devices in (cuda_graphs.DEVICES, ()):
        monkeypatch.setattr(cuda_graphs, "DEVICES", devices)
        run = tmp_path / f"run{len(runs)}"
        shown = penwright("train", data / str(name), "--run", run, "--steps", 40, *TRAINING, *rest, *dropout)
        assert shown.returncode == 0, shown.stderr
        assert "CUDA graphs do not work" not in shown.stderr
        runs.append(run)
        if devices:
            assert n_captured[0] >= 1
    graphed, plain = (losses(run) for run in runs)
    print(task, precision, n_captured, graphed, plain)
    assert graphed == pytest.approx(plain, rel=0.02 if precision == "float32" else 0.1)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("name", ["novel.txt", "pairs.tsv"])
def test_compiled_blocks_are_captured(
    name: str,
    penwright: Command,
    data: Path,  # noqa: F811  # a fixture
    tmp_path: Path,
    n_captured: list[int],
) -> None:
    torch.compiler.reset()
    given = [*TRAINING, *options(training__compile="on", model__n_layers=1, model__dropout=0.1)]
    made = penwright("train", data / name, "--run", tmp_path / "run", "--steps", 30, *given)
    assert made.returncode == 0, made.stderr
    assert n_captured[0] >= 1 and "CUDA graphs do not work" not in made.stderr
    assert losses(tmp_path / "run")[-1] < 4.0
