"""Validation loss against seconds on tiny Shakespeare by characters: nanoGPT's CPU recipe and ours, from raw text.

nanoGPT measures its loss on random windows of 64 characters, we on the whole last tenth in adjacent windows. Both are
in nats per character.

Run: python -m benchmarks.lm_quality TEXT NANOGPT_CHECKOUT [MINUTES,MINUTES...] [ROUNDS]
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import ours
from benchmarks.peers import NanoGPT
from benchmarks.report import Curve, Result, draw, write_result

NAME = "lm_quality"
RECIPE = {  # the options in its README for a machine without a GPU; the last evaluation has more windows
    "compile": False,
    "eval_iters": 20,
    "log_interval": 1,
    "block_size": 64,
    "batch_size": 12,
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "max_iters": 2000,
    "lr_decay_iters": 2000,
    "dropout": 0.0,
    "always_save_checkpoint": True,
}
Row = tuple[float, float, float]  # seconds of the whole process, seconds of training, and nats per character


def main(text: Path, checkout: Path, minutes: tuple[float, ...] = (5.0, 10.0), rounds: int = 3) -> None:
    """Run the peer, then our fastest recipe to its loss, then the automatic choice for each number of minutes."""
    runs: dict[str, list[str]] = {
        "penwright, 170 steps of recipes/shakespeare-char-fast.toml": [
            "--recipe",
            "recipes/shakespeare-char-fast.toml",
            "--steps",
            "170",
            "--set",
            "training.precision=auto",
        ]
    }
    runs |= {f"penwright, --minutes {each:g}": ["--minutes", str(each)] for each in minutes}
    found: dict[str, list[Row]] = {}
    curves: list[Curve] = []
    for number in range(rounds):
        with TemporaryDirectory() as folder:
            row, curve = _nanogpt(NanoGPT(checkout, text, Path(folder) / "peer"))
            _note(found, "nanoGPT, its CPU recipe", row)
            curves += [Curve("nanoGPT, its CPU recipe", curve)] if number == 0 else []
            for place, (name, options) in enumerate(runs.items()):
                row, curve = _ours(text, Path(folder) / str(place), [*options, "--seed", str(number + 1)])
                _note(found, name, row)
                curves += [Curve(name, curve)] if number == 0 else []
    columns = ("seconds, whole process", "seconds of training", "nats per character")
    results = [
        Result(name, {column: [row[place] for row in rows] for place, column in enumerate(columns)})
        for name, rows in found.items()
    ]
    command = f"python -m benchmarks.{NAME} {text.name} nanoGPT {','.join(f'{m:g}' for m in minutes)} {rounds}"
    path = write_result(NAME, command, results, (__doc__ or "").split("\n\n")[1])
    draw(path.with_suffix(".svg"), curves, "seconds", "nats per character")


def _note(found: dict[str, list[Row]], name: str, row: Row) -> None:
    found.setdefault(name, []).append(row)
    print(f"{name}: {row[0]:.0f} s, {row[1]:.0f} s of it training; {row[2]:.4f} nats", flush=True)


def _nanogpt(peer: NanoGPT) -> tuple[Row, list[tuple[float, float]]]:
    prepared, trained = peer.prepare(), peer.train(**RECIPE)
    times = [milliseconds for _, milliseconds in trained.found(peer.MILLISECONDS)]
    looks = {step for step in range(0, len(times), 250)}  # these times include an evaluation
    training = sum(time for step, time in enumerate(times) if step not in looks) / 1000
    exact = peer.train(**{**RECIPE, "init_from": "resume", "eval_only": True, "eval_iters": 500})
    loss = exact.found(peer.VALIDATION)[-1][1]
    return (prepared.seconds + trained.seconds, training, loss), trained.found(peer.VALIDATION)


def _ours(text: Path, folder: Path, options: list[str]) -> tuple[Row, list[tuple[float, float]]]:
    trained = ours.train(folder, [text, *options, "--set", "data.held_out=0.1"])
    curve = ours.losses(folder)
    seconds, loss = min(curve, key=lambda point: point[1])  # the best checkpoint
    before = trained.seconds - curve[-1][0]  # reading, storing and planning: the peer's seconds include them too
    return (trained.seconds, seconds, loss), [(before + second, nats) for second, nats in curve]


if __name__ == "__main__":
    chosen = tuple(float(part) for part in sys.argv[3].split(",")) if len(sys.argv) > 3 else (5.0, 10.0)
    main(Path(sys.argv[1]), Path(sys.argv[2]), chosen, *map(int, sys.argv[4:]))
