"""BLEU of Multi30k's test2016 after so many minutes, JoeyNMT beside ours: whole processes from raw text, beam 5.

JoeyNMT trains with the settings published for this corpus at this size, and is stopped when the time is up.

Run: python -m benchmarks.mt_quality MULTI30K_FOLDER PYTHON_WITH_JOEYNMT MINUTES[,MINUTES...] [SOURCE-TARGET] [ROUNDS]
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import ours
from benchmarks.multi30k import files_of
from benchmarks.peers import JoeyNMT
from benchmarks.report import Result, write_result

NAME = "mt_quality"


def main(data: Path, python: Path, minutes: tuple[float, ...], direction: str = "en-de", rounds: int = 1) -> None:
    """The peer has the time of the longest run, in seconds of its training process."""
    source, _, target = direction.partition("-")
    found: dict[str, list[tuple[float, float]]] = {}

    def note(name: str, seconds: float, bleu: float) -> None:
        found.setdefault(name, []).append((seconds, bleu))
        print(f"{name}: {seconds:.0f} s, BLEU {bleu:.2f}", flush=True)

    with TemporaryDirectory() as folder:
        parts = files_of(data, Path(folder) / "plain", source, target)
        for number in range(rounds):
            peer = JoeyNMT(python, Path(folder) / f"peer-{number}", (source, target), parts)
            prepared = peer.prepare(8000)
            trained = peer.train(60 * max(minutes) - prepared.seconds, validation_freq=200, random_seed=number + 1)
            scores = peer.test().found(peer.BLEU)
            note("JoeyNMT", prepared.seconds + trained.seconds, scores[-1][1] if scores else 0.0)
            for each in minutes:
                run = Path(folder) / f"ours-{number}-{each:g}"
                files = [*parts["train"], "--validation", parts["dev"][0], "--validation", parts["dev"][1]]
                done = ours.train(run, [*files, "--minutes", each, "--seed", number + 1])
                note(f"penwright, {each:g} minutes", done.seconds, ours.evaluate(run, *parts["test"])["BLEU"])
    results = [
        Result(name, {"seconds": [s for s, _ in rows], "BLEU": [b for _, b in rows]}) for name, rows in found.items()
    ]
    shown = ",".join(f"{each:g}" for each in minutes)
    command = f"python -m benchmarks.{NAME} multi30k PYTHON {shown} {direction} {rounds}"
    write_result(f"{NAME}-{direction}", command, results, (__doc__ or "").split("\n\n")[1])


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        tuple(map(float, sys.argv[3].split(","))),
        *sys.argv[4:5],
        *map(int, sys.argv[5:]),
    )
