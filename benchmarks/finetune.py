"""Fine-tuning at equal time: Penwright's `--lora` against transformers with peft, in whole processes.

All train a LoRA adapter of SmolLM2-135M on TEXT at the same time, with a thread each, so that other work on the
machine slows down all: Penwright with its automatic settings, and peft with steps of 1,024 and of 512 tokens. One
command scores all models on the held-out file, in the same windows: `penwright export` merges peft's adapters.

Run: python -m benchmarks.finetune TEXT HELD_OUT GGUF [MINUTES] [PYTHON]; PYTHON has transformers, peft and gguf.
"""

import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import ours
from benchmarks.peers import Finished, run
from benchmarks.report import Result, write_result

NAME, SCORE, RANK = "finetune", "bits per byte", 16
PEER = {"rank": RANK, "rows": 1, "learning_rate": 1e-3, "warmup": 20, "compile": False}
CONTEXTS = (1024, 512)  # tokens per step of the peer, in one window
PLANNING = 30  # seconds that Penwright takes before its minutes begin; the peer gets them, too


def main(text: Path, held_out: Path, gguf: Path, minutes: float = 10, python: str = sys.executable) -> None:
    """Score the imported model, all adapters, and a model from scratch."""
    text, held_out, gguf = (path.absolute() for path in (text, held_out, gguf))
    results, remark = tuned(text, held_out, gguf, minutes, python)
    results.append(from_scratch(text, held_out, minutes))
    write_result(NAME, f"python -m benchmarks.{NAME} TEXT HELD_OUT GGUF {minutes:g} PYTHON", results, remark)


def tuned(text: Path, held_out: Path, gguf: Path, minutes: float, python: str) -> tuple[list[Result], str]:
    """Return the results of the imported model and of all adapters, and the settings of the peer."""
    with TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        base, mine = Path(folder) / "base", Path(folder) / "mine"
        run([*ours.PENWRIGHT, "import", gguf, "--run", base])
        peer = [python, "-m", "benchmarks.hf_trainer", "lora", text, gguf]
        settings = {context: {**PEER, "context": context, "seconds": 60 * minutes + PLANNING} for context in CONTEXTS}
        options = [*_options(text, minutes), "--from", base, "--lora", RANK]
        training = pool.submit(ours.train, mine, options)
        others = {
            context: pool.submit(run, [*peer, Path(folder) / f"peft-{context}", json.dumps(given)])
            for context, given in settings.items()
        }
        rates = [rate for _, rate in training.result().found(r"([\d,]+) tokens/s")]
        results = [
            Result("the imported model", _figures(base, held_out)),
            Result("penwright --lora", _figures(mine, held_out, training.result(), rates)),
        ]
        remarks = []
        for context, other in others.items():
            adapter, merged, found = (
                Path(folder) / f"peft-{context}",
                Path(folder) / f"merged-{context}",
                other.result(),
            )
            run([*ours.PENWRIGHT, "export", base, "--adapter", adapter, "--to", "penwright", "--output", merged])
            figures = json.loads(found.lines[-1][1])
            name = f"transformers and peft, {context:,} tokens per step"
            results.append(Result(name, _figures(merged, held_out, found, [figures["tokens per second"]])))
            remarks.append(f"{settings[context]}, {figures}")
    return results, f"peft: {'; '.join(remarks)}"


def from_scratch(text: Path, held_out: Path, minutes: float) -> Result:
    """Return the result of a new model in the same time."""
    with TemporaryDirectory() as folder:
        trained = ours.train(Path(folder) / "run", _options(text, minutes))
        return Result("penwright, from scratch", _figures(Path(folder) / "run", held_out, trained))


def _options(text: Path, minutes: float) -> list[object]:
    return [text, "--minutes", minutes, "--set", "training.threads=1"]


def _figures(
    folder: Path, held_out: Path, trained: Finished | None = None, rates: Sequence[float] = ()
) -> dict[str, list[float]]:
    return {
        SCORE: [ours.evaluate(folder, held_out)[SCORE]],
        "seconds, whole process": [trained.seconds] if trained else [],
        "tokens per second": [median(rates)] if rates else [],
        "peak memory, GB": [trained.peak / 1e9] if trained else [],
    }


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *map(float, sys.argv[4:5]), *sys.argv[5:6])
