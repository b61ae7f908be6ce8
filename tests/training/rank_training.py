"""Trains the models of test_distributed.py on 1, 2 and 4 ranks. One process imports torch; the ranks are its forks."""

import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from socket import socket, socketpair
from typing import Any

import numpy as np
import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.nn
import torch.distributed.tensor  # imported here once: otherwise every rank would import these
from safetensors.torch import save_file
from torch.distributed import TCPStore

import penwright.cli.main as cli
from penwright.config import Recipe, Table, merge, validate
from penwright.data.batches import Markers, TextBatches
from penwright.data.bucketing import PairBatches
from penwright.data.store import Column
from penwright.model import make_model
from penwright.run.checkpoint_folder import CHECKPOINTS
from penwright.run.checkpoints import folder_name
from penwright.run.folder import Run
from penwright.training.auto.machine import Machine
from penwright.training.distributed.parallel import ShardedSaver
from penwright.training.distributed.ranks import ALONE, Ranks, join
from penwright.training.trainer import Trainer

STEPS, VOCABULARY = 20, 12
RHYME = "".join(f"{n} green bottles hanging on the wall\n" for n in range(200))
MARKERS = Markers(pad=9, start=10, end=11)
# Five windows of 8 tokens: 2 ranks have 3 and 2 rows, and 4 ranks have 2, 1, 1 and 1.
TABLE: Table = {
    "task": "generate",
    "data": {"train": ["nowhere"]},
    "model": {"d_model": 12, "n_layers": 2, "n_heads": 2, "context_length": 8, "dropout": 0.0},
    "optimizer": {"type": "muon", "learning_rate": 0.01, "adamw": {"learning_rate": 0.001}},
    "training": {"steps": STEPS, "batch_tokens": 40, "accumulate": 2, "ema_decay": 0.9},
}
SHORT: Table = {"steps": 8}
VARIANTS: dict[str, Table] = {
    "muon": {},
    "adamw": {"optimizer": {"type": "adamw", "learning_rate": 0.001}, "training": SHORT | {"ema_decay": 0.0}},
    "recomputed": {"training": SHORT | {"activation_checkpointing": True}},
    "few rows": {"training": SHORT | {"batch_tokens": 16, "accumulate": 1}},
    "translate": {"task": "translate", "training": SHORT | {"accumulate": 1}},
    "dropout": {"model": {"dropout": 0.1}, "training": SHORT},
    "short": {"training": SHORT},
    "bfloat16": {"training": SHORT | {"precision": "bfloat16"}},
}


def make_trainer(ranks: Ranks, changes: Table) -> Trainer:
    recipe = validate(Recipe, merge(TABLE, changes), "test")
    torch.manual_seed(recipe.seed)
    tokens = np.random.default_rng(1).integers(0, 8, 320).astype(np.uint16)
    text = Column(tokens, np.array([0, 160, 320]), n_bytes=320)
    batches: Any = TextBatches(text, 8, recipe.training.batch_tokens, MARKERS, recipe.seed)
    if recipe.task == "translate":
        pairs = Column(tokens, np.arange(0, 321, 5), n_bytes=320)
        batches = PairBatches(pairs, pairs, recipe.training.batch_tokens, MARKERS)
    precision = torch.bfloat16 if recipe.training.precision == "bfloat16" else torch.float32
    machine = Machine(torch.device("cpu"), precision, (), ranks)
    return Trainer(make_model(recipe.task, VOCABULARY, recipe.model, 2), batches, recipe, machine)


def take_steps(ranks: Ranks, changes: Table, out: Path) -> None:
    """Train all steps, and save the weights, losses and gradient norms."""
    trainer = make_trainer(ranks, changes)
    reports = list(trainer.steps())
    weights = trainer.weights()
    if ranks.is_main:
        losses = torch.tensor([[report.loss, report.grad_norm] for report in reports])
        save_file({**{name: tensor.contiguous() for name, tensor in weights.items()}, "losses": losses}, out)


def save_run(ranks: Ranks, changes: Table, out: Path) -> None:
    """Train half of the steps, and save a checkpoint in a run folder. With FSDP2, continue training meanwhile."""
    trainer, run = make_trainer(ranks, changes), Run(out)
    if trainer.is_sharded:
        trainer.saver = ShardedSaver(ranks, out / CHECKPOINTS, ".tmp-1")
    for report in trainer.steps():
        if report.step == SHORT["steps"] // 2:
            break
    (tensors, record), weights = trainer.save(), trainer.weights()
    if trainer.saver:
        complete = partial(run.checkpoints.complete, report.step)
        trainer.saver.start(folder_name(report.step), tensors, lambda *parts: complete(*parts, weights, record))
        assert len(list(trainer.steps())) == SHORT["steps"] // 2
        trainer.saver.wait()
        trainer.saver.close()
    elif ranks.is_main:
        run.checkpoints.save(report.step, weights, tensors, record)


def resume_run(run: Path) -> Callable[[Ranks, Table, Path], None]:
    """Return a function that trains the other half and saves the weights."""

    def resume(ranks: Ranks, changes: Table, out: Path) -> None:
        trainer = make_trainer(ranks, changes)
        trainer.load(Run(run).checkpoints.newest()[0] if ranks.is_main else None)
        trainer.synchronize()
        for _ in trainer.steps():
            pass
        weights = trainer.weights()
        if ranks.is_main:
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, out)

    return resume


def fork_store() -> tuple[str, socket]:
    """Serve a store in a fork of this process, as torchrun's agent does; return its port.

    The store ends when all processes with the returned socket have closed it.
    """
    ours, theirs = socketpair()
    if os.fork() == 0:
        ours.close()
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        theirs.sendall(str(store.port).encode())
        theirs.recv(1)
        os._exit(0)
    theirs.close()
    return ours.recv(8).decode(), ours


def fork(n: int, work: Callable[[], None], name: str) -> None:
    """Do the work in n forks of this process, which has not started any thread."""
    port, connection = fork_store()
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(n)}
    address["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    children = []
    for rank in range(n):
        if child := os.fork():
            children.append(child)
            continue
        code: Any = 1
        try:
            torch.set_num_threads(1)
            os.environ.update(address, RANK=str(rank), LOCAL_RANK=str(rank))
            work()
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    failed = [child for child in children if os.waitpid(child, 0)[1]]
    connection.close()
    if failed:
        raise SystemExit(f"{name}: {len(failed)} of {n} ranks failed")


def fork_ranks(n: int, work: Callable[[Ranks, Table, Path], None], changes: Table, out: Path) -> None:
    """Do the work in n ranks."""

    def join_and_work() -> None:
        ranks = join() if n > 1 else ALONE
        work(ranks, changes, out)
        if n > 1:
            torch.distributed.barrier()
            ranks.leave()

    fork(n, join_and_work, out.name)


def train_on_two_nodes(folder: Path, text: str, arguments: list[str]) -> None:
    """Train one run with the command, in two working directories, as on two machines that share no disk."""

    def train() -> None:
        node = folder / f"node {os.environ['RANK']}"
        node.mkdir()
        os.chdir(node)
        os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", PENWRIGHT_CACHE=str(node / "cache"))
        os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT), 2)
        Path("rhyme.txt").write_text(text, encoding="utf-8")
        sys.argv = ["penwright", "train", "rhyme.txt", "--run", "run", *arguments]
        try:
            cli.main()
        finally:
            join().leave()  # forks skip what is to be done at exit

    fork(2, train, "two nodes")


def main(folder: Path, arguments: list[str]) -> None:
    train_on_two_nodes(folder, RHYME, arguments)
    cases = "muon ddp 2, muon fsdp 2, muon fsdp 4, adamw fsdp 2, few rows ddp 4, few rows fsdp 4, "
    cases += "translate ddp 2, translate fsdp 2, recomputed fsdp 2, bfloat16 fsdp 2, dropout ddp 2"
    for name, changes in VARIANTS.items():
        fork_ranks(1, take_steps, changes, folder / f"{name} 1")
    for case in cases.split(", "):
        name, kind, n = case.rsplit(" ", 2)
        with_parallelism = merge(VARIANTS[name], {"training": {"parallelism": kind}})
        fork_ranks(int(n), take_steps, with_parallelism, folder / case)
    for name, kind, n, resumes in (
        ("short", "ddp", 2, [(4, "fsdp", "resumed 2 4")]),
        ("short", "fsdp", 4, [(1, "ddp", "resumed 4 1"), (2, "fsdp", "resumed 4 2")]),
        ("dropout", "ddp", 2, [(2, "ddp", "resumed dropout 2")]),
    ):
        run = folder / f"{name} run of {n}"
        fork_ranks(n, save_run, merge(VARIANTS[name], {"training": {"parallelism": kind}}), run)
        for n_resumed, resumed_kind, out in resumes:
            resumed_changes = merge(VARIANTS[name], {"training": {"parallelism": resumed_kind}})
            fork_ranks(n_resumed, resume_run(run), resumed_changes, folder / out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
