"""One engine in its own process, so that thread pools do not compete: it reads a job per line and prints its texts.

`benchmarks/engines.py` starts it with the engine as JSON. With "cold" as the second argument, it generates one token
and exits.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, NamedTuple, Protocol
from urllib.error import URLError
from urllib.request import Request, urlopen

THREADS = min(2, len(os.sched_getaffinity(0)))  # one if the benchmark is pinned to a core, as with `taskset -c 0`
LEAST_SECONDS = 0.5  # repeat a short job for this long: threads of the previous engine may still be spinning
Tokens = Sequence[Sequence[int]]


class Engine(NamedTuple):
    """An engine, the folder of its model, and its settings."""

    kind: str  # a key of KINDS
    task: str
    folder: str
    precision: str = "float32"
    workers: int = 1  # CTranslate2 divides its threads among them; ours are processes
    threads: int = THREADS
    program: Sequence[str] = ()  # the command of a server, or of another Python
    options: Mapping[str, str] = {}  # environment variables of ours, properties of OpenVINO


class Job(NamedTuple):
    """Texts of equal length to continue or translate, as tokens; each gets exactly `n_new` tokens."""

    texts: Tokens
    n_new: int
    beam_size: int = 1


class Writer(Protocol):
    """A loaded engine."""

    def write(self, job: Job) -> list[str]:
        """Return the best text for each text of the job."""


class Ours:
    """Penwright, through the functions that its Generator and Translator call."""

    def __init__(self, engine: Engine):
        from penwright import spin_longer

        spin_longer()  # before torch is imported, as the commands do
        import torch
        from safetensors.torch import load_file

        from penwright.config import ModelSettings
        from penwright.decoding.engine import DecodeEngine
        from penwright.devices import keep_freed_memory
        from penwright.model import make_model
        from penwright.model.fused import fuse
        from penwright.model.quantized import to_precision
        from penwright.model.weights import load_weights
        from penwright.tokenizers import Tokenizer

        torch.set_num_threads(engine.threads)
        keep_freed_memory()
        folder, task = Path(engine.folder), engine.task
        assert task in ("generate", "translate")
        settings = ModelSettings(**json.loads((folder / "settings.json").read_text(encoding="utf-8")))
        self.tokenizer = Tokenizer.load(folder / "tokenizer.json")
        self.model = make_model(task, self.tokenizer.vocab_size, settings).eval()
        load_weights(self.model, load_file(folder / "model.safetensors"), str(folder))
        to_precision(self.model, engine.precision)
        fuse(self.model)
        self.engine = DecodeEngine(self.model)

    def write(self, job: Job) -> list[str]:
        from penwright.model.transformer import DecoderOnly

        written = self._continue(job) if isinstance(self.model, DecoderOnly) else self._translate(job)
        return [self.tokenizer.decode(tokens) for tokens in written]

    def _continue(self, job: Job) -> Tokens:
        """Greedily, without the end token."""
        from penwright.config import DecodingSettings
        from penwright.decoding.continuous_batching import ContinuousBatch
        from penwright.decoding.requests import Request, plan_of

        length = {"min_new_tokens": job.n_new, "max_new_tokens": job.n_new}
        plan = plan_of(self.tokenizer, DecodingSettings(temperature=0, **length), [], self.tokenizer.end_ids)
        requests = [Request("", tokens, plan) for tokens in job.texts]
        batch = ContinuousBatch(self.model, self.tokenizer, self.engine, len(requests))
        for request in requests:
            batch.join(request)
        while batch.busy:
            batch.step()
        return [request.draft.tokens for request in requests]

    def _translate(self, job: Job) -> Tokens:
        import torch

        from penwright.decoding.batches import TargetBatch
        from penwright.decoding.beam_search import beam_search
        from penwright.decoding.hypotheses import BeamSettings
        from penwright.decoding.sampling.topk import TokenSelector
        from penwright.decoding.sampling.utf8 import Utf8Rules

        end_id, settings = self.tokenizer.end_id, BeamSettings(job.beam_size, banned=(self.tokenizer.end_id,))
        sources = [[*source, end_id] for source in job.texts]
        with torch.inference_mode():
            writing = TargetBatch(
                self.model,
                sources,
                start_id=self.tokenizer.start_id,
                max_new_tokens=job.n_new,
                engine=self.engine,
            )
            selector = TokenSelector(Utf8Rules.free(self.tokenizer.vocab_size, (end_id,)), self.engine.masked_topk)
            found = beam_search(writing, [job.n_new] * len(sources), settings, end_id=end_id, selector=selector)
        return [hypotheses[0].tokens for hypotheses in found]


class CTranslate2:
    """CTranslate2 with one worker of two threads, or with two workers of one thread, which take half a batch each."""

    def __init__(self, engine: Engine):
        import ctranslate2

        from penwright.tokenizers import Tokenizer

        self.tokenizer = Tokenizer.load(Path(engine.folder) / "tokenizer.json")
        self.pieces, self.workers = self.tokenizer.pieces, engine.workers
        self.ids = {piece: token for token, piece in enumerate(self.pieces)}
        opened = ctranslate2.Generator if engine.task == "generate" else ctranslate2.Translator
        compute = {"float32": "float32", "int8": "int8_float32"}[engine.precision]
        self.engine = opened(
            engine.folder, compute_type=compute, inter_threads=engine.workers, intra_threads=THREADS // engine.workers
        )

    def write(self, job: Job) -> list[str]:
        texts = [[self.pieces[token] for token in text] for text in job.texts]
        rows = max(1, len(texts) // self.workers)
        if hasattr(self.engine, "translate_batch"):
            length = {"min_decoding_length": job.n_new, "max_decoding_length": job.n_new}
            done = self.engine.translate_batch(texts, beam_size=job.beam_size, max_batch_size=rows, **length)
            return [self._text(result.hypotheses[0]) for result in done]
        length = {"min_length": job.n_new, "max_length": job.n_new}
        done = self.engine.generate_batch(texts, max_batch_size=rows, include_prompt_in_result=False, **length)
        return [self._text(result.sequences[0]) for result in done]

    def _text(self, pieces: Sequence[str]) -> str:
        return self.tokenizer.decode([self.ids[piece] for piece in pieces])


class LlamaCpp:
    """The server of llama.cpp, called without the network, with one slot per text."""

    def __init__(self, engine: Engine):
        self.path = str(Path(engine.folder) / "model.gguf")
        self.servers: dict[int, Any] = {}

    def write(self, job: Job) -> list[str]:
        request = {"n_predict": job.n_new, "ignore_eos": True, "temperature": 0, "cache_prompt": False}
        answers: list[str] = []
        server = self._server(len(job.texts))
        server.handle_completions(json.dumps({"prompt": job.texts, **request}), answers.append)
        return [choice["text"] for choice in json.loads(answers[0])["choices"]]

    def _server(self, rows: int) -> Any:
        import xllamacpp

        if rows not in self.servers:
            parameters = xllamacpp.CommonParams()
            parameters.model.path = self.path
            parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = THREADS
            parameters.n_parallel, parameters.n_ctx, parameters.warmup, parameters.verbosity = (
                rows,
                256 * rows,
                False,
                -1,
            )
            self.servers[rows] = xllamacpp.Server(parameters)
        return self.servers[rows]


class LlamaServer:
    """The `llama-server` of a fork of llama.cpp, called over HTTP on this machine, with one slot per text."""

    def __init__(self, engine: Engine):
        self.folder = engine.folder  # where it writes its log
        self.command = [*engine.program, "--model", f"{engine.folder}/model.gguf", "--threads", str(THREADS)]
        self.addresses: dict[int, str] = {}

    def write(self, job: Job) -> list[str]:
        request = {"n_predict": job.n_new, "ignore_eos": True, "temperature": 0, "cache_prompt": False}
        body = json.dumps({"prompt": job.texts, **request}).encode()
        url = f"{self._address(len(job.texts))}/completion"
        with urlopen(Request(url, body, {"Content-Type": "application/json"})) as response:
            answers = json.load(response)
        return [answer["content"] for answer in (answers if isinstance(answers, list) else [answers])]

    def _address(self, rows: int) -> str:
        if rows not in self.addresses:
            with socket.socket() as found:
                found.bind(("127.0.0.1", 0))
                port = found.getsockname()[1]
            slots = ["--parallel", str(rows), "--ctx-size", str(256 * rows), "--no-warmup"]
            command = ["setpriv", "--pdeathsig", "KILL", *self.command, *slots]  # the server ends with this process
            command += ["--host", "127.0.0.1", "--port", str(port)]
            quiet = subprocess.DEVNULL
            server = subprocess.Popen(command, cwd=self.folder, stdout=quiet, stderr=quiet)
            self.addresses[rows] = f"http://127.0.0.1:{port}"
            _wait_until_ready(f"{self.addresses[rows]}/health", server)
        return self.addresses[rows]


def _wait_until_ready(url: str, server: "subprocess.Popen[bytes]") -> None:
    while server.poll() is None:
        try:
            urlopen(url).close()
            return
        except URLError:  # refused, or 503 while the model is being loaded
            sleep(0.005)
    raise SystemExit(f"{server.args} ended with status {server.returncode}")


class OpenVino:
    """OpenVINO GenAI, in an environment without Penwright's own dependencies."""

    def __init__(self, engine: Engine):
        from openvino_genai import LLMPipeline
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(Path(engine.folder) / "tokenizer.json"))
        self.pipeline = LLMPipeline(engine.folder, "CPU", INFERENCE_NUM_THREADS=engine.threads, **engine.options)

    def write(self, job: Job) -> list[str]:
        from numpy import array, ones_like
        from openvino import Tensor
        from openvino_genai import GenerationConfig, TokenizedInputs

        tokens = array(job.texts)
        settings = GenerationConfig(max_new_tokens=job.n_new, ignore_eos=True, do_sample=False)
        written = self.pipeline.generate(TokenizedInputs(Tensor(tokens), Tensor(ones_like(tokens))), settings)
        return self.tokenizer.decode_batch(written.tokens)


KINDS: dict[str, Callable[[Engine], Writer]] = {
    "ours": Ours,
    "ctranslate2": CTranslate2,
    "llama.cpp": LlamaCpp,
    "llama-server": LlamaServer,
    "openvino": OpenVino,
}


def serve(writer: Writer) -> None:
    """Answer each job of standard input with its median seconds and its texts."""
    for line in sys.stdin:
        job, times, begin = Job(*json.loads(line)), [], perf_counter()
        while not times or perf_counter() - begin < LEAST_SECONDS:
            started = perf_counter()
            texts = writer.write(job)
            times.append(perf_counter() - started)
        print(json.dumps([median(times), texts]), flush=True)


if __name__ == "__main__":
    loaded = KINDS[json.loads(sys.argv[1])[0]](Engine(*json.loads(sys.argv[1])))
    if sys.argv[2:] == ["cold"]:
        loaded.write(Job(json.loads(sys.stdin.readline()), 1))
        print("first token", flush=True)
        os._exit(0)  # the time to shut down does not count
    serve(loaded)
