"""A fixture that runs command lines, small corpora, and a tiny run of each task."""

import io
import signal
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from penwright.cli.main import main
from penwright.run.folder import Run
from penwright.training.distributed.launcher import STOP_SIGNALS

QUICK = [
    option
    for setting in (
        "model.d_model=16",
        "model.n_layers=1",
        "model.n_heads=2",
        "model.context_length=32",
        "training.batch_tokens=128",
        "training.threads=1",
        "training.device=cpu",  # results are bit-for-bit reproducible there
        "decoding.max_new_tokens=8",  # samples are written at each evaluation
    )
    for option in ("--set", setting)
]


class CommandResult(NamedTuple):
    """The exit code and the output of a command."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., CommandResult]


@pytest.fixture(scope="session")
def penwright() -> Command:
    """A function that runs a command line in this process, without loading torch again."""

    def run(*arguments: object, stdin: str = "", cwd: Path | None = None) -> CommandResult:
        out, err = io.StringIO(), io.StringIO()
        before = sys.argv, sys.stdin, torch.get_num_threads()
        handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        sys.argv = ["penwright", *map(str, arguments)]
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode("utf-8")))
        try:
            with redirect_stdout(out), redirect_stderr(err), chdir(cwd or Path.cwd()):
                main()
        except SystemExit as end:
            return CommandResult(int(end.code or 0), out.getvalue(), err.getvalue())
        finally:
            sys.argv, sys.stdin = before[:2]
            for number, handler in handlers.items():
                signal.signal(number, handler)
            torch.set_num_threads(before[2])

    return run


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with novel.txt, pairs.tsv and labels.csv."""
    folder = tmp_path_factory.mktemp("corpora")
    lines = [f"It was day {number}, and the rain fell on house {number * 7 % 31}.\n" for number in range(400)]
    (folder / "novel.txt").write_text("".join(lines), encoding="utf-8")
    words = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben"]
    english = ["one", "two", "three", "four", "five", "six", "seven"]
    pairs = [(a, b, c) for a in range(7) for b in range(7) for c in range(7)]
    german = [" ".join(words[n] for n in numbers) for numbers in pairs]
    target = [" ".join(english[n] for n in numbers) for numbers in pairs]
    table = "".join(f"{a}\t{b}\n" for a, b in zip(german, target, strict=True))
    (folder / "pairs.tsv").write_text(table, encoding="utf-8")
    reviews = [
        (f"a {word} film number {n}", label) for n in range(60) for word, label in (("fine", "good"), ("dull", "bad"))
    ]
    (folder / "labels.csv").write_text("text,label\n" + "".join(f"{a},{b}\n" for a, b in reviews), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def runs(penwright: Command, corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run of each task: writer, translator, classifier."""
    folder = tmp_path_factory.mktemp("runs")
    for name, data in (("writer", "novel.txt"), ("translator", "pairs.tsv"), ("classifier", "labels.csv")):
        options = ["--steps", 30, "--set", "training.evaluate_every=10", *QUICK]
        made = penwright("train", corpora / data, "--run", folder / name, *options)
        assert made.returncode == 0, made.stderr
    return folder


def forget_origin(folder: Path) -> None:
    """Remove from each checkpoint the record of its files, which older versions did not save."""
    run = Run(folder)
    for checkpoint in run.checkpoints.all():
        state = {key: value for key, value in checkpoint.state().items() if key != "made_with"}
        weights, training = (
            {name: tensor.clone() for name, tensor in tensors.items()}
            for tensors in (checkpoint.weights(), checkpoint.training())
        )
        run.checkpoints.save(checkpoint.step, weights, training, state)
