"""Peers that run as processes, with their own commands; here nanoGPT, from a checkout."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

Line = tuple[float, str]  # seconds since the start of the command, and a line of output


class Finished(NamedTuple):
    """The seconds of a successful process, its output with times, and its peak memory."""

    seconds: float
    lines: list[Line]
    peak: int  # maximum resident memory in bytes

    def found(self, pattern: str) -> list[tuple[float, float]]:
        """Return the time and the number of each line that matches the pattern, whose only group is the number."""
        matches = ((second, re.search(pattern, line)) for second, line in self.lines)
        return [(second, float(match[1].replace(",", ""))) for second, match in matches if match]


def run(
    command: Sequence[object], folder: Path | None = None, limit: float = float("inf"), shared: Path | None = None
) -> Finished:
    """Run a command to its end, or up to a limit in seconds, and note the time of each line.

    Caches are empty at the start, so that one run does not help the next, unless a `shared` folder of caches is given.
    """
    begin, lines = perf_counter(), list[Line]()
    # a compilation that goes on in the background may still write into the folder while it is deleted
    with TemporaryDirectory(ignore_cleanup_errors=True) if shared is None else nullcontext(str(shared)) as caches:
        kept = {"PENWRIGHT_CACHE": caches, "TORCHINDUCTOR_CACHE_DIR": f"{caches}/compiled"}
        with subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env={**os.environ, **kept, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append((perf_counter() - begin, line.rstrip("\n")))
                if perf_counter() - begin > limit:
                    process.kill()
                    break
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode, seconds = os.waitstatus_to_exitcode(status), perf_counter() - begin
    if process.returncode and seconds <= limit:
        raise SystemExit("\n".join([f"{command} failed:", *(line for _, line in lines[-30:])]))
    return Finished(seconds, lines, 1024 * usage.ru_maxrss)


class NanoGPT:
    """karpathy/nanoGPT by characters, prepared and trained by its own scripts in a copy of the checkout."""

    NAME = "nanoGPT"
    VALIDATION = r"val loss ([\d.]+)"
    MILLISECONDS = r"time ([\d.]+)ms"
    PREPARE = (  # requests is replaced: it is imported for a download that is not needed
        "import runpy, sys, types; sys.modules['requests'] = types.ModuleType('requests'); "
        "runpy.run_path('data/shakespeare_char/prepare.py', run_name='__main__')"
    )

    def __init__(self, checkout: Path, text: Path, folder: Path):
        self.folder = folder
        shutil.copytree(checkout, folder, ignore=shutil.ignore_patterns(".git", "assets"))
        shutil.copy(text, folder / "data" / "shakespeare_char" / "input.txt")

    def prepare(self) -> Finished:
        return run([sys.executable, "-c", self.PREPARE], self.folder)

    def train(self, **options: object) -> Finished:
        """Run its train.py with these options."""
        flags = [f"--{name}={value}" for name, value in {"device": "cpu", **options}.items()]
        return run([sys.executable, "train.py", "config/train_shakespeare_char.py", *flags], self.folder)
