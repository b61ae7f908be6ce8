"""A group of one rank with NCCL: DDP and FSDP2 train, save and resume like a single process."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from penwright.run.checkpoint_folder import CHECKPOINTS
from penwright.run.checkpoints import folder_name
from penwright.run.folder import Run
from penwright.training.auto.machine import Machine
from penwright.training.distributed import ranks as ranks_module
from penwright.training.distributed.parallel import ShardedSaver
from penwright.training.distributed.ranks import ALONE, Ranks
from penwright.training.trainer import Trainer

from ..training import rank_training
from ..training.conftest import usual_handlers  # noqa: F401  # a fixture
from .conftest import DEVICE, difference, pytestmark_of_gpu

pytestmark = pytestmark_of_gpu
STEPS = 8


class Several(int):
    """The number 1, but unequal to 1 and greater than 1, so that a group of one rank runs the code for several."""

    def __eq__(self, other: object) -> bool:
        return False

    def __gt__(self, other: int) -> bool:
        return other <= 1

    __hash__ = int.__hash__


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """A process group of one rank, which joins like a rank of torchrun."""
    free = rank_training.socket()
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
    free.close()
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks_module, "is_launched", lambda: True)
    monkeypatch.setattr(ranks_module, "Heartbeat", lambda *_: SimpleNamespace(run=lambda ended: None))
    monkeypatch.setattr(ranks_module, "atexit", SimpleNamespace(register=lambda *_: None))
    ranks = ranks_module.join.__wrapped__()
    ranks.size = Several(1)
    yield ranks
    ranks.leave()


def make_trainer(ranks: Ranks, kind: str, device: str = DEVICE, precision: str = "float32", **changes: Any) -> Trainer:
    training = {"steps": STEPS, "parallelism": kind, "precision": precision}
    made = rank_training.make_trainer

    def machine(_: torch.device, dtype: torch.dtype, *rest: Any) -> Machine:
        return Machine(torch.device(device), dtype, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_training, "Machine", machine)
        return made(ranks, {"training": training, **changes})


def finish(trainer: Trainer) -> dict[str, torch.Tensor]:
    for _ in trainer.steps():
        pass
    return trainer.weights()


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("task", ["generate", "translate"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_group_reaches_the_weights_of_one_process(kind: str, task: str, optimizer: str, group: Ranks) -> None:
    changes = {"task": task, "optimizer": {"type": optimizer, "learning_rate": 0.001}}
    expected = finish(make_trainer(ALONE, "ddp", **changes))
    assert difference(finish(make_trainer(group, kind, **changes)), expected) < 1e-5


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_group_trains_in_bfloat16(kind: str, group: Ranks) -> None:
    expected = [each.loss for each in make_trainer(ALONE, "ddp", precision="bfloat16").steps()]
    found = [each.loss for each in make_trainer(group, kind, precision="bfloat16").steps()]
    assert found == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("resumed_on", [DEVICE, "cpu"])
def test_saved_group_resumes_in_the_group_and_on_the_cpu(
    kind: str, resumed_on: str, group: Ranks, tmp_path: Path
) -> None:
    trainer, run = make_trainer(group, kind), Run(tmp_path)
    if kind == "fsdp":
        trainer.saver = ShardedSaver(group, tmp_path / CHECKPOINTS, ".tmp-1")
    for report in trainer.steps():
        if report.step == STEPS // 2:
            break
    (tensors, record), weights = trainer.save(), trainer.weights()
    if trainer.saver:
        complete: Callable[..., None] = partial(run.checkpoints.complete, report.step)
        trainer.saver.start(folder_name(report.step), tensors, lambda *parts: complete(*parts, weights, record))
        trainer.saver.wait()
    else:
        run.checkpoints.save(report.step, weights, tensors, record)
    whole = finish(trainer)
    if trainer.saver:
        trainer.saver.close()
    ranks, chosen = (group, kind) if resumed_on == DEVICE else (ALONE, "ddp")
    resumed = make_trainer(ranks, chosen, resumed_on)
    resumed.load(run.checkpoints.newest()[0])
    assert difference(finish(resumed), whole) < 1e-4


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_model_of_a_group_is_evaluated(kind: str, group: Ranks) -> None:
    trainer = make_trainer(group, kind)
    next(trainer.steps())
    with trainer.evaluation():
        model = trainer.unsharded or trainer.model
        tokens = torch.zeros(1, 3, dtype=torch.long, device=DEVICE)
        assert model.eval()(tokens).isfinite().all()


def test_collectives_accept_tensors_of_both_devices(group: Ranks) -> None:
    assert group.all_agree(True) and not group.all_agree(False)
    for device in {"cpu", DEVICE}:
        total = torch.ones(3, device=device)
        dist.all_reduce(total)
        assert total.tolist() == [1.0] * 3
    matrices = [torch.randn(4, 6, device=DEVICE) for _ in range(3)]
    for n_rows in (4, 5):  # whole matrices, then shards
        if n_rows == 4:
            found = group.map_matrices(lambda each: 2 * each, matrices, n_rows)
            assert all(torch.equal(one, 2 * other) for one, other in zip(found, matrices, strict=True))
