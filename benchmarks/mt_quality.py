"""BLEU of a test set after some minutes of training: JoeyNMT, eole, Marian and Penwright, from raw text, beam size 5.

The peers have d 128, 4 + 4 layers, a vocabulary of 8,000, small batches and a short warm-up. They are stopped when the
time is up. Penwright chooses its own settings. At most 200 lines of the dev part and 1,000 lines of the test part are
used. JoeyNMT is scored at its best evaluation on the dev part, eole and Marian at their last checkpoints.

Run: python -m benchmarks.mt_quality FOLDER TRAIN,DEV,TEST SOURCE-TARGET MINUTES NAME=PYTHON[,NAME=PYTHON] [ROUNDS]

FOLDER has TRAIN.SOURCE, TRAIN.TARGET (or .gz) and so on. The environment of PYTHON has the peer NAME installed.
For Marian, PYTHON is its program: `build/marian` of a checkout, or `bin/pymarian` of an environment.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import ours
from benchmarks.parallel_texts import parts_of
from benchmarks.report import Result, write_result
from benchmarks.translation_peers import PEERS

NAME = "mt_quality"
VOCABULARY = 8000


def main(data: Path, names: str, direction: str, minutes: float, pythons: str, rounds: int = 1) -> None:
    """Run the peers and ours in turn, for about the same seconds, preparation included."""
    source, _, target = direction.partition("-")
    environments = dict(each.split("=", 1) for each in pythons.split(","))
    found: dict[str, list[tuple[float, float]]] = {}

    def note(name: str, seconds: float, bleu: float) -> None:
        found.setdefault(name, []).append((seconds, bleu))
        print(f"{name}: {seconds:.0f} s, BLEU {bleu:.2f}", flush=True)

    with TemporaryDirectory() as folder:
        parts = parts_of(data, Path(folder) / "plain", (source, target), tuple(names.split(",")))
        for number in range(1, rounds + 1):
            for name, python in environments.items():
                peer = PEERS[name](Path(python), Path(folder) / f"{name}-{number}", (source, target), parts)
                prepared = peer.prepare(VOCABULARY).seconds
                note(name, prepared + peer.train_for(60 * minutes - prepared, number).seconds, peer.bleu())
            run = Path(folder) / f"ours-{number}"
            dev = [argument for file in parts["dev"] for argument in ("--validation", file)]
            options = [*parts["train"], *dev, "--seed", number, "--minutes"]
            prepared = ours.preparation([*options, minutes]).seconds
            done = ours.train(run, [*options, minutes - prepared / 60])
            note("penwright", done.seconds, ours.evaluate(run, *parts["test"])["BLEU"])
    results = [
        Result(name, {"seconds": [s for s, _ in rows], "BLEU": [b for _, b in rows]}) for name, rows in found.items()
    ]
    peers = ",".join(f"{name}=PYTHON" for name in environments)
    command = f"python -m benchmarks.{NAME} {data.name} {names} {direction} {minutes:g} {peers} {rounds}"
    write_result(f"{NAME}-{data.name}-{direction}", command, results, (__doc__ or "").split("\n\n")[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5], *map(int, sys.argv[6:]))
