"""Decoding speed of Penwright, CTranslate2 and llama.cpp with the same weights, in tokens per second.

Run: python -m benchmarks.engines SHAPE_OR_RUN [ROUNDS] [BATCHES, as 1,16]   (shapes: see SHAPES)
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import torch
from safetensors.torch import save_file

from benchmarks.engine_process import THREADS, Engine, Job, Tokens
from benchmarks.report import Result, write_result
from penwright.classification.classifier import Classifier
from penwright.config import ModelSettings, Table, Task
from penwright.decoding.engine import compile_steps
from penwright.model import Model, make_model
from penwright.model.quantized import to_precision
from penwright.model.transformer import EncoderOnly
from penwright.model.weights import weights_of
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.workflows.export import save_as
from penwright.workflows.load import load

N_PROMPT, N_CONTINUED = 9, 128  # tokens, <s> included
N_SOURCE, N_TRANSLATED = 15, 20  # without the end token
REFERENCE = "penwright float32"
# Share of the text, in %, that must equal ours with weights in float32. llama.cpp keeps keys and values in float16, so
# a random model soon writes the other of two nearly equal tokens. A wrong export differs at once.
AGREEMENT = {"ours": 100.0, "ctranslate2": 95.0, "llama.cpp": 20.0}


class Shape(NamedTuple):
    """The shape of a model with random weights."""

    task: Task
    vocab_size: int
    model: Table


SHAPES = {
    "writer-12M": Shape("generate", 4096, {"size": "medium"}),
    "writer-88M": Shape("generate", 4096, {"size": "large"}),
    "translator-tiny": Shape("translate", 8000, {"size": "tiny"}),
    "translator-base": Shape("translate", 8000, {"size": "base"}),
}


class Measured(NamedTuple):
    """A model with its task and tokenizer."""

    task: Task
    model: Model
    tokenizer: Tokenizer


def main(what: str, rounds: int = 3, batches: str = "1,8,16,32") -> None:
    """Let each engine write each batch in turn, `rounds` times. Time the first token of a new process equally often."""
    measured = random_model(SHAPES[what]) if what in SHAPES else trained_model(Path(what))
    beams = (1, 5) if measured.task == "translate" else (1,)
    cells = [(beam_size, int(rows)) for beam_size in beams for rows in batches.split(",")]
    with TemporaryDirectory() as folder:
        engines = exported(measured, Path(folder))
        cold = {name: [first_token(engine, measured) for _ in range(rounds)] for name, engine in engines.items()}
        with Processes(engines) as processes:
            paces = {cell: processes.compare(job_for(measured, *cell), rounds) for cell in cells}
    results = []
    for name in engines:
        figures = {f"beam {beam_size}, batch {rows}": paces[beam_size, rows][name].paces for beam_size, rows in cells}
        same = mean(cell[name].same_text for cell in paces.values())
        results.append(Result(name, {**figures, "% same text": [same], "first token, s": cold[name]}))
    about = f"{measured.model.settings.n_layers} layers, d {measured.model.settings.d_model}, {rounds} rounds. "
    about += "Same text: share equal to ours in float32, up to the first difference. " + ratios(paces)
    label = Path(what).name if batches == "1,8,16,32" else f"{Path(what).name}-{batches.replace(',', '-')}"
    write_result(f"engines-{label}", f"python -m benchmarks.engines {what} {rounds} {batches}", results, about)


def random_model(shape: Shape) -> Measured:
    """Return a random model that writes ASCII letters only, so that texts can be compared.

    Its weights are doubled, so that the most likely token is clear.
    """
    torch.manual_seed(0)
    tokenizer = made_up_tokenizer(shape.vocab_size)
    settings = ModelSettings(**shape.model, zero_init_outputs=False)
    model = make_model(shape.task, tokenizer.vocab_size, settings).eval()
    unwritable = [token for token in range(tokenizer.vocab_size) if not tokenizer.token_bytes(token).isalpha()]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2)
        model.output.weight[unwritable] = 0
    return Measured(shape.task, model, tokenizer)


def made_up_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a BPE tokenizer trained on random words."""
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9))) for _ in range(vocab_size)]
    tokenizer = train_tokenizer("bpe", [" ".join(words)] * 2, vocab_size)
    assert tokenizer.vocab_size == vocab_size, tokenizer.notes
    return tokenizer


def trained_model(run: Path) -> Measured:
    """Load the model of a run."""
    application = load(run)
    if isinstance(application, Classifier):
        raise SystemExit(f"{run} is a classifier, which does not generate text")
    task: Task = "generate" if hasattr(application, "generate") else "translate"
    return Measured(task, application.model, application.tokenizer)


def exported(measured: Measured, folder: Path) -> dict[str, Engine]:
    """Export the model for each engine and precision; leave out llama.cpp if it cannot run the model."""
    task, model, tokenizer = measured
    ours = folder / "ours"
    ours.mkdir()
    save_file(weights_of(model), ours / "model.safetensors")
    (ours / "settings.json").write_text(model.settings.model_dump_json(), encoding="utf-8")
    tokenizer.save(ours / "tokenizer.json")
    engines = {REFERENCE: Engine("ours", task, str(ours))}
    for threads, said in ((1, "one thread"), (THREADS, "two threads")):
        compile_int8(model, threads)
        engines[f"penwright int8, compiled, {said}"] = Engine("ours", task, str(ours), "int8", threads=threads)
    for precision in ("float32", "int8"):
        path = folder / f"ctranslate2-{precision}"
        save_as("ctranslate2", model, tokenizer, path, precision)
        for workers, said in ((1, "one worker of two threads"), (2, "two workers of one thread")):
            engines[f"CTranslate2 {precision}, {said}"] = Engine("ctranslate2", task, str(path), precision, workers)
    if task == "generate" and tokenizer.kind == "bpe":
        for precision, said in (("float32", "F32"), ("bfloat16", "BF16"), ("int8", "Q8_0")):
            save_as("gguf", model, tokenizer, folder / said, precision)
            engines[f"llama.cpp {said}"] = Engine("llama.cpp", task, str(folder / said), precision)
    return engines


def compile_int8(model: Model, threads: int) -> None:
    """Compile the int8 steps. Like the exports, this is not timed."""
    torch.set_num_threads(threads)  # steps are compiled for a number of threads
    model = deepcopy(model)
    to_precision(model, "int8")
    if not isinstance(model, EncoderOnly):
        compile_steps(model)


def job_for(measured: Measured, beam_size: int, rows: int) -> Job:
    """Return a job of random tokens to continue or translate."""
    chance, tokenizer = random.Random(rows), measured.tokenizer
    words = [token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token).isalpha()]
    if measured.task == "translate":
        return Job([chance.choices(words, k=N_SOURCE) for _ in range(rows)], N_TRANSLATED, beam_size)
    prompts = [[tokenizer.start_id, *chance.choices(words, k=N_PROMPT - 1)] for _ in range(rows)]
    return Job(prompts, N_CONTINUED)


def command(engine: Engine) -> list[str]:
    """Return the command of an engine's process."""
    return [sys.executable, "-m", "benchmarks.engine_process", json.dumps(engine)]


def environment(engine: Engine) -> dict[str, str]:
    """Return the environment of an engine. Only ours gets the GOMP_SPINCOUNT that importing penwright sets."""
    return {name: value for name, value in os.environ.items() if engine.kind == "ours" or name != "GOMP_SPINCOUNT"}


def first_token(engine: Engine, measured: Measured) -> float:
    """Return the seconds from the start of a process to its first token."""
    texts: Tokens = job_for(measured, 1, 1).texts
    begin = perf_counter()
    subprocess.run(
        [*command(engine), "cold"],
        input=json.dumps(texts),
        text=True,
        check=True,
        capture_output=True,
        env=environment(engine),
    )
    return perf_counter() - begin


class Cell(NamedTuple):
    """The result of one engine for one job."""

    paces: list[float]  # tokens per second, for each round
    same_text: float  # in %


class Processes:
    """All engines, loaded. Only one works at a time."""

    def __init__(self, engines: dict[str, Engine]):
        self.engines = engines
        self.running = {
            name: subprocess.Popen(
                command(engine), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(engine)
            )
            for name, engine in engines.items()
        }

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    def compare(self, job: Job, rounds: int) -> dict[str, Cell]:
        """Time every engine in turn, after a few warm-up tokens; raise SystemExit if texts differ too much."""
        for name in self.engines:
            self._write(name, job._replace(n_new=4))
        paces: dict[str, list[float]] = {name: [] for name in self.engines}
        texts: dict[str, list[str]] = {}
        for _ in range(rounds):
            for name in self.engines:
                seconds, texts[name] = self._write(name, job)
                paces[name].append(len(job.texts) * job.n_new / seconds)
        reference = texts[REFERENCE]
        cells = {name: Cell(paces[name], in_common(texts[name], reference)) for name in self.engines}
        for name, cell in cells.items():
            print(
                f"beam {job.beam_size}, batch {len(job.texts)}, {name}: {median(cell.paces):,.0f} tokens/s", flush=True
            )
            engine = self.engines[name]
            if engine.precision == "float32" and cell.same_text < AGREEMENT[engine.kind]:
                raise SystemExit(f"{name} generates other text than ours: only {cell.same_text:.0f} % is equal")
        return cells

    def _write(self, name: str, job: Job) -> tuple[float, list[str]]:
        process = self.running[name]
        assert process.stdin is not None and process.stdout is not None
        print(json.dumps(job), file=process.stdin, flush=True)
        seconds, texts = json.loads(process.stdout.readline())
        return seconds, texts


def in_common(texts: Iterable[str], reference: Iterable[str]) -> float:
    """Return how much of the texts, in %, comes before the first difference."""
    shares = []
    for text, wanted in zip(texts, reference, strict=True):
        pairs = zip(text, wanted, strict=False)
        alike = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(text), len(wanted)))
        shares.append(100 * alike / max(len(text), len(wanted), 1))
    return mean(shares)


def ratios(paces: dict[tuple[int, int], dict[str, Cell]]) -> str:
    """Describe the ratio of our best speed to the best of each peer."""
    said = []
    for (beam_size, rows), cells in paces.items():
        best = {
            engine: max(median(cell.paces) for name, cell in cells.items() if name.startswith(engine))
            for engine in ("penwright", "CTranslate2", "llama.cpp")
            if any(name.startswith(engine) for name in cells)
        }
        ours = best.pop("penwright")
        peers = " and ".join(f"{ours / pace:.2f} x {engine}" for engine, pace in best.items())
        said.append(f"beam {beam_size}, batch {rows}: {peers}")
    return f"Our best divided by the best of each: {'; '.join(said)}."


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]), *sys.argv[3:])
