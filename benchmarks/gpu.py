"""Training and decoding on a GPU: tokens per second and utilization of the card, compared with other projects.

Run: python -m benchmarks.gpu train NANOGPT_CHECKOUT [--batch ROWS] [--steps N] [--only NAME,...] [--profile] [--tiny]
     python -m benchmarks.gpu decode [--only NAME,...] [--static] [--profile] [--tiny]

`train` trains models of GPT-2's size (124 million parameters) on random tokens, in bfloat16, compiled, without gradient
accumulation. `decode` generates text greedily with random weights in bfloat16. Without a GPU, the same code runs on the
CPU; use `--tiny` there.
"""

import argparse
import gc
import json
import pickle
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice, pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # not exported explicitly
from torch.profiler import ProfilerActivity, profile

from benchmarks.peers import NanoGPT, run
from benchmarks.report import Result, write_result
from penwright.config import ModelSettings, Table
from penwright.generation.generator import Generator
from penwright.model.attention import disable_cudnn_attention
from penwright.model.fused import fuse
from penwright.model.quantized import to_precision
from penwright.model.transformer import DecoderOnly
from penwright.tokenizers.training import train_tokenizer
from penwright.training.observers import Observer
from penwright.training.trainer import StepReport, Trainer
from penwright.workflows import plan
from penwright.workflows import train as training

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PUBLISHED = 989e12  # FLOP/s of an H100 SXM in dense bfloat16, as published
PROFILED = {"train": 5, "decode": 20}  # number of steps in a profile
TOP = 25  # number of kernels that a profile lists
LETTERS = (range(0x4E00, 0xA000), range(0x20000, 0x2A6E0), range(0xF0000, 0xFFFFE))  # one token for each character
SPECIALS = 4  # tokens of a character vocabulary besides the characters
PROMPT = 16  # tokens of each prompt


class TrainShape(NamedTuple):
    """The size of the model and of the training run."""

    n_layers: int = 12
    d_model: int = 768
    n_heads: int = 12
    context: int = 1024
    vocab_size: int = 50_304
    rows: int = 32
    steps: int = 45
    settling: int = 15  # warm-up steps that are not timed
    n_tokens: int = 1_500_000  # size of the text

    @property
    def batch_tokens(self) -> int:
        """The number of tokens in a step."""
        return self.rows * self.context

    def flops(self, n_parameters: float) -> float:
        """Return nanoGPT's estimate of the FLOPs for each token; learned positions do not count as parameters."""
        return 6 * n_parameters + 12 * self.n_layers * self.d_model * self.context


TINY = TrainShape(2, 64, 2, 64, 304, 4, 14, 5, 20_000)


class Trained(NamedTuple):
    """The seconds of each timed step, and the number of parameters without learned positions."""

    seconds: list[float]
    n_parameters: float
    profile: Sequence[str] = ()


# --- measurements of the device


def synchronize() -> None:
    """Wait until the GPU is idle."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds_of(action: Callable[[], object], warm_up: int, repeats: int) -> list[float]:
    """Return the seconds of each call after the warm-up calls."""
    seconds = []
    for _ in range(warm_up + repeats):
        synchronize()
        begin = perf_counter()
        action()
        synchronize()
        seconds.append(perf_counter() - begin)
    return seconds[warm_up:]


def matmul_peak(size: int) -> float:
    """Return the FLOP/s of a product of square bfloat16 matrices of random numbers."""
    one, other = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / median(seconds_of(lambda: one @ other, 5, 10))


def bandwidth(n_bytes: int) -> float:
    """Return the bytes read and written in a second by a copy within the device's memory."""
    source, target = (torch.zeros(n_bytes, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    return 2 * n_bytes / median(seconds_of(lambda: target.copy_(source), 3, 10))


def release() -> None:
    """Free the memory of deleted tensors."""
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


class Profiler:
    """A profile of the kernels of several steps."""

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CUDA if DEVICE == "cuda" else ProfilerActivity.CPU])

    def start(self) -> None:
        """Begin to record kernels."""
        synchronize()
        self._profile.start()
        self._begin = perf_counter()

    def stop(self, n_steps: int) -> list[str]:
        """Stop recording; return the lines of a table of the kernels that take the most time."""
        synchronize()
        wall = 1e6 * (perf_counter() - self._begin)
        self._profile.stop()
        kind = DeviceType.CUDA if DEVICE == "cuda" else DeviceType.CPU
        events = [
            event
            for event in self._profile.events() or ()
            if event.device_type == kind and not getattr(event, "is_user_annotation", False)
        ]
        microseconds, calls = defaultdict[str, float](float), defaultdict[str, int](int)
        busy, end = 0.0, 0.0
        for event in sorted(events, key=lambda event: event.time_range.start):
            begins, ends = event.time_range.start, event.time_range.end
            microseconds[event.name] += ends - begins
            calls[event.name] += 1
            busy += max(0.0, ends - max(begins, end))
            end = max(end, ends)
        n_calls = sum(calls.values()) / n_steps
        lines = [f"{wall / n_steps / 1000:.3f} ms a step, {n_calls:.0f} kernels a step, idle {1 - busy / wall:.1%}"]
        for name in sorted(microseconds, key=lambda name: -microseconds[name])[:TOP]:
            each, share = microseconds[name] / n_steps, microseconds[name] / wall
            lines.append(f"{each / 1000:9.3f} ms {share:6.1%} {calls[name] / n_steps:7.1f} calls  {name[:110]}")
        return lines


# --- training


def train(checkout: Path, shape: TrainShape, only: Sequence[str], *, profiles: bool, command: str) -> None:
    """Train each model in its own process, and write the result."""
    peak = matmul_peak(8192 if DEVICE == "cuda" else 512)
    release()
    results, profiled = list[Result](), list[str]()
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        write_text(folder / "random.txt", shape)
        runs: dict[str, Callable[[], Trained]] = {"nanoGPT": lambda: nanogpt(checkout, shape, folder / "nanoGPT")}
        for title, settings in variants(folder / "random.txt", shape).items():
            runs[title] = lambda settings=settings: ours(settings, shape, folder / "caches", profiles=profiles)  # type: ignore[misc]
        for title in chosen(runs, only):
            try:
                trained = runs[title]()
            except SystemExit as failure:  # the other models are still measured
                print(f"{title}: {failure}", flush=True)
                continue
            rates = [shape.batch_tokens / seconds for seconds in trained.seconds]
            print(f"{title}: {median(rates):,.0f} tokens/s, {len(rates)} steps", *trained.profile, sep="\n", flush=True)
            profiled += trained.profile
            flops = shape.flops(trained.n_parameters) * median(rates)
            figures = {"tokens/s": rates, "ms per step": [1000 * seconds for seconds in trained.seconds]}
            figures |= {
                "MFU, measured peak, %": [100 * flops / peak],
                "MFU, published peak, %": [100 * flops / PUBLISHED],
            }
            results.append(Result(title, {"million parameters": [trained.n_parameters / 1e6], **figures}))
    if results:
        write_result("gpu_train", command, results, remark(f"{shape}. Measured peak: {peak / 1e12:.4g} TFLOP/s."))


def variants(text: Path, shape: TrainShape) -> dict[str, Table]:
    """Return the settings of Penwright's models: GPT-2 as in nanoGPT, and the default architecture."""
    sizes = {"d_model": shape.d_model, "n_layers": shape.n_layers, "n_heads": shape.n_heads, "dropout": 0.0}
    sizes |= {"context_length": shape.context}
    gpt2 = {"size": "gpt2", "feed_forward": "gelu", "tie_embeddings": "all", **sizes}
    models = {"GPT-2, AdamW": (gpt2, "adamw"), "GPT-2, Muon": (gpt2, "muon"), "default, Muon": (sizes, "muon")}
    # the stopwatch ends the training before the budget is spent
    steps = {"steps": 2 * shape.steps, "evaluate_every": 10 * shape.steps, "batch_tokens": shape.batch_tokens}
    how = {"precision": "bfloat16", "compile": "on" if DEVICE == "cuda" else "off"}
    return {
        f"penwright {name}": {
            "task": "generate",
            "data": {"train": [str(text)], "held_out": 0.02},
            "tokenizer": {"type": "characters"},
            "model": model,
            "optimizer": {"type": optimizer},
            "training": {**steps, **how},
        }
        for name, (model, optimizer) in models.items()
    }


def write_text(path: Path, shape: TrainShape) -> None:
    """Write random characters, each of which is a token. Every token of the vocabulary occurs."""
    letters = np.array(list(islice(chain(*LETTERS), shape.vocab_size - SPECIALS - 1)))
    random = np.random.default_rng(1)
    drawn = np.concatenate([random.permutation(letters), random.choice(letters, shape.n_tokens)])
    drawn[999::1000] = ord("\n")
    missing = np.setdiff1d(letters, drawn)  # line breaks may have replaced the only occurrence
    drawn = np.concatenate([missing, drawn])
    path.write_text("".join(map(chr, drawn.tolist())), encoding="utf-8")


def nanogpt(checkout: Path, shape: TrainShape, folder: Path) -> Trained:
    """Run nanoGPT's train.py on random tokens, without its evaluation before the first step."""
    shutil.copytree(checkout, folder, ignore=shutil.ignore_patterns(".git", "assets"))
    data = folder / "data" / "random"
    data.mkdir()
    random = np.random.default_rng(1)
    for name, size in (("train", shape.n_tokens), ("val", 10 * shape.context)):
        random.integers(shape.vocab_size, size=size).astype(np.uint16).tofile(data / f"{name}.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": shape.vocab_size}))
    script = folder / "train.py"
    content, condition = script.read_text(encoding="utf-8"), "if iter_num % eval_interval == 0 and"
    assert condition in content, "this version of train.py evaluates under another condition"
    script.write_text(content.replace(condition, "if iter_num and iter_num % eval_interval == 0 and"), encoding="utf-8")
    sizes = {"n_layer": shape.n_layers, "n_head": shape.n_heads, "n_embd": shape.d_model, "block_size": shape.context}
    how = {"device": DEVICE, "dtype": "bfloat16", "compile": DEVICE == "cuda"}
    budget = {"max_iters": shape.steps - 1, "eval_interval": 10 * shape.steps, "eval_iters": 1, "log_interval": 1}
    batches = {"dataset": "random", "batch_size": shape.rows, "gradient_accumulation_steps": 1}
    options = {"bias": True, "dropout": 0.0, **sizes, **batches, **budget, **how}
    finished = run([sys.executable, "train.py", *(f"--{name}={value}" for name, value in options.items())], folder)
    milliseconds = [time for _, time in finished.found(NanoGPT.MILLISECONDS)]
    (_, millions), *_ = finished.found(r"number of parameters: ([\d.]+)M")
    return Trained([time / 1000 for time in milliseconds[shape.settling :]], 1e6 * millions)


def ours(settings: Table, shape: TrainShape, caches: Path, *, profiles: bool) -> Trained:
    """Train in a new process. Our processes share compiled code, which saves time before the timed steps."""
    caches.mkdir(mode=0o700, exist_ok=True)
    given = json.dumps({"settings": settings, "shape": shape._asdict(), "profiles": profiles})
    command = [sys.executable, "-m", "benchmarks.gpu", "ours", given]
    finished = run(command, Path(__file__).parent.parent, shared=caches)
    found = [line for _, line in finished.lines if line.startswith('{"seconds"')]
    if not found:
        raise SystemExit("\n".join(["no result:", *(line for _, line in finished.lines[-30:])]))
    return Trained(**json.loads(found[-1]))


class _Measured(Exception):
    """An exception that ends the training after the last timed step, without an evaluation."""


class _Stopwatch(Observer):
    def __init__(self, shape: TrainShape, *, profiles: bool):
        self.shape, self.ends = shape, list[float]()
        self.profiler = Profiler() if profiles else None
        self.lines = list[str]()
        self.n_parameters = 0

    def stepped(self, trainer: Trainer, report: StepReport) -> None:
        shape = self.shape
        self.ends.append(perf_counter())
        # the start of a text is not a target, so a step may have slightly fewer targets than tokens
        assert 0.99 * shape.batch_tokens <= report.n_targets <= shape.batch_tokens, f"{report.n_targets} targets"
        if report.step == 1:
            parameters = dict(trainer.model.named_parameters())
            assert any(len(each) == shape.vocab_size for each in parameters.values()), "wrong size of the vocabulary"
            self.n_parameters = sum(each.numel() for name, each in parameters.items() if ".positions." not in name)
        last = shape.steps - 1
        if self.profiler and report.step == last:
            self.profiler.start()
        elif self.profiler and report.step == last + PROFILED["train"]:
            self.lines = self.profiler.stop(PROFILED["train"])
        if report.step == last + (PROFILED["train"] if self.profiler else 0):
            raise _Measured


def train_here(settings: Table, shape: TrainShape, *, profiles: bool) -> None:
    """Train in this process, and print what was measured as JSON."""
    watch = _Stopwatch(shape, profiles=profiles)
    with TemporaryDirectory() as folder, suppress(_Measured):
        training.train(plan.prepare(settings), Path(folder) / "run", [watch])
    ends = watch.ends[shape.settling - 1 : shape.steps - 1]
    seconds = [after - before for before, after in pairwise(ends)]
    print(json.dumps(Trained(seconds, watch.n_parameters, watch.lines)._asdict()), flush=True)


# --- decoding


class DecodeShape(NamedTuple):
    """A model that generates text, and how much it generates."""

    model: Table
    vocab_size: int
    n_rows: tuple[int, ...] = (1,)
    n_new: int = 256
    n_bytes: int = 4 * 10**9  # size of the copy that measures the bandwidth


SMALL: Table = {"size": "medium", "context_length": 512}
SHAPES = {
    "llama3-1b": DecodeShape({"size": "llama3-1b"}, 128_256, (1, 16)),
    "writer, 12 M": DecodeShape(SMALL, 4096),
}
NARROW: Table = {"d_model": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_ff": 128, "context_length": 256}
TINY_SHAPES = {
    "llama3-1b": DecodeShape({"size": "llama3-1b", **NARROW}, 304, (1, 16), 130, 10**7),
    "writer, 12 M": DecodeShape({**SMALL, **NARROW}, 304, (1,), 130, 10**7),
}


def decode(shapes: dict[str, DecodeShape], only: Sequence[str], *, static: bool, profiles: bool, command: str) -> None:
    """Generate with each model, beside transformers' Llama of the same shape, and write the result."""
    peak = bandwidth(next(iter(shapes.values())).n_bytes)
    release()
    results = []
    for name in chosen(shapes, only):
        shape = shapes[name]
        for title, n_rows, n_bytes, rates in chain(
            penwright_rates(shape, profiles=profiles), transformers_rates(shape, static=static)
        ):
            about = f"{title}, {name}, {n_rows} {'row' if n_rows == 1 else 'rows'}"
            print(f"{about}: {median(rates):,.1f} tokens/s", flush=True)
            share = [100 * n_bytes * rate / peak for rate in rates] if n_rows == 1 else []
            figures = {"tokens/s": rates, "weights, GB": [n_bytes / 1e9], "share of the bandwidth, %": share}
            results.append(Result(about, figures))
        release()
    about = f"{shapes}. Measured bandwidth, bytes read and written: {peak / 1e9:,.0f} GB/s. Median of the rounds."
    write_result("gpu_decode", command, results, remark(about))


Rates = Iterator[tuple[str, int, int, list[float]]]  # the title, rows, bytes of the weights, tokens/s of each round


def randomize(model: nn.Module) -> int:
    """Draw all matrices at random; return the bytes of all weights, which a decoding step reads once."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.02)
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def penwright_rates(shape: DecodeShape, *, profiles: bool) -> Rates:
    """Yield the speed of Penwright's Generator."""
    letters = "".join(map(chr, islice(chain(*LETTERS), shape.vocab_size - SPECIALS)))
    tokenizer = train_tokenizer("characters", [letters])
    assert tokenizer.vocab_size == shape.vocab_size, f"{tokenizer.vocab_size} tokens"
    with torch.device(DEVICE):
        model = DecoderOnly(shape.vocab_size, ModelSettings(**shape.model)).eval()
    model.to(DEVICE)
    to_precision(model, "bfloat16")
    n_bytes = randomize(model)
    fuse(model)  # as `penwright.load` does
    disable_cudnn_attention()
    generator = Generator(model, tokenizer)
    for n_rows in shape.n_rows:
        prompts = [letters[PROMPT * row : PROMPT * (row + 1)] for row in range(n_rows)]

        def generate(prompts: Sequence[str] = prompts) -> int:
            done = generator.generate(prompts, temperature=0.0, max_new_tokens=shape.n_new)
            return sum(len(each.tokens) for each in done)

        n_tokens = generate()
        yield "penwright", n_rows, n_bytes, [n_tokens / each for each in seconds_of(generate, 0, 3)]
        if profiles:
            print(*profile_steps(generator, prompts, shape.n_new), sep="\n", flush=True)


def profile_steps(generator: Generator, prompts: Sequence[str], n_new: int) -> list[str]:
    """Return the profile of decoding steps in the middle of a text, and the times of all steps."""
    batch, profiler, times, lines = generator.pool(len(prompts)), Profiler(), list[float](), list[str]()
    for prompt in prompts:
        batch.join(generator.requests(prompt, {"temperature": 0.0, "max_new_tokens": n_new})[0])
    first = n_new // 3
    while batch.busy:
        if len(times) == first:
            profiler.start()
        begin = perf_counter()
        batch.step()
        times.append(1000 * (perf_counter() - begin))
        if len(times) == first + PROFILED["decode"]:
            lines = profiler.stop(PROFILED["decode"])
    slow = [(number, round(time, 2)) for number, time in enumerate(times) if time > 2 * median(times)]
    return [*lines, f"median {median(times):.3f} ms a step; (step, ms) of steps over twice the median: {slow}"]


def transformers_rates(shape: DecodeShape, *, static: bool) -> Rates:
    """Yield the speed of transformers' `generate`; with `static`, also with its static cache, which it compiles."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.backends.cuda.enable_cudnn_sdp(True)
    settings = ModelSettings(**shape.model)
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=settings.d_model,
        intermediate_size=settings.d_ff,
        num_hidden_layers=settings.n_layers,
        num_attention_heads=settings.n_heads,
        num_key_value_heads=settings.n_kv_heads,
        max_position_embeddings=settings.context_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",  # type: ignore[call-arg]  # undeclared
    )
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config).eval()
    model.to(device=DEVICE, dtype=torch.bfloat16)
    n_bytes = randomize(model)
    for n_rows in shape.n_rows:
        tokens = torch.randint(shape.vocab_size, (n_rows, PROMPT), device=DEVICE)
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        options: Table = {"max_new_tokens": shape.n_new, "do_sample": False, "pad_token_id": 0}
        caches = {"transformers": options}
        if static:
            caches["transformers, static cache"] = {**options, "cache_implementation": "static"}
        for title, given in caches.items():

            def generate(inputs: Table = inputs, given: Table = given) -> int:
                with torch.inference_mode():
                    written: Any = model.generate(**inputs, **given)
                return int(written[:, PROMPT:].numel())

            n_tokens = generate()
            yield title, n_rows, n_bytes, [n_tokens / each for each in seconds_of(generate, 0, 2)]


# --- the command


def chosen(titles: dict[str, Any], only: Sequence[str]) -> list[str]:
    """Return the titles that contain one of these words; without words, return all."""
    return [title for title in titles if not only or any(word in title for word in only)]


def remark(about: str) -> str:
    """Return what the result says about the setup."""
    where = "" if DEVICE == "cuda" else "No GPU: measured on the CPU, not compiled. "
    return where + re.sub(r"\s+", " ", about)


def main() -> None:
    """Run the command of the command line."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    trains, decodes, inner = (commands.add_parser(name) for name in ("train", "decode", "ours"))
    trains.add_argument("checkout", type=Path)
    trains.add_argument("--batch", type=int)
    trains.add_argument("--steps", type=int)
    decodes.add_argument("--static", action="store_true")
    inner.add_argument("given")
    for each in (trains, decodes):
        each.add_argument("--only", type=lambda text: text.split(","), default=[])
        each.add_argument("--profile", action="store_true")
        each.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    command = f"python -m benchmarks.gpu {' '.join(sys.argv[1:])}"
    if options.command == "ours":
        given = json.loads(options.given)
        train_here(given["settings"], TrainShape(**given["shape"]), profiles=given["profiles"])
    elif options.command == "train":
        shape = TINY if options.tiny else TrainShape()
        shape = shape._replace(rows=options.batch or shape.rows, steps=options.steps or shape.steps)
        command = command.replace(str(options.checkout), options.checkout.name)
        train(options.checkout, shape, options.only, profiles=options.profile, command=command)
    else:
        shapes = TINY_SHAPES if options.tiny else SHAPES
        decode(shapes, options.only, static=options.static, profiles=options.profile, command=command)


if __name__ == "__main__":
    main()
