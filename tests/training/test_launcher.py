"""The launcher beside ranks that need no torch: each test takes seconds."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from penwright.errors import Interrupted, PenwrightError
from penwright.training.launcher import GRACE, HUNG, HUNG_AT_FIRST, HUNG_WHEN_ASKED, Watch, launch
from penwright.training.rank_table import Field, RankTable
from penwright.training.signals import ONE_REQUEST, stop_requests, treat_as_ctrl_c

# A rank that steps until rank 0 is asked to stop; files in its folder say what it does.
PRETENDED = """
import os, signal, sys, time
from pathlib import Path
from penwright.training.launcher import guard_this_rank, env_int
from penwright.training.rank_table import Field, RankTable

rank, folder = env_int("RANK", 0), Path(os.environ["PRETENDED"])
table = RankTable.inherited(2)
stopping = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, (lambda *_: stopping.append(1)) if rank == 0 else signal.SIG_IGN)
guard_this_rank()
table.keep_folder("some run")
while not stopping:
    table.count(rank, Field.STEPS)
    table.count(rank, Field.WAITS)
    table.count(rank, Field.COLLECTIVES)
    if table.get(rank, Field.STEPS) == 5:
        (folder / f"{rank}.tmp").write_text(str(os.getpid()))
        (folder / f"{rank}.tmp").rename(folder / f"{rank}.pid")
    while table.get(1 - rank, Field.COLLECTIVES) < table.get(rank, Field.COLLECTIVES):
        time.sleep(0.005)
        if os.getppid() != int(os.environ["PENWRIGHT_LAUNCHER"]):
            time.sleep(100)  # as in a collective that nobody ends
    table.count(rank, Field.WAITS)
    while rank == 1 and (folder / "stuck").exists():
        time.sleep(0.01)
    time.sleep(0.01)
(folder / "saved").touch()
sys.exit(130)
"""
DRIVER = """
import sys
import penwright.training.launcher as launcher
from penwright.errors import PenwrightError

launcher.HUNG = launcher.HUNG_WHEN_ASKED = launcher.GRACE = 1.0
try:
    sys.exit(launcher.launch(2, ["pretended"]))
except PenwrightError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""
posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")
Started = tuple["subprocess.Popen[str]", list[int]]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """A launcher and the process ids of its two ranks, which are in the midst of training."""
    (tmp_path / "pretended.py").write_text(PRETENDED, encoding="utf-8")
    path = os.pathsep.join([*sys.path, str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": path, "PRETENDED": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", DRIVER], env=environment, stderr=subprocess.PIPE, text=True)
    files = [tmp_path / f"{rank}.pid" for rank in range(2)]
    assert eventually(lambda: all(file.exists() for file in files), 60)
    pids = [int(file.read_text(encoding="ascii")) for file in files]
    try:
        yield process, pids
    finally:
        for pid in (process.pid, *pids):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    until = monotonic() + seconds
    while not condition() and monotonic() < until:
        sleep(0.02)
    return condition()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


@posix
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGSTOP, "stopped"), (signal.SIGKILL, "SIGKILL"), (signal.SIGABRT, "SIGABRT")]
)
def test_a_rank_that_is_stopped_or_killed_is_named_and_ends_all(
    started: Started, rank: int, number: int, words: str
) -> None:
    process, pids = started
    os.kill(pids[rank], number)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 1
    assert f"rank {rank} of 2" in said and words in said and "--resume 'some run' --processes 2" in said
    assert said.count("\n") == 1 and not any(map(is_alive, pids))


@posix
def test_a_rank_that_is_stuck_though_it_runs_is_named(started: Started, tmp_path: Path) -> None:
    process, pids = started
    (tmp_path / "stuck").touch()
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 1 and "rank 1 of 2" in said and "did not respond" in said
    assert not any(map(is_alive, pids))


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_lets_rank_0_save(started: Started, tmp_path: Path, number: int) -> None:
    process, pids = started
    process.send_signal(number)
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 130 and (tmp_path / "saved").exists()
    assert not any(map(is_alive, pids))


@posix
@pytest.mark.parametrize("hung", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_ends_ranks_of_which_one_hangs(started: Started, hung: int, number: int) -> None:
    process, pids = started
    os.kill(pids[hung], signal.SIGSTOP)
    process.send_signal(number)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 130 and f"rank {hung} of 2" in said and said.count("\n") == 1
    assert not any(map(is_alive, pids))


@posix
def test_a_signal_to_rank_0_that_waits_for_a_hung_rank_ends_all(started: Started) -> None:
    process, pids = started
    os.kill(pids[1], signal.SIGSTOP)
    os.kill(pids[0], signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 130 and not any(map(is_alive, pids))


@posix
@pytest.mark.parametrize("hung", [None, 1])
def test_no_rank_outlives_a_launcher_that_was_killed(started: Started, hung: int | None, tmp_path: Path) -> None:
    process, pids = started
    if hung is not None:  # it cannot end by itself
        (tmp_path / "stuck").touch()
    process.kill()
    assert eventually(lambda: not any(map(is_alive, pids)), 15)


class Pretended(subprocess.Popen[bytes]):
    """A process that does nothing."""

    def __init__(self) -> None:
        self.pid, self.returncode = os.getpid(), None  # no child of this one

    def poll(self) -> int | None:
        return self.returncode


def watched(received: list[int] | None = None) -> Watch:
    """Two ranks that have taken some steps."""
    watch = Watch([Pretended(), Pretended()], RankTable(2), received or [])
    for _ in range(4):
        step(watch, 0), step(watch, 1)
        watch.check(1.0)
    return watch


def step(watch: Watch, rank: int) -> None:
    watch.table.count(rank, Field.STEPS)
    watch.table.count(rank, Field.COLLECTIVES)


def look_for(watch: Watch, seconds: float) -> None:
    for _ in range(round(seconds)):
        watch.check(1.0)


def test_ranks_that_are_equally_far_may_take_as_long_as_they_like() -> None:
    watch = watched()
    watch.table.count(1, Field.WAITS)  # rank 1 waits while rank 0 evaluates
    look_for(watch, 5000)


def test_a_rank_that_compiles_is_not_hung_but_one_that_has_compiled_can_be() -> None:
    watch = watched()
    step(watch, 0)
    watch.table.count(1, Field.COMPILATIONS)
    look_for(watch, 3000)
    watch.table.count(1, Field.COMPILATIONS)
    look_for(watch, HUNG - 1)
    with pytest.raises(PenwrightError, match="rank 1 of 2"):
        look_for(watch, 3)


def test_the_first_steps_may_take_longer() -> None:
    watch = Watch([Pretended(), Pretended()], RankTable(2), [])
    step(watch, 1)
    look_for(watch, HUNG_AT_FIRST)
    with pytest.raises(PenwrightError, match="rank 0 of 2"):
        look_for(watch, 3)


def test_slow_steps_are_not_hung() -> None:
    watch = watched()
    for _ in range(5):
        step(watch, 0)
        look_for(watch, HUNG - 5)
        step(watch, 1)
        watch.check(1.0)
    step(watch, 0)
    look_for(watch, 4 * HUNG)
    with pytest.raises(PenwrightError, match="rank 1 of 2"):
        look_for(watch, HUNG)


def test_once_asked_to_stop_a_lag_is_soon_given_up_but_saving_takes_its_time() -> None:
    watch = watched()
    watch.table.set(0, Field.ASKED, 1)
    look_for(watch, 1000)  # rank 0 evaluates or saves
    watch.table.count(0, Field.WAITS)
    look_for(watch, HUNG_WHEN_ASKED)
    with pytest.raises(Interrupted, match="rank 1 of 2"):
        look_for(watch, 2)


def test_a_rank_that_failed_is_left_to_rank_0_to_name_at_first() -> None:
    watch = watched()
    watch.ranks[1].returncode = -signal.SIGKILL
    look_for(watch, GRACE)
    assert watch.table.get(1, Field.ENDED) == -signal.SIGKILL
    with pytest.raises(PenwrightError, match="SIGKILL"):
        look_for(watch, 2)


def test_ranks_that_cannot_start_end_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(2, ["penwright.there_is_no_such_module"]) == 1
    assert "no_such_module" in capfd.readouterr().err


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
