"""Training speed of a translator in target tokens per second: JoeyNMT and Penwright, same sizes and batch.

Run: python -m benchmarks.mt_speed MULTI30K_FOLDER PYTHON_WITH_JOEYNMT [ROUNDS]
"""

import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.ours import pace_in_new_process
from benchmarks.parallel_texts import parts_of
from benchmarks.report import Result, write_result
from benchmarks.translation_peers import JoeyNMT
from penwright.config import Table

STEPS, BATCH, VOCABULARY = 60, 4096, 8000
OURS: dict[str, Table] = {
    "penwright, float32, not compiled": {"precision": "float32", "compile": "off"},
    "penwright, automatic settings for ten minutes": {"compile": "on"},
}


def main(data: Path, python: Path, rounds: int = 3) -> None:
    """Run each in turn. The speed is the median over the steps after the first few."""
    found: dict[str, list[float]] = {}

    def note(name: str, pace: float) -> None:
        found.setdefault(name, []).append(pace)
        print(f"{name}: {pace:,.0f} target tokens/s", flush=True)

    with TemporaryDirectory() as folder:
        parts = parts_of(data, Path(folder) / "plain", ("en", "de"))
        for number in range(rounds):
            peer = JoeyNMT(python, Path(folder) / f"peer-{number}", ("en", "de"), parts)
            peer.prepare(VOCABULARY)
            done = peer.train(updates=STEPS, batch_size=BATCH)
            note("JoeyNMT", median(rate for _, rate in done.found(peer.TOKENS_A_SECOND)))
            for name, training in OURS.items():
                note(name, pace_in_new_process(_ours(parts["train"], training, number)))
    results = [Result(name, {"target tokens/s": paces}) for name, paces in found.items()]
    shape = f"d 128, 4 + 4 layers, 4 heads, d_ff 256, vocabulary {VOCABULARY}, {BATCH} tokens per batch"
    write_result("mt_speed", f"python -m benchmarks.mt_speed multi30k PYTHON {rounds}", results, shape)


def _ours(pair: tuple[Path, Path], training: Table, seed: int) -> Table:
    return {
        "task": "translate",
        "seed": seed,
        "data": {"train": [str(path) for path in pair]},
        "tokenizer": {"type": "bpe", "vocab_size": VOCABULARY},
        "model": {"d_model": 128, "n_layers": 4, "n_heads": 4, "d_ff": 256, "dropout": 0.3, "qk_norm": True},
        "training": {"steps": STEPS, "batch_tokens": BATCH, "label_smoothing": 0.1, **training},
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
