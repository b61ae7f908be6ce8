"""The launcher of ranks, tested with scripts that do not import torch, and stop signals."""

import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep

import pytest
import torch.distributed.run
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from penwright.errors import PenwrightError
from penwright.training.distributed.launcher import (
    ONE_REQUEST,
    launch,
    run_to_restart,
    stop_requests,
    treat_as_ctrl_c,
)

# A fake rank: it writes down its process id and does what ACTION_<rank>_<attempt> says.
FAKE_RANK = """
import os, signal, sys, time
from pathlib import Path
from penwright.training.distributed.launcher import ENSEMBLE, enter_rank, leave_rank, note_run, run_to_restart

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
folder, asked = Path(os.environ["FAKE_RANK_FOLDER"]), []
signal.signal(signal.SIGINT, lambda *_: asked.append(1))
enter_rank()
restarted = run_to_restart(None)
note_run(Path("some run"))
if "FAKE_ENSEMBLE" in os.environ:
    note_run(Path(os.environ["FAKE_ENSEMBLE"]), ENSEMBLE)
(folder / f"unfinished {rank}").write_text(f"{os.getpid()} {restarted}")
(folder / f"unfinished {rank}").rename(folder / f"{rank}.{attempt}")  # whole or absent, also after SIGKILL
action = os.environ.get(f"ACTION_{rank}_{attempt}", "wait")
while rank == 1 and not (folder / f"0.{attempt}").exists():
    time.sleep(0.01)
if action == "die":
    os.kill(os.getpid(), signal.SIGKILL)
until = time.monotonic() + 60
while action == "wait" and time.monotonic() < until and not asked:
    time.sleep(0.01)
sys.exit(leave_rank(130 if asked else 0 if action == "end" else 7))
"""
posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder of the fake ranks, and check that all have ended after the test."""
    (tmp_path / "fake_rank.py").write_text(FAKE_RANK, encoding="utf-8")
    source = Path(__file__).parents[2] / "src"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(source), str(tmp_path)]))
    monkeypatch.setenv("FAKE_RANK_FOLDER", str(tmp_path))
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise ImportError('ranks must not import files of the working folder')")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(dynamic_rendezvous, "_delay", lambda seconds: sleep(0.01))  # instead of a second per look
    yield tmp_path
    for file in tmp_path.glob("?.?"):
        assert not Path(f"/proc/{file.read_text(encoding='utf-8').split()[0]}").exists()


@posix
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_rank_is_named_and_all_ranks_end(folder: Path, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"ACTION_{rank}_0", "die")
    begin = monotonic()
    with pytest.raises(PenwrightError, match=rf"rank {rank} of 2.* SIGKILL.*--resume 'some run' --processes 2"):
        launch(2, ["fake_rank"])
    assert monotonic() - begin < 45


@posix
def test_killed_rank_of_an_ensemble_advises_to_repeat_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTION_0_0", "die")
    monkeypatch.setenv("FAKE_ENSEMBLE", "an ensemble")
    with pytest.raises(PenwrightError, match=r"same command again with --run 'an ensemble'$"):
        launch(2, ["fake_rank"])


@posix
def test_killed_rank_restarts_all_ranks_which_know_their_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, action in (("ACTION_1_0", "die"), ("ACTION_0_1", "end"), ("ACTION_1_1", "end")):
        monkeypatch.setenv(name, action)
    assert launch(2, ["fake_rank"], max_restarts=1) == 0
    assert [(folder / f"0.{attempt}").read_text(encoding="utf-8").split(" ", 1)[1] for attempt in (0, 1)] == [
        "None",
        "some run",
    ]


@posix
def test_exit_code_of_a_failed_rank_is_returned_without_a_restart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTION_0_0", "fail")
    monkeypatch.setenv("ACTION_1_0", "end")
    assert launch(2, ["fake_rank"], max_restarts=3) == 7
    assert not (folder / "0.1").exists()


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stop_signal_is_forwarded_to_rank_0(folder: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTION_1_0", "end")
    before = signal.getsignal(signal.SIGHUP)

    has_ended = Event()

    def send() -> None:
        while not (folder / "0.0").exists():
            if has_ended.wait(0.01):
                return
        signal.raise_signal(number)

    sender = Thread(target=send)
    sender.start()
    try:
        assert launch(2, ["fake_rank"], max_restarts=1) == 130
    finally:
        has_ended.set()
        sender.join()
    assert signal.getsignal(signal.SIGHUP) is before and not (folder / "0.1").exists()


@posix
def test_ranks_that_fail_to_start_end_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(2, ["penwright.there_is_no_such_module"]) == 1
    assert "no_such_module" in capfd.readouterr().err


def test_run_to_restart_is_set_only_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_to_restart(Path("run")) is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert run_to_restart(Path("run")) == Path("run")


@posix
def test_repeated_hang_up_counts_as_one_stop_request() -> None:
    with stop_requests() as received:
        signal.raise_signal(signal.SIGHUP)
        sleep(ONE_REQUEST)
        signal.raise_signal(signal.SIGHUP)
        assert received == [signal.SIGHUP]


@posix
def test_second_stop_signal_runs_the_previous_handler() -> None:
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
def test_ignored_hang_up_stays_ignored() -> None:
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


def documented_torchrun_commands() -> list[list[str]]:
    """The torchrun commands of the how-to: for a shell, for Slurm (with its variables), and for Kubernetes (YAML)."""
    text = (Path(__file__).parents[2] / "docs/how-to/several-processes.md").read_text(encoding="utf-8")
    shell = [shlex.split(each.replace("\\\n", "")) for each in re.findall(r"torchrun (--(?:.*\\\n)*.*)", text)]
    yaml = [shlex.split(each.replace(",", " ")) for each in re.findall(r"\[torchrun,([^\]]*)\]", text)]
    assert len(shell) == 2 and len(yaml) == 1
    return shell + yaml


@pytest.mark.parametrize("command", documented_torchrun_commands())
def test_torchrun_understands_the_documented_commands(command: list[str]) -> None:
    arguments = torch.distributed.run.get_args_parser().parse_args(command)
    assert arguments.module and arguments.training_script == "penwright"
    assert arguments.training_script_args[0] == "train" and "--run" in arguments.training_script_args
