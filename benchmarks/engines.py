"""Decoding speed of Penwright, CTranslate2, llama.cpp and OpenVINO with the same weights, in tokens per second.

Run: python -m benchmarks.engines SHAPE_OR_RUN [ROUNDS] [BATCHES, as 1,16] [NAME=PATH ...]   (shapes: see SHAPES)

OpenVINO=PYTHON adds OpenVINO; that environment has optimum-intel and openvino-genai. NAME=CHECKOUT adds a fork of
llama.cpp whose `llama-server` is built, such as ik_llama.cpp.
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

from benchmarks.engine_models import SHAPES, Measured, random_model, trained_model
from benchmarks.engine_process import THREADS, Engine, Job, Tokens
from benchmarks.peers import run
from benchmarks.report import Result, write_result
from penwright.decoding.engine import compile_steps
from penwright.model import Model
from penwright.model.quantized import to_precision
from penwright.model.transformer import EncoderOnly
from penwright.model.weights import weights_of
from penwright.workflows.export import save_as

N_PROMPT, N_CONTINUED = 9, 128  # tokens, <s> included
N_SOURCE, N_TRANSLATED = 15, 20  # without the end token
REFERENCE = "penwright float32"
AS_TRAINED = "penwright int8, not compiled"  # as after `train`, until the steps are compiled or without a compiler
# Share of the text, in %, that must equal ours with weights in float32. llama.cpp keeps keys and values in float16, and
# OpenVINO chooses its own precision, so a random model soon writes the other of two nearly equal tokens. A wrong export
# differs at once.
AGREEMENT = {"ours": 100.0, "ctranslate2": 95.0, "llama.cpp": 20.0, "llama-server": 20.0, "openvino": 5.0}
THREADS_IN_WORDS = {1: "one thread", 2: "two threads"}
WORKERS_IN_WORDS = {1: "one worker", 2: "two workers"}


def main(what: str, rounds: int = 3, batches: str = "1,8,16,32", *others: str) -> None:
    """Let each engine write each batch in turn, `rounds` times. Time the first token of a new process equally often."""
    measured = random_model(SHAPES[what]) if what in SHAPES else trained_model(Path(what))
    beams = (1, 5) if measured.task == "translate" else (1,)
    cells = [(beam_size, int(rows)) for beam_size in beams for rows in batches.split(",")]
    with TemporaryDirectory() as folder:
        engines = exported(measured, Path(folder), dict(other.split("=", 1) for other in others))
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
    added = "".join(f" {other.split('=')[0]}=PATH" for other in others)
    write_result(f"engines-{label}", f"python -m benchmarks.engines {what} {rounds} {batches}{added}", results, about)


def exported(measured: Measured, folder: Path, others: dict[str, str]) -> dict[str, Engine]:
    """Export the model for each engine and precision; leave out the engines that cannot run it."""
    task, model, tokenizer = measured
    ours = folder / "ours"
    ours.mkdir()
    save_file(weights_of(model), ours / "model.safetensors")
    (ours / "settings.json").write_text(model.settings.model_dump_json(), encoding="utf-8")
    tokenizer.save(ours / "tokenizer.json")
    trained = Engine("ours", task, str(ours), "int8", options={"PENWRIGHT_CACHE": str(folder / "no cache")})
    engines = {REFERENCE: trained._replace(precision="float32"), AS_TRAINED: trained}
    for threads in sorted({1, THREADS}):
        compile_int8(model, threads)
        name = f"penwright int8, compiled, {THREADS_IN_WORDS[threads]}"
        engines[name] = Engine("ours", task, str(ours), "int8", threads=threads)
    for precision in ("float32", "int8"):
        path = folder / f"ctranslate2-{precision}"
        save_as("ctranslate2", model, tokenizer, path, precision)
        for workers in sorted({1, THREADS}):
            said = f"{WORKERS_IN_WORDS[workers]} of {THREADS_IN_WORDS[THREADS // workers]}"
            engines[f"CTranslate2 {precision}, {said}"] = Engine("ctranslate2", task, str(path), precision, workers)
    if task == "generate" and "OpenVINO" in others:
        engines |= openvino(measured, folder, others["OpenVINO"])
    if task == "generate" and tokenizer.kind == "bpe":
        engines |= readers_of_gguf(
            measured, folder, {name: path for name, path in others.items() if name != "OpenVINO"}
        )
    return engines


def openvino(measured: Measured, folder: Path, python: str) -> dict[str, Engine]:
    """Return OpenVINO with the weights in float32 and in int8, converted by optimum-intel from our export."""
    save_as("huggingface", measured.model, measured.tokenizer, folder / "huggingface")
    engines = {}
    for precision, weights in (("float32", "fp32"), ("int8", "int8")):
        output = str(folder / f"openvino-{precision}")
        convert = [Path(python).with_name("optimum-cli"), "export", "openvino", "--model", folder / "huggingface"]
        run([*convert, "--task", "text-generation-with-past", "--weight-format", weights, output])
        engine = Engine("openvino", measured.task, output, precision, program=(python,))
        for attention in ("SDPA", "PA"):  # stateful, or paged attention with continuous batching
            engines[f"OpenVINO {precision}, {attention}"] = engine._replace(options={"ATTENTION_BACKEND": attention})
    return engines


def readers_of_gguf(measured: Measured, folder: Path, forks: dict[str, str]) -> dict[str, Engine]:
    """Return llama.cpp and its forks with three GGUF files."""
    engines = {}
    for said, precision in (("F32", "float32"), ("BF16", "bfloat16"), ("Q8_0", "int8")):
        save_as("gguf", measured.model, measured.tokenizer, folder / said, precision)
        engine = Engine("llama.cpp", measured.task, str(folder / said), precision)
        engines[f"llama.cpp {said}"] = engine
        for name, checkout in forks.items():
            server = engine._replace(
                kind="llama-server", program=(str(Path(checkout, "build/bin/llama-server").absolute()),)
            )
            engines[f"{name} {said}"] = server
            engines[f"{name} {said}, repacked"] = server._replace(program=(*server.program, "--run-time-repack"))
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
    python = engine.program[0] if engine.kind == "openvino" else sys.executable
    return [python, "-m", "benchmarks.engine_process", json.dumps(engine)]


def environment(engine: Engine) -> dict[str, str]:
    """Return the environment of an engine. Only ours gets the GOMP_SPINCOUNT that importing penwright sets."""
    usual = {name: value for name, value in os.environ.items() if engine.kind == "ours" or name != "GOMP_SPINCOUNT"}
    return usual | (engine.options if engine.kind == "ours" else {})


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
        best: dict[str, float] = {}
        for name, cell in cells.items():
            engine = name.split(" ")[0]
            best[engine] = max(best.get(engine, 0), median(cell.paces))
        ours, plain = best.pop("penwright"), median(cells[AS_TRAINED].paces)
        peers = ", ".join(f"{ours / pace:.2f} x {engine}" for engine, pace in best.items())
        said.append(f"beam {beam_size}, batch {rows}: {peers}, {ours / plain:.2f} x not compiled")
    return f"Our best divided by the best of each, and by ours before steps are compiled: {'; '.join(said)}."


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]), *sys.argv[3:])
