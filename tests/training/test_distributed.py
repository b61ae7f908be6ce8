"""Several ranks beside one process: the same weights, whatever is done to the ranks.

Starting torch takes most of the time. `rank_training.py` therefore starts it once and forks all ranks that need no
command, and few tests start whole commands.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import socket
from threading import Event
from time import monotonic, sleep

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import HashStore

from penwright.data.batches import TextBatch
from penwright.errors import PenwrightError
from penwright.run.checkpoints import DamagedCheckpoint, Record
from penwright.run.folder import Run
from penwright.training.distributed import heartbeat
from penwright.training.distributed.heartbeat import SILENT_BEATS, Heartbeat
from penwright.training.distributed.parallel import choose_parallelism
from penwright.training.distributed.ranks import ALONE, Ranks, agree_on_prefix
from penwright.training.distributed.saving import ShardedSaver
from penwright.workflows.trainers import goes_on, has_extended

SETTINGS = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.n_heads": 2,
    "model.context_length": 32,
    "model.dropout": 0,
    "training.batch_tokens": 160,
    "training.threads": 1,
    "training.device": "cpu",
    "training.precision": "float32",
    "decoding.max_new_tokens": 8,
}
OPTIONS = [option for name, value in SETTINGS.items() for option in ("--set", f"{name}={value}")]
Process = subprocess.Popen[str]
PENWRIGHT = (sys.executable, "-m", "penwright", "train")
linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="ranks are forks, and are found in /proc")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the weights of every variant and number of ranks."""
    folder = tmp_path_factory.mktemp("trained")
    script = Path(__file__).with_name("rank_training.py")
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def furthest(one: Path, other: Path) -> float:
    ours, theirs = load_file(one), load_file(other)
    names = (ours.keys() & theirs.keys()) - {"losses"}
    assert len(names) > 10
    return max(float((ours[name] - theirs[name]).abs().max()) for name in names)


@linux
@pytest.mark.parametrize("name", ["muon ddp 2", "muon ddp 4", "muon fsdp 2", "muon fsdp 4"])
def test_ranks_learn_in_50_steps_what_one_process_learns(trained: Path, name: str) -> None:
    assert furthest(trained / name, trained / f"{name.split(maxsplit=1)[0]} 1") < 1e-5


@linux
@pytest.mark.parametrize(
    "name", ["few rows ddp 4", "few rows fsdp 4", "adamw fsdp 2", "translate ddp 2", "translate fsdp 2"]
)
def test_ranks_without_rows_adamw_and_translators_learn_the_same(trained: Path, name: str) -> None:
    assert furthest(trained / name, trained / f"{name[:-6].strip()} 1") < 1e-5


@linux
def test_activation_checkpointing_changes_no_number(trained: Path) -> None:
    assert furthest(trained / "recomputed 1", trained / "short 1") == 0
    assert furthest(trained / "recomputed fsdp 2", trained / "short 1") < 1e-5


@linux
def test_sharded_training_in_bfloat16_stays_close(trained: Path) -> None:
    losses: list[Tensor] = [load_file(trained / name)["losses"][:, 0] for name in ("bfloat16 fsdp 2", "bfloat16 1")]
    torch.testing.assert_close(*losses, rtol=0.02, atol=0)


@linux
@pytest.mark.parametrize("name", ["resumed 4 1", "resumed 4 2", "resumed 4 8", "resumed 2 1"])
def test_a_run_resumes_with_another_number_of_ranks(trained: Path, name: str) -> None:
    assert furthest(trained / name, trained / "short 1") < 1e-5


@linux
def test_each_rank_saves_its_part_of_the_training_state(trained: Path) -> None:
    checkpoint = Run(trained / "short run of 4").newest()[0]
    names = [f"training-{rank:05d}-of-00004.safetensors" for rank in range(4)]
    assert sorted(path.name for path in checkpoint.folder.glob("training*")) == names
    sizes = [(checkpoint.folder / name).stat().st_size for name in names]
    assert max(sizes) < 0.6 * sum(sizes)
    whole = checkpoint.training()
    for name, tensor in checkpoint.weights().items():
        assert whole[f"raw/{name}"].shape == tensor.shape
    damaged = checkpoint.folder / names[2]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedCheckpoint, match=names[2]):
        checkpoint.verify()
    damaged.unlink()
    with pytest.raises(DamagedCheckpoint, match="is missing"):
        checkpoint.verify()


def savers(store: HashStore, place: Path) -> list[ShardedSaver]:
    return [ShardedSaver(Ranks(rank, 2, store), place, ".tmp-7") for rank in range(2)]


def test_a_checkpoint_appears_when_all_ranks_have_saved_their_parts(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save_checkpoint(1, {"w": torch.zeros(2)}, {"m": torch.zeros(2)}, {})
    first, second = savers(HashStore(), tmp_path / "checkpoints")
    tensors = {"m": torch.ones(2)}

    def complete(folder: Path, parts: Record) -> None:
        run.complete_checkpoint(2, folder, parts, {"w": torch.ones(2)}, {"step": 2})

    first.start("step-00000002", tensors, complete)
    tensors["m"].zero_()
    sleep(0.1)
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [1]  # a kill now loses nothing older
    second.start("step-00000002", {}, complete)
    for saver in (first, second):
        saver.wait()
        saver.close()
    newest, warnings = run.newest()
    assert newest.step == 2 and not warnings and newest.training()["m"].tolist() == [1, 1]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_a_part_that_cannot_be_saved_is_an_error_of_rank_0(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    first, second = savers(HashStore(), tmp_path)
    second.place = tmp_path / "file"
    for saver in (first, second):
        saver.start("step-00000002", {}, lambda folder, parts: None)
    with pytest.raises(PenwrightError, match=r"00001-of-00002.*could not be saved.*Earlier checkpoints are intact"):
        first.wait()
    second.wait()
    for saver in (first, second):
        saver.close()


@linux
def test_ranks_that_resume_with_dropout_continue_bit_for_bit(trained: Path) -> None:
    assert furthest(trained / "resumed dropout 2", trained / "dropout ddp 2") == 0


def test_rows_are_shared_and_none_is_left_out() -> None:
    tokens = torch.arange(20).reshape(5, 4)
    batch = TextBatch(20, tokens, tokens + 1, None)
    shares = [Ranks(rank, 3).share(batch) for rank in range(3)]
    rows = torch.cat([share.tokens for share, _ in shares])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, tokens.tolist()))
    assert [(share.n_rows, weight) for share, weight in shares] == [(2, 1.0), (2, 1.0), (1, 1.0)]
    assert ALONE.share(batch) == (batch, 1.0)


def test_a_rank_for_which_no_row_is_left_repeats_one_without_weight() -> None:
    tokens = torch.arange(8).reshape(2, 4)
    share, weight = Ranks(2, 3).share(TextBatch(8, tokens, tokens, None))
    assert (share.n_rows, weight) == (1, 0.0)


@pytest.mark.parametrize(
    ("memory", "can_shard", "chosen"), [(100.0, True, "ddp"), (20.0, True, "fsdp"), (20.0, False, "ddp")]
)
def test_a_model_is_sharded_if_it_does_not_fit(memory: float, can_shard: bool, chosen: str) -> None:
    kind, reason = choose_parallelism(20e9, memory * 1e9, can_shard=can_shard)
    assert kind == chosen and "20 GB" in reason


def test_a_rank_without_heartbeat_is_noticed_but_not_one_that_has_left() -> None:
    store = torch.distributed.HashStore()
    ours, theirs = Heartbeat(store, 0, 2), Heartbeat(store, 1, 2)
    for _ in range(3 * SILENT_BEATS):
        theirs.beat()
        assert not ours.beat()
    assert [ours.beat() for _ in range(SILENT_BEATS)] == [False] * (SILENT_BEATS - 1) + [True]
    store.set("beat/1", "left")
    assert not ours.beat()


def test_a_rank_ends_with_its_agent(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    class Lost(torch.distributed.HashStore):
        def set(self, *asked: object) -> None:
            raise RuntimeError("Connection reset by peer")

    codes: list[int] = []
    monkeypatch.setattr(heartbeat, "BEAT", 0.001)
    monkeypatch.setattr(heartbeat.os, "_exit", codes.append)
    Heartbeat(Lost(), 0, 2).run(Event())
    assert codes == [1] and "torchrun has ended" in capfd.readouterr().err


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "rhyme.txt"
    path.write_text("".join(f"{n} green bottles hanging on the wall\n" for n in range(200)), encoding="utf-8")
    return path


def test_ranks_that_restart_agree_on_a_prefix_that_ended_ranks_did_not_use() -> None:
    store = HashStore()
    store.set("asks/1", "word of an ended rank")
    used: set[str] = set()
    for _ in range(3):
        with ThreadPoolExecutor(3) as threads:
            prefixes = set(threads.map(lambda rank: agree_on_prefix(store, rank, 3), range(3)))
        assert len(prefixes) == 1 and not prefixes & used
        used |= prefixes


def test_a_job_that_restarts_goes_on_with_its_run_and_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path)
    run.write_json("job.json", {"id": "a job", "step": 5})
    assert not goes_on(run) and not has_extended(run)
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another job")
    assert not goes_on(run)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a job")
    assert goes_on(run) and not has_extended(run)
    state = {"step": 7, "total_steps": 9}
    run.save_checkpoint(7, {}, {}, state)
    assert has_extended(run)
    run.save_checkpoint(9, {}, {}, {**state, "step": 9})
    assert not has_extended(run)  # the budget is spent: this is another request
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert has_extended(run)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PENWRIGHT_CACHE": str(tmp_path / "cache")}


def start(environment: dict[str, str], *options: object) -> Process:
    return subprocess.Popen([*PENWRIGHT, *map(str, options)], env=environment, stderr=subprocess.PIPE, text=True)


def wait_for_evaluation(run: Path, n: int) -> None:
    """Wait until the run has been evaluated n times."""
    until = monotonic() + 120
    while monotonic() < until and (not run.exists() or len(Run(run).records("metrics.jsonl")) < n):
        sleep(0.05)


def children_of(process: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()]


@linux
def test_ctrl_c_saves_and_another_number_of_processes_resumes(
    text: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    often = ["--set", "training.evaluate_every=20"]
    process = start(environment, text, "--run", run, "--steps", 100_000, *OPTIONS, *often, "--processes", 2)
    wait_for_evaluation(run, 1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130, said
    assert said.count("everything is saved") == 1 and "parallelism: ddp" in said and "Traceback" not in said
    last = Run.open(run).last_step()
    assert 20 <= last < 100_000
    resumed = start(environment, "--resume", run, "--steps", 3)
    said = resumed.communicate(timeout=120)[1]
    assert resumed.returncode == 0 and "trained with 2 processes; with 1" in said
    assert Run.open(run).last_step() == last + 3


@linux
def test_sharded_training_saves_and_resumes_by_command(text: Path, environment: dict[str, str], tmp_path: Path) -> None:
    run, sharded = tmp_path / "run", ["--set", "training.parallelism=fsdp", "--processes", 2]
    for start_or_resume in ([text, "--run", run, *OPTIONS, *sharded], ["--resume", run, "--processes", 2]):
        said = start(environment, *start_or_resume, "--steps", 3).communicate(timeout=120)[1]
        assert "parallelism: fsdp" in said and "Traceback" not in said
        newest, warnings = Run.open(run).newest()
        assert not warnings and (newest.folder / "training-00001-of-00002.safetensors").exists()
    assert newest.step == 6 and not list((run / "checkpoints").glob("*.tmp-*"))


@linux
def test_a_killed_rank_restarts_all_and_at_last_ends_all(
    text: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    options = ["--steps", 100_000, *OPTIONS, "--set", "training.evaluate_every=20", "--max-restarts", 1]
    process = start(environment, text, "--run", run, *options, "--processes", 2)
    for which in (0, 1):
        wait_for_evaluation(run, 1)
        (run / "metrics.jsonl").rename(tmp_path / f"before {which}")
        ranks = children_of(process.pid)
        os.kill(ranks[which], signal.SIGKILL)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert said.count("resuming from step") == 1, said
    assert "rank 1 of 2" in said and "ended by SIGKILL" in said and f"--resume {run} --processes 2" in said
    assert "Traceback" not in said and not any(Path(f"/proc/{rank}").exists() for rank in ranks)


@pytest.fixture
def start_nodes(text: Path, environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., list[Process]]]:
    """A function that starts two torchrun agents, as on two machines, each of which has its own cache."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    torchrun = ["torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    torchrun += ["--rdzv-endpoint", endpoint, "--rdzv-id", "job"]
    started = []

    def start_both(folders: Sequence[str], steps: int, *more: object, restarts: int = 0) -> list[Process]:
        train = ["-m", "--", "penwright", "train", "rhyme.txt", "--run", "run", "--steps", steps, *OPTIONS, *more]
        for node, name in enumerate(folders):
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            (folder / "rhyme.txt").write_bytes(text.read_bytes())
            own = {**environment, "PENWRIGHT_CACHE": str(tmp_path / f"cache {node}"), "OMP_NUM_THREADS": "1"}
            words = [sys.executable, "-m", *torchrun, "--max-restarts", restarts, *train]
            started.append(
                subprocess.Popen(list(map(str, words)), env=own, cwd=folder, stderr=subprocess.PIPE, text=True)
            )
        return started

    yield start_both
    for process in started:
        process.kill()
        process.wait()


@linux
def test_two_nodes_train_one_run(start_nodes: Callable[..., list[Process]], tmp_path: Path) -> None:
    nodes = start_nodes(["node 0", "node 1"], 6)
    said = [process.communicate(timeout=150)[1] for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], said
    assert "".join(said).count("Done.") == 1
    runs = [path for path in tmp_path.glob("node */run") if Run(path).checkpoints()]
    assert len(runs) == 1, "rank 0 writes"
    assert Run.open(runs[0]).newest()[0].state()["processes"] == 2


@linux
def test_two_nodes_restart_together_though_only_one_counts_it(
    start_nodes: Callable[..., list[Process]], tmp_path: Path
) -> None:
    nodes = start_nodes(["shared", "shared"], 400, "--set", "training.evaluate_every=40", restarts=2)
    run = tmp_path / "shared" / "run"
    wait_for_evaluation(run, 1)
    os.kill(children_of(nodes[1].pid)[0], signal.SIGKILL)
    said = [process.communicate(timeout=150)[1] for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], said
    assert "".join(said).count("resuming from step") == 1
    assert Run.open(run).last_step() == 400
