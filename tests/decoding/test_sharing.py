"""Work shared out: the same results in the same order, whoever did it; errors arrive, and nobody is left behind."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from penwright.errors import PenwrightError
from penwright.translation import worker_processes
from penwright.translation.worker_processes import WorkerPool

COPIES = pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux alone")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever threads other tests have left; and nobody is left when the test is over."""
    monkeypatch.setattr(worker_processes, "_can_fork", lambda: True)
    yield
    gc.collect()
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_results_come_in_order(size: int) -> None:
    team = WorkerPool(lambda number: number**2, size)
    assert [team(range(n)) for n in range(size)] == [[0, 1, 4, 9, 16, 25, 36][:n] for n in range(size)]


@COPIES
@pytest.mark.usefixtures("alone")
def test_the_same_others_help_each_time() -> None:
    team = WorkerPool(lambda _: (os.getpid(), torch.get_num_threads()), 3)
    (first, _), *others = found = team("abc")
    assert first == os.getpid() and len({pid for pid, _ in found}) == 3
    assert all(n_threads == 1 for _, n_threads in found)
    assert team("abc") == found and team("ab") == found[:2] and team("a")[0][0] == first
    assert others


@COPIES
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("where", [0, 1])
def test_an_error_of_any_process_is_raised_and_the_next_answers_are_right(where: int) -> None:
    def work(number: int) -> int:
        if number == where:
            raise PenwrightError("diverged")
        return number

    team = WorkerPool(work, 2)
    with pytest.raises(PenwrightError, match="diverged"):
        team([0, 1])
    assert multiprocessing.active_children() == []
    assert team([2, 3]) == [2, 3]


@COPIES
@pytest.mark.usefixtures("alone")
def test_a_process_that_was_ended_at_work_is_reported() -> None:
    with pytest.raises(PenwrightError, match=r"worker process was killed.*OMP_NUM_THREADS=1"):
        WorkerPool(lambda number: os._exit(9) if number else None, 2)([0, 1])


@COPIES
@pytest.mark.usefixtures("alone")
def test_in_place_of_one_that_was_ended_before_another_begins() -> None:
    team = WorkerPool(lambda _: os.getpid(), 2)
    _, other = team("ab")
    os.kill(other, signal.SIGKILL)
    multiprocessing.active_children()
    while any(process.pid == other for process in multiprocessing.active_children()):
        time.sleep(0.01)
    assert team("ab")[1] != other


@COPIES
@pytest.mark.usefixtures("alone")
def test_an_interruption_ends_all() -> None:
    def work(number: int) -> None:
        if number:
            time.sleep(60)
        raise KeyboardInterrupt

    team = WorkerPool(work, 2)
    with pytest.raises(KeyboardInterrupt):
        team([0, 1])
    assert multiprocessing.active_children() == []


@COPIES
def test_nobody_outlives_a_process_that_is_killed() -> None:
    code = "import os, time; from penwright.translation.worker_processes import WorkerPool"
    code += "; t = WorkerPool(lambda _: os.getpid(), 3); print(*t('abc'), flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = list(map(int, process.stdout.readline().split()))
        process.kill()
        process.stdout.read()  # comes to its end when all of them have let it go
    assert len(set(pids)) == 3


def test_beside_other_threads_nothing_is_copied() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert set(WorkerPool(lambda _: os.getpid(), 2)("ab")) == {os.getpid()}
    finally:
        done.set()
        other.join()
