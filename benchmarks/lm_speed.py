"""Training speed in characters per second: nanoGPT, transformers' Trainer and Penwright, same layers, width and batch.

Run: python -m benchmarks.lm_speed TEXT NANOGPT_CHECKOUT [ROUNDS]

With "-" in place of the checkout, nanoGPT is left out. The Trainer trains a Llama with AdamW and without dropout.
Penwright does the same, and also trains with Muon, dropout 0.2, and normalized queries and keys.
"""

import json
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.ours import SETTLING, pace_in_new_process
from benchmarks.peers import NanoGPT, run
from benchmarks.report import Result, write_result
from penwright.config import Table, merge

LAYERS, WIDTH, HEADS, CONTEXT, ROWS, STEPS = 6, 384, 6, 256, 16, 25
LIKE_TRAINER: Table = {"model": {"dropout": 0.0, "qk_norm": False}, "optimizer": {"type": "adamw"}}
OURS: dict[str, Table] = {
    "penwright, float32, not compiled": {"training": {"precision": "float32", "compile": "off"}},
    "penwright, automatic settings": {"training": {"compile": "on"}},
    "penwright, AdamW, no dropout": merge(LIKE_TRAINER, {"training": {"compile": "on"}}),
}


def main(text: Path, checkout: Path, rounds: int = 3) -> None:
    """Run each in turn. The speed is the median over the steps after the first few."""
    found: dict[str, list[float]] = {}

    def note(name: str, pace: float) -> None:
        found.setdefault(name, []).append(pace)
        print(f"{name}: {pace:,.0f} characters/s", flush=True)

    for number in range(rounds):
        for compiled in (False, True):
            how = "compiled" if compiled else "not compiled"
            if str(checkout) != "-":
                with TemporaryDirectory() as folder:
                    note(f"nanoGPT, {how}", _nanogpt(text, checkout, folder, compiled))
            for bf16 in (False, True):
                precision = "bfloat16" if bf16 else "float32"
                note(f"transformers' Trainer, {precision}, {how}", _trainer(text, compiled, bf16))
        for name, settings in OURS.items():
            note(name, pace_in_new_process(merge(_ours(text, seed=number), settings)))
    results = [Result(name, {"characters/s": paces}) for name, paces in found.items()]
    shape = f"{LAYERS} layers, d {WIDTH}, {HEADS} heads, context {CONTEXT}, {ROWS} rows per batch"
    command = f"python -m benchmarks.lm_speed {text.name} {'-' if str(checkout) == '-' else 'nanoGPT'} {rounds}"
    write_result("lm_speed", command, results, shape)


def _nanogpt(text: Path, checkout: Path, folder: str, compiled: bool) -> float:
    peer = NanoGPT(checkout, text, Path(folder) / "nanoGPT")
    peer.prepare()
    done = peer.train(compile=compiled, batch_size=ROWS, max_iters=STEPS, log_interval=1, eval_iters=1)
    steps = done.found(peer.MILLISECONDS)
    return ROWS * CONTEXT / (median(time for _, time in steps[SETTLING:]) / 1000)


def _trainer(text: Path, compiled: bool, bf16: bool) -> float:
    shape = {"n_layers": LAYERS, "d_model": WIDTH, "d_ff": 1024, "n_heads": HEADS, "context": CONTEXT}
    given = json.dumps({**shape, "rows": ROWS, "steps": STEPS, "compile": compiled, "bf16": bf16})
    done = run([sys.executable, "-m", "benchmarks.hf_trainer", "lm", text, given])
    return float(json.loads(done.lines[-1][1]))


def _ours(text: Path, seed: int) -> Table:
    return {
        "task": "generate",
        "seed": seed,
        "data": {"train": [str(text)], "held_out": 0.02},
        "tokenizer": {"type": "characters"},
        "model": {
            "d_model": WIDTH,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "context_length": CONTEXT,
            "dropout": 0.2,
            "qk_norm": True,
        },
        "optimizer": {"type": "muon"},
        "training": {"steps": STEPS, "batch_tokens": ROWS * CONTEXT, "evaluate_every": 10 * STEPS},
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
