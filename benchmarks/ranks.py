"""Training in several processes: what happens when a rank is killed, and what DDP sends while it computes.

Run: python -m benchmarks.ranks kill TEXT [TIMES]
or: torchrun --standalone --nproc-per-node 2 -m benchmarks.ranks trace TEXT TRACE.json
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, sleep

from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from penwright.run.folder import Run
from penwright.training.observers import Observer
from penwright.training.trainer import StepReport, Trainer
from penwright.workflows import plan, train
from penwright.workflows.resume import follow

SMALL = {"model.size": "nano", "tokenizer.type": "characters", "training.compile": "off", "decoding.max_new_tokens": 8}
OPTIONS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
SETTLING, STEPS = 5, 3  # steps before the profiler starts, and steps that it records


def kill(text: Path, times: int) -> None:
    """Train with two processes, kill a random one after a random time, and check how all of them end."""
    seconds = []
    for turn in range(times):
        with TemporaryDirectory() as place:
            run = Path(place) / "run"
            command = [sys.executable, "-m", "penwright", "train", text, "--run", run, "--steps", "1000000", *OPTIONS]
            command += ["--set", "training.evaluate_every=5", "--processes", "2"]
            process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
            while not (run.exists() and Run(run).checkpoints.all()):
                sleep(0.1)
            sleep(random.uniform(0, 3))
            ranks = _children_of(process.pid)
            rank = random.randrange(len(ranks))
            os.kill(ranks[rank], signal.SIGKILL)
            begin = monotonic()
            said = process.communicate(timeout=120)[1].decode()
            seconds.append(monotonic() - begin)
            errors = [line for line in said.splitlines() if line.startswith("penwright:")]
            survivors = [each for each in ranks if Path(f"/proc/{each}").exists()]
            newest, warnings = Run(run).checkpoints.newest()
            print(
                f"{turn + 1}: rank {rank} killed; all ended after {seconds[-1]:.1f} s; {len(survivors)} left; "
                f"{len(errors)} line; step {newest.step} is intact; {len(warnings)} damaged; {errors}",
                flush=True,
            )
    print(f"median {median(seconds):.1f} s, most {max(seconds):.1f} s")


def _children_of(process: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()]


class _Profiler(Observer):
    def __init__(self) -> None:
        self.profile = profile(activities=[ProfilerActivity.CPU])

    def stepped(self, trainer: Trainer, report: StepReport) -> None:
        """Record STEPS steps."""
        if report.step == SETTLING:
            if isinstance(trainer.loss, DistributedDataParallel):
                facts = trainer.loss._get_ddp_logging_data()
                sizes = [int(size) for size in facts["rebuilt_bucket_sizes"].split(",")]
                n_bytes = sum(p.numel() * p.element_size() for p in trainer.model.parameters())
                print(f"buckets: {sizes} bytes, in total {sum(sizes):,}; the parameters have {n_bytes:,}")
            self.profile.start()
        elif report.step == SETTLING + STEPS:
            self.profile.stop()


def trace(text: Path, path: Path) -> None:
    """Record the trace of a few steps of rank 0, and print how much of the communication the backward pass covers."""
    table = {"task": "generate", "data": {"train": [str(text)]}, "tokenizer": {"type": "characters"}}
    steps = SETTLING + STEPS
    table["model"] = {"size": "small", "context_length": 128, "dropout": 0.0}
    table["training"] = {"steps": steps, "evaluate_every": steps, "compile": "off", "batch_tokens": 4096}
    profiler = _Profiler()
    with TemporaryDirectory() as folder:
        train.train(plan.prepare(table), Path(folder) / "run", [profiler])
    profiler.profile.export_chrome_trace(str(path))
    events = profiler.profile.events() or []
    sent = [each.time_range for each in events if "allreduce" in each.name.lower() or "all_reduce" in each.name.lower()]
    backward = [each.time_range for each in events if each.name.startswith("autograd::engine::evaluate_function")]
    total = sum(each.elapsed_us() for each in sent)
    first, last = min(each.start for each in backward), max(each.end for each in backward)
    inside = [each for each in sent if any(b.start <= each.start <= b.end for b in backward)]
    print(
        f"{len(sent)} all-reduce events of {total / 1e3:.1f} ms in all; {len(inside)} begin during an operator of the"
    )
    print(
        f"backward pass; backward passes from {first / 1e3:.1f} to {last / 1e3:.1f} ms; see {path} in ui.perfetto.dev"
    )


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        kill(Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 10)
    elif not follow():
        trace(Path(sys.argv[2]), Path(sys.argv[3]))
