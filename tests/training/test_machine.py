from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from penwright.config import TrainingSettings
from penwright.errors import UsageError
from penwright.training.auto import machine
from penwright.training.auto.machine import available_memory, choose_machine, measure_speed


def choose(**settings: object) -> tuple[object, ...]:
    chosen = choose_machine(TrainingSettings.model_validate({"steps": 1, "threads": 1, **settings}))
    assert len(chosen.reasons) >= 2 and all(chosen.reasons)
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


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that writes control-group files, by path, and what a process reads about its own groups."""
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "OWN_CGROUPS", tmp_path / "own")

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
def test_a_container_that_may_use_few_processors_gets_as_many_threads(
    own: str | None,
    files: dict[str, str],
    expected: int,
    groups: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups(own, files)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
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
def test_the_memory_limit_of_a_container_counts(
    own: str | None, files: dict[str, str], expected: int, groups: Callable[..., None]
) -> None:
    groups(own, files)
    assert available_memory() == expected


def test_without_a_limit_all_memory_of_the_machine_is_available(groups: Callable[..., None]) -> None:
    groups(None, {"memory/memory.limit_in_bytes": "9223372036854771712\n"})
    assert 2**27 < available_memory() < 2**50


@pytest.mark.parametrize(
    ("idle", "files", "busy"),
    [
        ([90, 90, 80, 0], {}, ""),  # the last processor is not ours
        ([40, 50, 60, 100], {}, "1.5 of 3 processors"),
        ([0, 0, 0, 100], {}, "0.0 of 3 processors"),
        ([50, 10, 0, 0], {"cpu.max": "100000 100000\n"}, ""),  # the group may use one, and 0.6 are idle
        ([20, 10, 0, 0], {"cpu.max": "100000 100000\n"}, "0.3 of 1 processor"),
    ],
)
def test_a_machine_that_is_busy_now_is_reported_in_one_line(
    idle: list[int],
    files: dict[str, str],
    busy: str,
    groups: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups(None, files)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr(machine, "PROCESSORS", tmp_path / "stat")

    def write(passed: int, idle: list[int]) -> None:
        """Write what the system has counted after this number of ticks; half of the idle ones wait for a disk."""
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
def test_a_system_that_counts_no_ticks_is_not_called_busy(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "PROCESSORS", tmp_path / "stat")
    if content is not None:
        (tmp_path / "stat").write_text(content)
    assert len(choose_machine(TrainingSettings(steps=1, threads=1, device="cpu")).reasons) == 2


def test_a_device_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'cuda:77' cannot be used here"):
        choose(device="cuda:77")


def test_processes_that_would_share_a_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "n_here", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match=r"this machine has 1 GPU\. .* add --set training\.device=cpu"):
        machine._require_one_each(torch.device("cuda"))
    machine._require_one_each(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    machine._require_one_each(torch.device("cuda"))


def test_speed_is_a_positive_number() -> None:
    assert measure_speed(torch.device("cpu")) > 0
