"""Penwright as a benchmark: whole processes of its commands, or the speed of its training steps."""

import json
import sys
from collections.abc import Sequence
from math import log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.peers import Finished, run
from penwright.config import Table
from penwright.run.folder import Run
from penwright.training.observers import Observer
from penwright.training.trainer import StepReport, Trainer
from penwright.workflows import plan
from penwright.workflows import train as training
from penwright.workflows.resume import follow

SETTLING = 5  # warm-up steps that are not timed
PENWRIGHT = [sys.executable, "-m", "penwright"]


def train(folder: Path, options: Sequence[object], within: Path | None = None) -> Finished:
    """Run `penwright train` in its own process, in the folder `within`."""
    return run([*PENWRIGHT, "train", "--run", folder, *options], within)


def preparation(options: Sequence[object]) -> Finished:
    """Run `penwright train --dry-run` in its own process: read the data and plan."""
    return run([*PENWRIGHT, "train", *options, "--dry-run"])


def losses(folder: Path) -> list[tuple[float, float]]:
    """Return the seconds of training and the nats per byte (for ASCII: per character) at every evaluation."""
    records = Run.open(folder).records("metrics.jsonl")
    return [(float(record["seconds"]), log(2) * float(record["bits per byte"])) for record in records]


def evaluate(folder: Path, *files: object, within: Path | None = None) -> dict[str, float]:
    """Return the scores that `penwright evaluate` prints in the folder `within`."""
    finished = run([*PENWRIGHT, "evaluate", folder, *files, "--json"], within)
    written = [line for _, line in finished.lines]
    begin = next(number for number, line in enumerate(written) if line.startswith("["))
    return {score["name"]: float(score["value"]) for score in json.loads("\n".join(written[begin:]))}


class _Stopwatch(Observer):
    def __init__(self) -> None:
        self.ends: list[float] = []
        self.targets: list[int] = []

    def stepped(self, trainer: Trainer, report: StepReport) -> None:
        self.ends.append(perf_counter())
        self.targets.append(report.n_targets)


def pace(settings: Table) -> float:
    """Return the median number of targets per second after warm-up; the settings give the number of steps."""
    watch = _Stopwatch()
    with TemporaryDirectory() as folder:
        training.train(plan.prepare(settings), Path(folder) / "run", [watch])
    times = [after - before for before, after in zip(watch.ends[SETTLING - 1 :], watch.ends[SETTLING:], strict=False)]
    rates = [targets / time for targets, time in zip(watch.targets[SETTLING:], times, strict=False)]
    return median(rates)


def pace_in_new_process(settings: Table, n_processes: int = 1) -> float:
    """Return pace() of these settings from empty caches, in one process or in `n_processes` that train together."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", n_processes, "-m", "--"]
    command = [sys.executable, "-m", *(torchrun if n_processes > 1 else []), "benchmarks.ours", json.dumps(settings)]
    finished = run(command, Path(__file__).parent.parent)
    return float(next(line for _, line in finished.lines[::-1] if line[:1].isdigit()))


if __name__ == "__main__":
    if not follow():
        print(pace(json.loads(sys.argv[1])))
