"""Validation loss against seconds on tiny Shakespeare's characters: nanoGPT's CPU recipe beside ours, from raw text.

nanoGPT says its loss on random windows of 64 characters, ours is over the whole last tenth in windows side by side;
both in nats a character, whatever the tokens are.

Run: python -m benchmarks.lm_quality TEXT NANOGPT_CHECKOUT [MINUTES,MINUTES...] [ROUNDS]
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import ours
from benchmarks.peers import NanoGPT
from benchmarks.report import Curve, Result, draw, write_result

NAME = "lm_quality"
RECIPE = {  # the options that its README gives for a computer without a GPU; the estimates on more windows are mine
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
Row = tuple[float, float, float]  # seconds of the whole process, of training alone, and nats a character


def main(text: Path, checkout: Path, minutes: tuple[float, ...] = (5.0, 10.0), rounds: int = 3) -> None:
    """The peer, then a recipe to its loss as soon as may be, then the automatic choice for so many minutes."""
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
    columns = ("seconds, whole process", "seconds of training", "nats a character")
    results = [
        Result(name, {column: [row[place] for row in rows] for place, column in enumerate(columns)})
        for name, rows in found.items()
    ]
    command = f"python -m benchmarks.{NAME} {text.name} nanoGPT {','.join(f'{m:g}' for m in minutes)} {rounds}"
    path = write_result(NAME, command, results, (__doc__ or "").split("\n\n")[1])
    draw(path.with_suffix(".svg"), curves, "seconds", "nats a character")


def _note(found: dict[str, list[Row]], name: str, row: Row) -> None:
    found.setdefault(name, []).append(row)
    print(f"{name}: {row[0]:.0f} s, of which training {row[1]:.0f} s; {row[2]:.4f} nats", flush=True)


def _nanogpt(peer: NanoGPT) -> tuple[Row, list[tuple[float, float]]]:
    prepared, trained = peer.prepare(), peer.train(**RECIPE)
    times = [milliseconds for _, milliseconds in trained.found(peer.MILLISECONDS)]
    looks = {step for step in range(0, len(times), 250)}  # whose time has an estimate of the loss in it
    training = sum(time for step, time in enumerate(times) if step not in looks) / 1000
    exact = peer.train(**{**RECIPE, "init_from": "resume", "eval_only": True, "eval_iters": 500})
    loss = exact.found(peer.VALIDATION)[-1][1]
    return (prepared.seconds + trained.seconds, training, loss), trained.found(peer.VALIDATION)


def _ours(text: Path, folder: Path, options: list[str]) -> tuple[Row, list[tuple[float, float]]]:
    trained = ours.train(folder, [text, *options, "--set", "data.held_out=0.1"])
    curve = ours.losses(folder)
    seconds, loss = min(curve, key=lambda point: point[1])  # the checkpoint that is kept
    before = trained.seconds - curve[-1][0]  # reading, storing and planning, which the peer's seconds count too
    return (trained.seconds, seconds, loss), [(before + second, nats) for second, nats in curve]


if __name__ == "__main__":
    chosen = tuple(float(part) for part in sys.argv[3].split(",")) if len(sys.argv) > 3 else (5.0, 10.0)
    main(Path(sys.argv[1]), Path(sys.argv[2]), chosen, *map(int, sys.argv[4:]))
