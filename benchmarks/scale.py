"""Cost of training as the text, the model, the threads and the processes grow.

Text: speed of reading, tokenizing and storing it once, and peak memory. Models: characters per second of each size.
Threads: the same model on one and on two. Processes: two of one thread each, which share the rows of each batch.

Run: python -m benchmarks.scale TEXT [MEGABYTES,MEGABYTES...]
"""

import json
import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.ours import pace_in_new_process
from benchmarks.peers import run
from benchmarks.report import Result, write_result
from penwright.config import Table

NAME = "scale"
STEPS = 15


def main(text: Path, megabytes: tuple[float, ...] = (1, 10, 100)) -> None:
    """Run one round of each. The text is repeated, with numbers in between, up to each size."""
    results = []
    with TemporaryDirectory() as folder:
        for size in megabytes:
            large = Path(folder) / "large.txt"
            _repeat(text, large, int(1e6 * size))
            done = run([sys.executable, "-m", "benchmarks.scale", "store", large])
            seconds, memory = json.loads(done.lines[-1][1])
            results.append(
                Result(f"MB of text read, tokenized and stored per second, of {size:g}", {"figure": [size / seconds]})
            )
            results.append(Result(f"GB of peak memory, for {size:g} MB", {"figure": [memory]}))
            print(f"{size:g} MB: {seconds:.1f} s, {size / seconds:.1f} MB/s, {memory:.2f} GB", flush=True)
    for name in ("nano", "tiny", "mini", "small", "medium"):
        rate = pace_in_new_process(_settings(text, {"size": name}, 0))
        results.append(Result(f"characters per second, size {name}", {"figure": [rate]}))
        print(f"{name}: {rate:,.0f} characters/s", flush=True)
    for threads in (1, 2):
        rate = pace_in_new_process(_settings(text, {"size": "mini"}, threads))
        results.append(Result(f"characters per second, size mini, {threads} threads", {"figure": [rate]}))
        print(f"{threads} threads: {rate:,.0f} characters/s", flush=True)
    rate = pace_in_new_process(_settings(text, {"size": "mini"}, 1), n_processes=2)
    results.append(Result("characters per second, size mini, 2 processes of one thread", {"figure": [rate]}))
    print(f"2 processes: {rate:,.0f} characters/s", flush=True)
    write_result(NAME, f"python -m benchmarks.{NAME} {text.name}", results, (__doc__ or "").split("\n\n")[1])


def _settings(text: Path, model: Table, threads: int) -> Table:
    return {
        "task": "generate",
        "data": {"train": [str(text)]},
        "tokenizer": {"type": "characters"},
        "model": {"context_length": 256, "qk_norm": True, "dropout": 0.1, **model},
        "optimizer": {"type": "muon"},
        "training": {"steps": STEPS, "evaluate_every": 10 * STEPS, "compile": "on", "threads": threads},
    }


def _repeat(text: Path, target: Path, n_bytes: int) -> None:
    """Write the text repeatedly, each time with another number at the end of each line."""
    lines = text.read_text(encoding="utf-8").split("\n")
    with target.open("w", encoding="utf-8") as file:
        turn = 0
        while file.tell() < n_bytes:
            file.write("\n".join(f"{line} {turn}" for line in lines))
            turn += 1


def store(text: Path) -> None:
    """Read a text, train a tokenizer on it and store its tokens; print the seconds and the GB of memory."""
    from penwright.config import validate
    from penwright.config.recipe import Recipe
    from penwright.tasks import TASKS, reading_of, token_store
    from penwright.tokenizers.training import train_tokenizer

    recipe = validate(
        Recipe, {"task": "generate", "data": {"train": [str(text)]}, "model": {}, "training": {"steps": 1}}, ""
    )
    begin = perf_counter()
    corpus = TASKS["generate"].open_corpus(recipe.data.train, reading_of(recipe))
    tokenizer = train_tokenizer("bpe", TASKS["generate"].texts(corpus), 8192)
    token_store("generate", corpus, tokenizer, (), held_out=False)
    print(json.dumps([perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6]))


if __name__ == "__main__":
    if sys.argv[1] == "store":
        store(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), *(tuple(map(float, part.split(","))) for part in sys.argv[2:3]))
