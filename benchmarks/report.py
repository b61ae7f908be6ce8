"""Dated result files: the machine, versions, command, medians and ranges."""

import platform
import subprocess
from collections.abc import Sequence
from datetime import date
from itertools import chain, count
from pathlib import Path
from shutil import which
from statistics import median
from typing import NamedTuple

import torch

RESULTS = Path(__file__).parent / "results"


class Result(NamedTuple):
    """A row of a result: its name, and the figures of each round."""

    name: str
    figures: dict[str, list[float]]


def machine() -> str:
    """Describe the GPU, if there is one, the processor, its vector instructions, the threads and the versions."""
    gpu = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}; " if torch.cuda.is_available() else ""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").split("\n")
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    capability = torch.backends.cpu.get_cpu_capability()
    threads = torch.get_num_threads()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{gpu}{model}, {capability}, {threads} threads; {versions}"


def commit() -> str:
    """Return the commit of this repository, marked if files have changed."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    found = subprocess.run(git, capture_output=True, text=True, check=False) if which("git") else None
    return found.stdout.strip() or "unknown" if found else "unknown"


class Curve(NamedTuple):
    """A line to plot: its name and its points."""

    name: str
    points: Sequence[tuple[float, float]]


def draw(path: Path, curves: Sequence[Curve], x: str, y: str) -> None:
    """Plot all curves in one SVG file."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for curve in curves:
        axes.plot(*zip(*curve.points, strict=True), marker=".", label=curve.name)
    axes.set(xlabel=x, ylabel=y, xscale="log")
    axes.legend(frameon=False)
    figure.savefig(path)
    plt.close(figure)


def write_result(name: str, command: str, results: Sequence[Result], remark: str = "") -> Path:
    """Write and print a Markdown table, named after the benchmark and the date, with a number if the name is taken."""
    columns = list(results[0].figures)
    about = [f"Machine: {machine()}", f"Command: `{command}`", f"Commit: {commit()}"]
    lines = [f"# {name}, {date.today()}", "", *(line for each in about for line in (each, ""))]
    lines += [remark, ""] if remark else []
    lines += [f"| what | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for result in results:
        cells = [_spread(result.figures[column]) for column in columns]
        lines.append(f"| {result.name} | {' | '.join(cells)} |")
    RESULTS.mkdir(exist_ok=True)
    names = (f"{name}-{date.today()}{of_day}.md" for of_day in chain([""], map("-{}".format, count(2))))
    path = next(path for path in map(RESULTS.joinpath, names) if not path.exists())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return path


def _spread(values: Sequence[float]) -> str:
    """Return the median, with the range if there are several values, or a dash if there are none."""
    if not values:
        return "–"
    shown = f"{median(values):.4g}"
    return shown if len(values) == 1 else f"{shown} ({min(values):.4g} to {max(values):.4g})"
