"""How much a server that follows a run slows down its training while nobody asks it anything.

Each round trains twice with the same settings, alone and with `penwright studio` open on the folder. The order is
random. The figure is the number of target tokens per second, evaluations included, after the first second.

Run: python -m benchmarks.live TEXT [SECONDS [ROUNDS]]
"""

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report import Result, write_result
from penwright.run.folder import Run

NAME = "live"
PENWRIGHT = [sys.executable, "-m", "penwright"]


def main(text: str, seconds: float = 80, rounds: int = 3) -> None:
    """Train in pairs."""
    alone, followed, steps = [], [], []
    for _ in range(rounds):
        with TemporaryDirectory() as folder:
            home = Path(folder)
            for is_followed in random.sample((False, True), 2):
                run = home / "runs" / ("followed" if is_followed else "alone")
                with _server(home) if is_followed else nullcontext():
                    speed = _trained(text, run, seconds / 2)
                (followed if is_followed else alone).append(speed)
            steps.append(float(len(Run(home / "runs" / "followed").records("metrics.jsonl"))))
    ratios = [one / other for one, other in zip(followed, alone, strict=True)]
    figures = {"alone": alone, "followed": followed, "followed / alone": ratios, "checkpoints": steps}
    write_result(NAME, f"python -m benchmarks.{NAME} {text} {seconds:g} {rounds}", [Result("target tokens/s", figures)])


@contextmanager
def _server(home: Path) -> Iterator[None]:
    """Open the studio, which follows the runs of its folder."""
    command = [*PENWRIGHT, "studio", str(home), "--port", "8931", "--no-open", "--set", "min_free_bytes=1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        server.terminate()
        server.wait()


def _trained(text: str, run: Path, seconds: float) -> float:
    options = ["--run", str(run), "--minutes", f"{seconds / 60:.3f}", "--size", "nano"]
    subprocess.run([*PENWRIGHT, "train", text, *options], check=True, capture_output=True)
    steps = [each for each in Run(run).records("steps.jsonl") if each["seconds"] > 1]
    return (steps[-1]["targets"] - steps[0]["targets"]) / (steps[-1]["seconds"] - steps[0]["seconds"])


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:3]), *map(int, sys.argv[3:]))
