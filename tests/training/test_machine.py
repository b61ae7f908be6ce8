from pathlib import Path

import pytest
import torch

from penwright.config import TrainingSettings
from penwright.errors import UsageError
from penwright.training.auto import machine
from penwright.training.auto.machine import choose_machine, measure_speed


def choose(**settings: object) -> tuple[object, ...]:
    chosen = choose_machine(TrainingSettings.model_validate({"steps": 1, "threads": 1, **settings}))
    assert len(chosen.reasons) == 2 and all(chosen.reasons)
    return chosen.device.type, chosen.precision


def test_what_is_asked_for_is_taken() -> None:
    assert choose(device="cpu", precision="bfloat16") == ("cpu", torch.bfloat16)


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_a_cpu_computes_in_bfloat16_only_where_it_has_the_instructions(
    has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bfloat16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert choose(device="cpu") == ("cpu", torch.bfloat16 if has_bfloat16 else torch.float32)


def test_the_number_of_threads_is_set() -> None:
    before = torch.get_num_threads()
    try:
        choose(threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("limit", "expected"), [("150000 100000", 2), ("900000 100000", 3), ("max 100000", 3), (None, 3)]
)
def test_a_container_that_may_use_few_processors_gets_as_many_threads(
    limit: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit is not None:
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
    monkeypatch.setattr(machine, "CGROUP_CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    before = torch.get_num_threads()
    try:
        choose(threads=0)
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


def test_a_device_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'cuda:77' cannot be used here"):
        choose(device="cuda:77")


def test_processes_that_would_share_a_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "n_here", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match=r"this machine has 1 GPU: .* add --set training\.device=cpu"):
        machine._require_one_each(torch.device("cuda"))
    machine._require_one_each(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    machine._require_one_each(torch.device("cuda"))


def test_speed_is_a_positive_number() -> None:
    assert measure_speed(torch.device("cpu")) > 0
