"""Training on several ranks, compared with one process: same weights after failures, restarts and resumes.

Most of the time goes into starting torch. Therefore `rank_training.py` starts it once and forks the ranks; few tests
start whole commands.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Timer
from time import monotonic, sleep

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import HashStore
from typer.testing import CliRunner

from penwright.cli.main import app
from penwright.config import Recipe, Table, validate
from penwright.data.batches import TextBatch
from penwright.errors import Interrupted, PenwrightError, UsageError
from penwright.run.checkpoints import DamagedCheckpoint, Record
from penwright.run.folder import Run
from penwright.tasks import TASKS, reading_of
from penwright.tokenizers.training import train_tokenizer
from penwright.training.distributed import launcher, ranks
from penwright.training.distributed.launcher import SILENT_BEATS, Heartbeat
from penwright.training.distributed.parallel import ShardedSaver, choose_parallelism
from penwright.training.distributed.ranks import ALONE, Ranks, agree_on_prefix
from penwright.workflows.make_trainer import has_extended, is_restarted, make_context
from penwright.workflows.plan import prepare

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
    """Return a folder with the weights of every variant and number of ranks."""
    folder = tmp_path_factory.mktemp("trained")
    script = Path(__file__).with_name("rank_training.py")
    command = [sys.executable, script, folder, "--steps", "6", *OPTIONS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def max_weight_difference(one: Path, other: Path) -> float:
    ours, theirs = load_file(one), load_file(other)
    names = (ours.keys() & theirs.keys()) - {"losses"}
    assert len(names) > 10
    return max(float((ours[name] - theirs[name]).abs().max()) for name in names)


@linux
@pytest.mark.parametrize("name", ["muon ddp 2", "muon fsdp 2", "muon fsdp 4"])
def test_ranks_reach_the_weights_of_one_process(trained: Path, name: str) -> None:
    assert max_weight_difference(trained / name, trained / f"{name.split(maxsplit=1)[0]} 1") < 1e-5


@linux
@pytest.mark.parametrize(
    "name", ["few rows ddp 4", "few rows fsdp 4", "adamw fsdp 2", "translate ddp 2", "translate fsdp 2"]
)
def test_ranks_match_one_process_for_few_rows_adamw_and_translation(trained: Path, name: str) -> None:
    assert max_weight_difference(trained / name, trained / f"{name[:-6].strip()} 1") < 1e-5


@linux
def test_activation_checkpointing_does_not_change_the_weights(trained: Path) -> None:
    assert max_weight_difference(trained / "recomputed 1", trained / "short 1") == 0
    assert max_weight_difference(trained / "recomputed fsdp 2", trained / "short 1") < 1e-5


@linux
def test_sharded_bfloat16_losses_are_close_to_one_process(trained: Path) -> None:
    losses: list[Tensor] = [load_file(trained / name)["losses"][:, 0] for name in ("bfloat16 fsdp 2", "bfloat16 1")]
    torch.testing.assert_close(*losses, rtol=0.02, atol=0)


@linux
@pytest.mark.parametrize("name", ["resumed 4 1", "resumed 4 2", "resumed 2 4"])
def test_run_resumes_with_another_number_of_ranks(trained: Path, name: str) -> None:
    assert max_weight_difference(trained / name, trained / "short 1") < 1e-5


@linux
def test_each_rank_saves_its_part_and_damaged_parts_are_detected(trained: Path) -> None:
    checkpoint = Run(trained / "short run of 4").checkpoints.newest()[0]
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


def test_checkpoint_appears_once_all_ranks_have_saved(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.checkpoints.save(1, {"w": torch.zeros(2)}, {"m": torch.zeros(2)}, {})
    first, second = savers(HashStore(), tmp_path / "checkpoints")
    tensors = {"m": torch.ones(2)}

    def complete(folder: Path, parts: Record) -> None:
        run.checkpoints.complete(2, folder, parts, {"w": torch.ones(2)}, {"step": 2})

    first.start("step-00000002", tensors, complete)
    tensors["m"].zero_()
    sleep(0.1)
    assert [each.step for each in run.checkpoints.all()] == [1]  # if killed here, the older checkpoint remains
    second.start("step-00000002", {}, complete)
    for saver in (first, second):
        saver.wait()
        saver.close()
    newest, warnings = run.checkpoints.newest()
    assert newest.step == 2 and not warnings and newest.training()["m"].tolist() == [1, 1]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_failed_save_of_a_rank_is_reported_by_rank_0(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    first, second = savers(HashStore(), tmp_path)
    second.folder = tmp_path / "file"
    for saver in (first, second):
        saver.start("step-00000002", {}, lambda folder, parts: None)
    with pytest.raises(PenwrightError, match=r"00001-of-00002.*could not be saved.*Earlier checkpoints are intact"):
        first.wait()
    second.wait()
    for saver in (first, second):
        saver.close()


@linux
def test_resume_with_dropout_is_bit_for_bit_on_two_ranks(trained: Path) -> None:
    assert max_weight_difference(trained / "resumed dropout 2", trained / "dropout ddp 2") == 0


def test_rows_are_distributed_over_ranks_without_loss() -> None:
    tokens = torch.arange(20).reshape(5, 4)
    batch = TextBatch(20, tokens, tokens + 1, None)
    shares = [Ranks(rank, 3).share(batch) for rank in range(3)]
    rows = torch.cat([share.tokens for share, _ in shares])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, tokens.tolist()))
    assert [(share.n_rows, weight) for share, weight in shares] == [(2, 1.0), (2, 1.0), (1, 1.0)]
    assert ALONE.share(batch) == (batch, 1.0)


def test_rank_without_rows_repeats_one_with_weight_zero() -> None:
    tokens = torch.arange(8).reshape(2, 4)
    share, weight = Ranks(2, 3).share(TextBatch(8, tokens, tokens, None))
    assert (share.n_rows, weight) == (1, 0.0)


@pytest.mark.parametrize(
    ("memory", "can_shard", "chosen"), [(100.0, True, "ddp"), (20.0, True, "fsdp"), (20.0, False, "ddp")]
)
def test_model_is_sharded_if_it_does_not_fit(memory: float, can_shard: bool, chosen: str) -> None:
    kind, reason = choose_parallelism(20e9, memory * 1e9, can_shard=can_shard)
    assert kind == chosen and "20 GB" in reason


def test_missing_heartbeat_is_detected_but_not_of_a_rank_that_left() -> None:
    store = torch.distributed.HashStore()
    ours, theirs = Heartbeat(store, 0, 2), Heartbeat(store, 1, 2)
    for _ in range(3 * SILENT_BEATS):
        theirs.beat()
        assert not ours.beat()
    assert [ours.beat() for _ in range(SILENT_BEATS)] == [False] * (SILENT_BEATS - 1) + [True]
    store.set("beat/1", "left")
    assert not ours.beat()


def test_rank_exits_when_its_torchrun_agent_is_lost(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class LostStore(torch.distributed.HashStore):
        def set(self, *asked: object) -> None:
            raise RuntimeError("Connection reset by peer")

    codes: list[int] = []
    monkeypatch.setattr(launcher, "BEAT", 0.001)
    monkeypatch.setattr(launcher.os, "_exit", codes.append)
    Heartbeat(LostStore(), 0, 2).run(Event())
    assert codes == [1] and "torchrun has ended" in capfd.readouterr().err


def test_failure_of_another_rank_ends_the_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    store, ended = HashStore(), Event()
    monkeypatch.setattr(launcher, "BEAT", 0.001)
    monkeypatch.setattr(ranks, "GRACE", 0.0)
    monkeypatch.setattr(launcher.os, "_exit", lambda code: (codes.append(code), ended.set()))
    monkeypatch.setattr(ranks.dist, "destroy_process_group", lambda: None)
    Ranks(1, 3, store).leave()
    with pytest.raises(PenwrightError, match="rank 1 has failed"):
        Ranks(0, 3, store).gather_at_start({})
    Heartbeat(store, 2, 3).run(ended)
    assert codes == [1]


def test_rank_that_leaves_when_all_is_over_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    monkeypatch.setattr(ranks.dist, "destroy_process_group", lambda: None)
    for rank in range(2):
        Ranks(rank, 2, store).leave()
    assert store.check(["over"]) and not store.check(["lost"])


def test_other_ranks_end_soon_after_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exited(Exception):
        pass

    def leave(code: int) -> None:
        raise Exited(code)

    store, ended = torch.distributed.HashStore(), Event()
    ranks, heartbeat = Ranks(0, 3, store), Heartbeat(store, 1, 3)
    monkeypatch.setattr(launcher, "BEAT", 0.001)
    monkeypatch.setattr(launcher.os, "_exit", leave)
    Timer(0.05, ended.set).start()
    heartbeat.run(ended)  # goes on while rank 0 works
    ranks.publish(None)
    with pytest.raises(Exited, match="0"):
        heartbeat.run(Event())


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "rhyme.txt"
    path.write_text("".join(f"{n} green bottles hanging on the wall\n" for n in range(200)), encoding="utf-8")
    return path


def test_end_of_rank_0_interrupts_the_wait_for_its_weights() -> None:
    store = HashStore()
    Ranks(0, 2, store).publish(None)
    with pytest.raises(Interrupted, match="rank 0 has ended"):
        Ranks(1, 2, store).broadcast(None)


@pytest.mark.parametrize("data", [{"train": ["-"]}, {"train": ["text.txt"], "validation": "/dev/fd/63"}])
def test_several_processes_refuse_to_share_a_pipe(data: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penwright.workflows.make_trainer.joined", lambda: Ranks(0, 2))
    with pytest.raises(UsageError, match=r"pipe.*file"):
        prepare({"data": data})


@pytest.mark.parametrize(("size", "is_moved"), [(1, True), (2, False)], ids=str)
def test_model_that_may_be_sharded_stays_on_the_cpu(
    size: int, is_moved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a few words to learn from, again and again\n" * 40, encoding="utf-8")
    model = {"d_model": 8, "n_heads": 1, "n_layers": 1}
    table: Table = {"task": "generate", "data": {"train": [str(text)]}, "model": model, "training": {"steps": 1}}
    recipe = validate(Recipe, table, "test")
    corpus = TASKS["generate"].open_corpus(recipe.data.train, reading_of(recipe))
    monkeypatch.setattr("penwright.workflows.make_trainer.joined", lambda: Ranks(0, size))
    tokenizer = train_tokenizer("characters", [text.read_text(encoding="utf-8")])
    context = make_context(recipe, corpus, tokenizer, torch.device("meta"), is_new=True)
    assert {parameter.is_meta for parameter in context.model.parameters()} == {is_moved}


def test_restarted_ranks_agree_on_a_new_store_prefix() -> None:
    store = HashStore()
    store.set("asks/1", "word of an ended rank")
    used: set[str] = set()
    for _ in range(3):
        with ThreadPoolExecutor(3) as threads:
            prefixes = set(threads.map(lambda rank: agree_on_prefix(store, rank, 3), range(3)))
        assert len(prefixes) == 1 and not prefixes & used
        used |= prefixes


def test_restarted_job_resumes_its_run_and_keeps_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(tmp_path)
    run.write_json("job.json", {"id": "a job", "step": 5})
    assert not is_restarted(run) and not has_extended(run)
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another job")
    assert not is_restarted(run)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a job")
    assert is_restarted(run) and not has_extended(run)
    state = {"step": 7, "total_steps": 9}
    run.checkpoints.save(7, {}, {}, state)
    assert has_extended(run)
    run.checkpoints.save(9, {}, {}, {**state, "step": 9})
    assert not has_extended(run)  # the budget is used up: this is a new request
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert has_extended(run)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PENWRIGHT_CACHE": str(tmp_path / "cache")}


def start(environment: dict[str, str], *options: object) -> Process:
    return subprocess.Popen([*PENWRIGHT, *map(str, options)], env=environment, stderr=subprocess.PIPE, text=True)


def wait_until(is_true: Callable[[], object]) -> None:
    """Wait until the condition is true, for two minutes at most."""
    until = monotonic() + 120
    while monotonic() < until and not is_true():
        sleep(0.05)


def wait_for_evaluation(run: Path) -> None:
    """Wait until the run has been evaluated and saved."""
    opened = Run(run)
    wait_until(lambda: run.exists() and opened.records("metrics.jsonl") and opened.checkpoints.all())


def children_of(process: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()]


@linux
def test_sharded_run_restarts_after_a_killed_rank_and_resumes_with_one_process_after_ctrl_c(
    text: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    sharded = ["--set", "training.parallelism=fsdp", "--set", "training.evaluate_every=10", "--processes", 2]
    process = start(environment, text, "--run", run, "--steps", 100_000, *OPTIONS, *sharded, "--max-restarts", 1)
    wait_for_evaluation(run)
    ranks = children_of(process.pid)
    os.kill(ranks[1], signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks))
    before = Run(run).checkpoints.last_step()
    wait_until(lambda: Run(run).checkpoints.last_step() > before)
    process.send_signal(signal.SIGINT)
    stderr = process.communicate(timeout=120)[1]
    assert process.returncode == 130, stderr
    assert stderr.count("resuming from step") == stderr.count("everything is saved") == 1
    assert "parallelism: fsdp" in stderr and "Traceback" not in stderr
    newest, warnings = Run.open(run).checkpoints.newest()
    assert before < newest.step < 100_000 and not warnings
    assert (newest.folder / "training-00001-of-00002.safetensors").exists()
    assert not list((run / "checkpoints").glob("*.tmp-*"))
    monkeypatch.setenv("PENWRIGHT_CACHE", environment["PENWRIGHT_CACHE"])
    resumed = CliRunner().invoke(app, ["train", "--resume", str(run), "--steps", "3"])
    assert resumed.exit_code == 0 and "trained with 2 processes; with 1" in resumed.stderr
    assert Run.open(run).checkpoints.last_step() == newest.step + 3


@linux
def test_both_nodes_restart_though_only_one_counts_it(text: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """Start two agents of torchrun, as on two machines that share a disk, but not the cache."""
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file"]  # a port would have to be chosen first
    rendezvous += ["--rdzv-endpoint", str(tmp_path / "rendezvous"), "--rdzv-id", "job"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += [*rendezvous, "--max-restarts", "2", "-m", "--", "penwright", "train"]
    command += [str(text), "--run", "run", "--steps", "240", *map(str, OPTIONS)]
    run, nodes = tmp_path / "run", []
    try:
        for node in range(2):
            env = {**environment, "PENWRIGHT_CACHE": str(tmp_path / f"cache {node}"), "OMP_NUM_THREADS": "1"}
            evaluated = [*command, "--set", "training.evaluate_every=40"]
            nodes.append(subprocess.Popen(evaluated, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True))
        wait_for_evaluation(run)
        os.kill(children_of(nodes[1].pid)[0], signal.SIGKILL)
        stderr = [process.communicate(timeout=150)[1] for process in nodes]
    finally:
        for process in nodes:
            process.kill()
            process.wait()
    assert [process.returncode for process in nodes] == [0, 0], stderr
    assert "".join(stderr).count("resuming from step") == 1 and "parallelism: ddp" in "".join(stderr)
    assert Run.open(run).checkpoints.last_step() == 240
