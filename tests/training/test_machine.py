from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from penwright import devices
from penwright.config import TrainingSettings
from penwright.devices import available_memory
from penwright.errors import UsageError
from penwright.training.auto import machine
from penwright.training.auto.machine import choose_machine, measure_speed


def choose(**settings: object) -> tuple[object, ...]:
    chosen = choose_machine(TrainingSettings.model_validate({"steps": 1, "threads": 1, **settings}))
    assert len(chosen.reasons) >= 2 and all(chosen.reasons)
    return chosen.device.type, chosen.precision


def test_requested_device_and_precision_are_used() -> None:
    assert choose(device="cpu", precision="bfloat16") == ("cpu", torch.bfloat16)


@pytest.mark.parametrize(
    ("has_instructions", "gain", "precision"),
    [(True, 1.8, torch.bfloat16), (True, 0.5, torch.float32), (False, 1.8, torch.float32)],
)
def test_cpu_uses_bfloat16_only_if_it_has_fast_instructions_for_it(
    has_instructions: bool, gain: float, precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_instructions)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(machine, "_gain_of_bfloat16", lambda: gain)
    assert choose(device="cpu") == ("cpu", precision)


def test_gain_of_bfloat16_is_measured_in_turn_with_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 4.0, 4.0, 5.0, 5.0, 8.0, 8.0, 10.0])  # float32 takes 4 and 3 seconds, bfloat16 1 and 2
    monkeypatch.setattr(machine, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(machine, "GAIN_ROUNDS", 2)
    assert machine._gain_of_bfloat16() == 3.0


def test_requested_number_of_threads_is_set() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        choose(threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def write_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that writes control-group files and the group membership of the process."""
    monkeypatch.setattr(devices, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(devices, "OWN_CGROUPS", tmp_path / "own")

    def write(own: str | None, files: dict[str, str]) -> None:
        if own is not None:
            (tmp_path / "own").write_text(own)
        for name, content in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return write


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        (None, {"cpu.max": "150000 100000\n"}, 2),
        (None, {"cpu.max": "900000 100000\n"}, 3),
        (None, {"cpu.max": "max 100000\n"}, 3),
        (None, {}, 3),
        (None, {"cpu.max": ""}, 3),
        ("0::/a/b\n", {"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "max 100000\n"}, 1),
        (None, {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        (None, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ("5:memory:/m\n4:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "1\n", "cpu/a/cpu.cfs_period_us": "100\n"}, 1),
    ],
)
def test_threads_respect_the_cpu_quota_of_a_container(
    own: str | None,
    files: dict[str, str],
    expected: int,
    write_cgroups: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_cgroups(own, files)
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    before = torch.get_num_threads()
    try:
        choose(threads=0)
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        (None, {"memory.max": "2000000\n"}, 2_000_000),
        ("0::/a\n", {"memory.max": "max\n", "a/memory.max": "3000000\n"}, 3_000_000),
        ("9:memory:/docker/x\n", {"memory/memory.limit_in_bytes": "4000000\n"}, 4_000_000),
    ],
)
def test_available_memory_respects_the_container_limit(
    own: str | None, files: dict[str, str], expected: int, write_cgroups: Callable[..., None]
) -> None:
    write_cgroups(own, files)
    assert available_memory() == expected


def test_available_memory_without_a_limit_is_that_of_the_machine(write_cgroups: Callable[..., None]) -> None:
    write_cgroups(None, {"memory/memory.limit_in_bytes": "9223372036854771712\n"})
    assert 2**27 < available_memory() < 2**50


@pytest.mark.parametrize(
    ("idle", "files", "busy"),
    [
        ([90, 90, 80, 0], {}, ""),  # the last processor is not available to us
        ([40, 50, 60, 100], {}, "1.5 of 3 processors"),
        ([0, 0, 0, 100], {}, "0.0 of 3 processors"),
        ([50, 10, 0, 0], {"cpu.max": "100000 100000\n"}, ""),  # the group may use 1 processor, and 0.6 are idle
        ([20, 10, 0, 0], {"cpu.max": "100000 100000\n"}, "0.3 of 1 processor"),
    ],
)
def test_busy_machine_is_reported_in_one_line(
    idle: list[int],
    files: dict[str, str],
    busy: str,
    write_cgroups: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_cgroups(None, files)
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr(machine, "PROCESSORS", tmp_path / "stat")

    def write(passed: int, idle: list[int]) -> None:
        """Write the CPU statistics after `passed` ticks; half of the idle ticks are I/O waits."""
        lines = [f"cpu{n} {passed - each} 0 0 {each - each // 2} {each // 2} 0 0 0 7" for n, each in enumerate(idle)]
        (tmp_path / "stat").write_text("\n".join(["cpu 9 9 9 9 9 9 9 9 9", *lines, "ctxt 5"]))

    write(1000, [0, 0, 0, 0])
    monkeypatch.setattr(machine, "sleep", lambda _: write(1100, idle))
    reasons = choose_machine(TrainingSettings(steps=1, threads=1, device="cpu")).reasons
    assert [reason for reason in reasons if "busy" in reason] == [
        reason for reason in reasons if busy and f"busy: other programs leave {busy} idle" in reason
    ]
    assert len(reasons) == 2 + bool(busy)


@pytest.mark.parametrize("content", [None, "intr 5\n"])
def test_system_without_cpu_statistics_is_not_reported_as_busy(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "PROCESSORS", tmp_path / "stat")
    if content is not None:
        (tmp_path / "stat").write_text(content)
    assert len(choose_machine(TrainingSettings(steps=1, threads=1, device="cpu")).reasons) == 2


def test_unavailable_device_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'cuda:77' cannot be used here"):
        choose(device="cuda:77")


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "n_here", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match=r"this machine has 1 GPU\. .* add --set training\.device=cpu"):
        machine._require_one_each(torch.device("cuda"))
    machine._require_one_each(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    machine._require_one_each(torch.device("cuda"))


def test_measured_speed_is_positive() -> None:
    assert measure_speed(torch.device("cpu")) > 0
