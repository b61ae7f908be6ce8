"""The launcher beside ranks that need no torch, and stop signals."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import pytest

from penwright.errors import PenwrightError
from penwright.training.distributed.launcher import launch, run_to_restart
from penwright.training.signals import ONE_REQUEST, stop_requests, treat_as_ctrl_c

# A rank that notes its process id and does what `deeds` says for its rank and attempt.
PRETENDED = """
import os, signal, sys, time
from pathlib import Path
from penwright.training.distributed.launcher import enter_rank, leave_rank, note_run, run_to_restart

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
folder, asked = Path(os.environ["PRETENDED"]), []
signal.signal(signal.SIGINT, lambda *_: asked.append(1))
enter_rank()
restarted = run_to_restart(None)
note_run(Path("some run"))
(folder / f"{rank}.{attempt}").write_text(f"{os.getpid()} {restarted}")
deed = os.environ.get(f"DEED_{rank}_{attempt}", "wait")
while rank == 1 and not (folder / f"0.{attempt}").exists():
    time.sleep(0.01)
if deed == "die":
    os.kill(os.getpid(), signal.SIGKILL)
until = time.monotonic() + 60
while deed == "wait" and time.monotonic() < until and not asked:
    time.sleep(0.01)
sys.exit(leave_rank(130 if asked else 0 if deed == "end" else 7))
"""
posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the pretended ranks, all of which have ended when the test ends."""
    (tmp_path / "pretended.py").write_text(PRETENDED, encoding="utf-8")
    source = Path(__file__).parents[2] / "src"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(source), str(tmp_path)]))
    monkeypatch.setenv("PRETENDED", str(tmp_path))
    yield tmp_path
    for file in tmp_path.glob("?.?"):
        assert not Path(f"/proc/{file.read_text(encoding='utf-8').split()[0]}").exists()


@posix
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_is_named_and_ends_all(folder: Path, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"DEED_{rank}_0", "die")
    begin = monotonic()
    with pytest.raises(PenwrightError, match=rf"rank {rank} of 2.* SIGKILL.*--resume 'some run' --processes 2"):
        launch(2, ["pretended"])
    assert monotonic() - begin < 45


@posix
def test_a_killed_rank_restarts_all_which_know_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, deed in (("DEED_1_0", "die"), ("DEED_0_1", "end"), ("DEED_1_1", "end")):
        monkeypatch.setenv(name, deed)
    assert launch(2, ["pretended"], max_restarts=1) == 0
    assert [(folder / f"0.{attempt}").read_text(encoding="utf-8").split(" ", 1)[1] for attempt in (0, 1)] == [
        "None",
        "some run",
    ]


@posix
def test_a_rank_that_fails_in_order_gives_its_code_and_no_restart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEED_0_0", "fail")
    monkeypatch.setenv("DEED_1_0", "end")
    assert launch(2, ["pretended"], max_restarts=3) == 7
    assert not (folder / "0.1").exists()


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_is_passed_to_rank_0(folder: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEED_1_0", "end")
    before = signal.getsignal(signal.SIGHUP)

    def send() -> None:
        while not (folder / "0.0").exists():
            sleep(0.01)
        signal.raise_signal(number)

    Thread(target=send).start()
    assert launch(2, ["pretended"], max_restarts=1) == 130
    assert signal.getsignal(signal.SIGHUP) is before and not (folder / "0.1").exists()


@posix
def test_ranks_that_cannot_start_end_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(2, ["penwright.there_is_no_such_module"]) == 1
    assert "no_such_module" in capfd.readouterr().err


def test_only_a_restarted_process_looks_for_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_to_restart(Path("run")) is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert run_to_restart(Path("run")) == Path("run")


@posix
def test_a_hang_up_is_a_request_to_stop_but_never_the_second_one() -> None:
    with stop_requests() as received:
        signal.raise_signal(signal.SIGHUP)
        sleep(ONE_REQUEST)
        signal.raise_signal(signal.SIGHUP)
        assert received == [signal.SIGHUP]


@posix
def test_a_second_signal_acts_as_before_unless_it_is_the_same_request() -> None:
    again = []
    before = signal.signal(signal.SIGTERM, lambda number, _: again.append(number))
    try:
        with stop_requests() as received:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            assert received == [signal.SIGINT] and not again
            sleep(ONE_REQUEST)
            signal.raise_signal(signal.SIGTERM)
        assert again == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@posix
def test_an_ignored_hang_up_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    try:
        treat_as_ctrl_c()
        with stop_requests() as received:
            signal.raise_signal(signal.SIGHUP)
            assert received == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
