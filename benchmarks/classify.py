"""Accuracy on SST-2 from scratch: Penwright and a BERT trained by transformers' Trainer, in whole processes.

Both have the same layers and width, choose their checkpoint on the development set, and use the test set once.

Run: python -m benchmarks.classify SST2_FOLDER [ROUNDS]
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import ours
from benchmarks.peers import run
from benchmarks.report import Result, write_result

NAME = "classify"
PEER = {"d_model": 128, "n_layers": 2, "n_heads": 4, "vocab_size": 16000, "epochs": 3, "learning_rate": 1e-3}


def main(data: Path, rounds: int = 3) -> None:
    """Train the peer for three epochs, then our recipe, our automatic choice, and two models distilled into one."""
    files = [data / name for name in ("train.phrases.tsv", "dev.tsv", "test.tsv")]
    found: dict[str, list[tuple[float, float, float]]] = {}

    def note(name: str, seconds: float, dev: float, test: float) -> None:
        found.setdefault(name, []).append((seconds, dev, test))
        print(f"{name}: {seconds:.0f} s, dev {dev:.1f}, test {test:.1f}", flush=True)

    columns = ["--set", "data.label=1", "--set", "data.text=[2]"]
    choices = {
        "penwright, recipes/sst2.toml": ["--recipe", "recipes/sst2.toml"],
        "penwright, 2 minutes, automatic settings": ["--minutes", "2", *columns],
        "penwright, two models distilled into one": ["--ensemble", "2", "--minutes", "4.7", *columns],
    }
    for number in range(rounds):
        done = run([sys.executable, "-m", "benchmarks.hf_trainer", "classify", *files, json.dumps(PEER)])
        scores = json.loads(done.lines[-1][1])
        note("transformers' Trainer", done.seconds, 100 * scores["dev"], 100 * scores["test"])
        for name, options in choices.items():
            with TemporaryDirectory() as folder:
                where = Path(folder) / "run"
                trained = ours.train(where, [files[0], "--validation", files[1], *options, "--seed", number + 1])
                dev, test = (ours.evaluate(where, *paths)["accuracy"] for paths in ([], [files[2]]))
                note(name, trained.seconds, dev, test)
    measured = ("seconds, whole process", "dev %", "test %")
    results = [
        Result(name, {column: [row[place] for row in rows] for place, column in enumerate(measured)})
        for name, rows in found.items()
    ]
    write_result(NAME, f"python -m benchmarks.{NAME} sst2 {rounds}", results, (__doc__ or "").split("\n\n")[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
