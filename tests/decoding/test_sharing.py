"""Work shared out: the same results in the same order, whoever did it; errors arrive, and nobody is left behind."""

import multiprocessing
import os
import sys
import threading
import time

import pytest
import torch

from penwright.decoding import sharing
from penwright.decoding.sharing import shared_out
from penwright.errors import PenwrightError

COPIES = pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux alone")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever threads other tests have left."""
    monkeypatch.setattr(sharing, "_may_copy", lambda: True)


@pytest.mark.parametrize("n_processes", [1, 2, 3, 9])
def test_results_come_in_order(n_processes: int) -> None:
    assert shared_out(lambda number: number**2, 7, n_processes) == [0, 1, 4, 9, 16, 25, 36]
    assert multiprocessing.active_children() == []


@COPIES
@pytest.mark.usefixtures("alone")
def test_others_do_their_share() -> None:
    processes = shared_out(lambda _: (os.getpid(), torch.get_num_threads()), 4, 2)
    assert processes[0] == processes[2] and processes[1] == processes[3]
    assert processes[0][0] == os.getpid() != processes[1][0]
    assert all(n_threads == 1 for _, n_threads in processes)


@COPIES
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("where", [0, 1])
def test_an_error_of_any_process_is_raised(where: int) -> None:
    def work(number: int) -> None:
        if number == where:
            raise PenwrightError("diverged")

    with pytest.raises(PenwrightError, match="diverged"):
        shared_out(work, 2, 2)
    assert multiprocessing.active_children() == []


@COPIES
@pytest.mark.usefixtures("alone")
def test_a_process_that_was_ended_is_reported() -> None:
    with pytest.raises(PenwrightError, match="ended from outside"):
        shared_out(lambda number: os._exit(9) if number else None, 2, 2)


@COPIES
@pytest.mark.usefixtures("alone")
def test_an_interruption_ends_all() -> None:
    def work(number: int) -> None:
        if number:
            time.sleep(60)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shared_out(work, 2, 2)
    assert multiprocessing.active_children() == []


def test_beside_other_threads_nothing_is_copied() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert set(shared_out(lambda _: os.getpid(), 4, 2)) == {os.getpid()}
    finally:
        done.set()
        other.join()
