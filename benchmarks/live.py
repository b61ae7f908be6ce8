"""How much a server that follows a run slows down its training while nobody asks it anything.

Each round trains twice with the same settings, alone and with `penwright studio` open on the folder. The order is
random. The figures are the number of target tokens per second, evaluations included, after the first second, and the
processor time of the server per second of training, which other programs do not change (on Linux).

Run: python -m benchmarks.live TEXT [SECONDS [ROUNDS]]
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.report import Result, write_result
from penwright.run.folder import Run

NAME = "live"
PORT = 8931
PENWRIGHT = [sys.executable, "-m", "penwright"]


def main(text: str, seconds: float = 80, rounds: int = 3) -> None:
    """Train in pairs."""
    alone, followed, steps, busy = [], [], [], []
    for _ in range(rounds):
        with TemporaryDirectory() as folder:
            home = Path(folder)
            for is_followed in random.sample((False, True), 2):
                run = home / "runs" / ("followed" if is_followed else "alone")
                with _server(home) if is_followed else nullcontext() as server:
                    begin, used = monotonic(), _processor_seconds(server)
                    speed = _trained(text, run, seconds / 2)
                    if is_followed:
                        busy.append((_processor_seconds(server) - used) / (monotonic() - begin))
                (followed if is_followed else alone).append(speed)
            steps.append(float(len(Run(home / "runs" / "followed").records("metrics.jsonl"))))
    ratios = [one / other for one, other in zip(followed, alone, strict=True)]
    figures = {"alone": alone, "followed": followed, "followed / alone": ratios, "checkpoints": steps}
    figures["server's processor seconds per second"] = busy
    write_result(NAME, f"python -m benchmarks.{NAME} {text} {seconds:g} {rounds}", [Result("target tokens/s", figures)])


@contextmanager
def _server(home: Path) -> Iterator[int]:
    """Open the studio, which follows the runs of its folder. Yield its process id once it answers."""
    command = [*PENWRIGHT, "studio", str(home), "--port", str(PORT), "--no-open", "--set", "min_free_bytes=1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not _answers() and server.poll() is None:
            sleep(0.1)
        yield server.pid
    finally:
        server.terminate()
        server.wait()


def _answers() -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5):
            return True
    except (URLError, OSError):
        return False


def _processor_seconds(process: int | None) -> float:
    """Return the processor time that a process has used. Without a process, return 0."""
    if process is None:
        return 0.0
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _trained(text: str, run: Path, seconds: float) -> float:
    options = ["--run", str(run), "--minutes", f"{seconds / 60:.3f}", "--size", "nano"]
    subprocess.run([*PENWRIGHT, "train", text, *options], check=True, capture_output=True)
    steps = [each for each in Run(run).records("steps.jsonl") if each["seconds"] > 1]
    return (steps[-1]["targets"] - steps[0]["targets"]) / (steps[-1]["seconds"] - steps[0]["seconds"])


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:3]), *map(int, sys.argv[3:]))
