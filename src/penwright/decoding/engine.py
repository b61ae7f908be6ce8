"""The decoding engine: it processes prompts or sources, then runs one step per token, compiled if possible."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from math import inf
from time import monotonic

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from penwright.decoding import cuda_graphs
from penwright.decoding.ahead_of_time import Compiled, Input, ModelPart, compile_ahead, is_compiled, key_of, load
from penwright.decoding.exported import (
    MOST_TARGETS,
    DecodeStep,
    EncodeStep,
    Inputs,
    Part,
    PromptStep,
    TopKStep,
    as_layers,
    example_of,
    is_near,
    step_logits,
)
from penwright.decoding.sampling.topk import COMPILES, MAX_K, MaskedTopK, masked_topk
from penwright.decoding.sampling.utf8 import Situations, Utf8Rules
from penwright.devices import FEWEST_ALONE, BackoffThreads
from penwright.errors import Say, do_nothing, say_nothing
from penwright.model.block import Encoded
from penwright.model.cache import Cache
from penwright.model.quantized import Int8Linear
from penwright.model.transformer import DecoderOnly, EncoderDecoder
from penwright.native import toolchain

LOOK_EVERY = 5.0  # seconds between checks for code that another process has compiled
WORTH_THREADS: dict[Part, float] = {  # minimum number of parameters for multithreading; small models leave threads idle
    "one": 5_000_000,
    "many": 2_000_000,
    "prompt": 5_000_000,
    "sources": 2_000_000,
    "best": inf,
}

KINDS: dict[Part, type[ModelPart]] = {  # the module for each part of a model; the default is DecodeStep
    "prompt": PromptStep,
    "sources": EncodeStep,
    "best": TopKStep,
}


class DecodeEngine:
    """The decoding steps of a model. They run compiled code if there is any for models of this shape."""

    def __init__(self, model: DecoderOnly | EncoderDecoder):
        self._model, self._step = model, DecodeStep(model)
        self._graphs = cuda_graphs.StepGraphs(self._step)
        self._loaded: dict[Part, Compiled | None] = {}
        self._threads: dict[int, BackoffThreads] = {}  # threads of uncompiled steps, by the number of rows
        self._looked = monotonic()
        self.on_first_use: Callable[[], None] = do_nothing  # called once, before the first text is decoded
        self.watch: Callable[[], None] = do_nothing  # called before each step; may raise an exception to stop decoding

    @contextmanager
    def watched(self, watch: Callable[[], None]) -> Iterator[None]:
        """Call `watch` before each step inside the `with` block."""
        self.watch = watch
        try:
            yield
        finally:
            self.watch = do_nothing

    def _threads_of(self, n_rows: int) -> BackoffThreads:
        if n_rows not in self._threads:
            part: Part = "one" if n_rows == 1 else "many"
            is_brief = part == "one" and isinstance(self._model.output, Int8Linear)  # several threads may be slower
            n_threads = _threads(_module(self._model, part), part)
            self._threads[n_rows] = BackoffThreads(n_threads, FEWEST_ALONE if is_brief else 0)
        return self._threads[n_rows]

    def load(self) -> None:
        """Load all compiled code now instead of on first use."""
        for part in _parts(self._model):
            self._compiled(part, next(self._model.parameters()).device)

    def refresh(self) -> None:
        """Start using the parts of the model that were compiled since the last call.

        Call this only between texts, because compiled code rounds differently.
        """
        on_first_use, self.on_first_use = self.on_first_use, do_nothing
        on_first_use()
        if monotonic() < self._looked + LOOK_EVERY:
            return
        self._looked = monotonic()
        for part in [part for part, compiled in self._loaded.items() if compiled is None]:
            del self._loaded[part]

    def __call__(
        self, tokens: Int[Tensor, " rows"], cache: Cache, encoded: Encoded | None = None
    ) -> Float[Tensor, "rows vocab_size"]:
        """Append a token to each row of the cache; return the logits of the next tokens."""
        self.watch()
        cache.make_room(1)
        part: Part = "one" if len(tokens) == 1 else "many"
        compiled, origins = self._compiled(part, tokens.device), cache.origins
        if compiled and encoded and len(tokens) > 1 and origins is None:
            origins = cache.own_rows(cache.room)  # compiled steps always take `origins`
        if compiled:
            logits: Tensor = compiled(*_step_inputs(tokens, cache, encoded, origins))[0]
        elif tokens.device.type in cuda_graphs.DEVICES:
            logits = self._graphs(_step_inputs(tokens, cache, encoded, origins))
        else:
            with self._threads_of(len(tokens)):
                logits = step_logits(self._model, tokens, cache, encoded)
        cache.advance(1)
        return logits

    def has_compiled_prefill(self, device: torch.device) -> bool:
        """Return whether prefill() runs compiled code, which is faster than a plain forward pass of the model."""
        return self._compiled("prompt", device) is not None

    def prefill(self, tokens: Int[Tensor, " targets"], cache: Cache) -> Float[Tensor, "1 vocab_size"]:
        """Append any number of tokens to a single row; return the logits after the last one."""
        *_, last = (self._prefill_chunk(chunk, cache) for chunk in tokens.split(MOST_TARGETS))
        return last

    def _prefill_chunk(self, tokens: Int[Tensor, " targets"], cache: Cache) -> Float[Tensor, "1 vocab_size"]:
        if len(tokens) == 1:  # compiled prefill needs at least two tokens
            return self(tokens, cache)
        self.watch()
        cache.make_room(len(tokens))
        inputs = (tokens.contiguous(), cache.lengths, [tensor for layer in cache.layers for tensor in layer.cached])
        compiled = self._compiled("prompt", tokens.device)
        logits: Tensor = compiled(*inputs)[0] if compiled else PromptStep(self._model)(*inputs)
        cache.advance(len(tokens))
        return logits

    def encode(self, sources: Int[Tensor, "sources length"], is_token: Bool[Tensor, "sources length"]) -> Encoded:
        """Encode the sources for the decoder of a translator."""
        self.refresh()
        compiled, n = self._compiled("sources", sources.device), len(sources)
        if compiled is None:
            assert isinstance(self._model, EncoderDecoder)
            return self._model.encode(sources, is_token).contiguous()
        copies = 2 if n == 1 else 1  # the compiled encoder needs at least two sources
        layers = [x[:n] for x in compiled(sources.repeat(copies, 1), is_token.repeat(copies, 1))]
        return Encoded(as_layers(layers), is_token)

    def masked_topk(
        self, logits: Float[Tensor, "rows vocab_size"], utf8_rules: Utf8Rules, situations: Situations, n: int
    ) -> MaskedTopK:
        """Return the n likeliest allowed tokens of each row. This may overwrite the logits."""
        compiled = self._compiled("best", logits.device) if n <= MAX_K else None
        if compiled is None:
            return masked_topk(logits, utf8_rules, situations, n)
        values, indices, logsumexp = compiled(logits.contiguous(), utf8_rules.bits, torch.from_numpy(situations))
        return MaskedTopK(values[:, :n], indices[:, :n], logsumexp)

    def logsumexp(self, logits: Float[Tensor, "rows vocab_size"]) -> Float[Tensor, " rows"]:
        """Return the logsumexp of each row, without changing the logits; log-probabilities are logits minus this."""
        if self._compiled("best", logits.device) is None:
            return logits.logsumexp(-1)
        free = Utf8Rules.free(logits.shape[1])
        return self.masked_topk(logits, free, np.zeros(len(logits), np.int64), 1).logsumexp

    def _compiled(self, part: Part, device: torch.device) -> Compiled | None:
        if part not in self._loaded:
            part_module = _module(self._model, part)
            self._loaded[part] = load(part_module, part, _threads(part_module, part)) if device.type == "cpu" else None
        return self._loaded[part]


def _step_inputs(
    tokens: Int[Tensor, " rows"], cache: Cache, encoded: Encoded | None, origins: Int[Tensor, "rows room"] | None
) -> Inputs:
    """Return the input tensors of a decoding step."""
    cached, tokens = [tensor for layer in cache.layers for tensor in layer.cached], tokens.contiguous()
    if encoded is None:
        return (tokens, cache.lengths, cached, None, [], None)
    n_sources = encoded.is_token.shape[0]
    rows = (tokens.view(n_sources, -1), cache.lengths.view(n_sources, -1))
    origins = None if origins is None else origins.view(n_sources, -1, origins.shape[1])
    return (*rows, cached, origins, [x for layer in encoded.layers for x in layer], encoded.is_token)


def compile_steps(model: DecoderOnly | EncoderDecoder, say: Say = say_nothing) -> None:
    """Compile the decoding steps for models of this shape and precision, unless this has been done already.

    This takes up to a minute for each part of the model, once per machine. Later processes reuse the compiled code,
    whatever the weights.
    Raises PenwrightError if the results of the compiled code differ from those of the model.
    """
    toolchain.require_compiler()
    for number, part in enumerate(_parts(model), 1):
        part_module = _module(model, part)
        n_threads = _threads(part_module, part)
        if not is_compiled(part_module, part, n_threads):
            say(f"compiling part {number} of {len(_parts(model))} ({part}): about a minute, once per machine")
            graph, inputs = exported(model, part), example_of(model, part).drawn()
            compile_ahead(part_module, part, n_threads, graph, partial(_is_close, graph.module(), inputs))


def _is_close(graph: nn.Module, inputs: Sequence[Input], compiled: Compiled) -> bool:
    """Return whether the compiled code gives the same results as its graph."""
    with torch.no_grad():
        actual, expected = compiled(*deepcopy(inputs)), graph(*inputs)  # deep copies, since a step modifies its inputs
    expected = expected if isinstance(expected, Tensor) else expected[0]
    return is_near(actual[0], expected)


def are_steps_compiled(model: nn.Module) -> bool:
    """Return whether all steps are compiled for the current code, version of torch and number of threads."""
    if not isinstance(model, DecoderOnly | EncoderDecoder):
        return False
    return all(is_compiled(_module(model, part), part, _threads(_module(model, part), part)) for part in _parts(model))


def shape_key(model: DecoderOnly | EncoderDecoder) -> str:
    """Return a key that identifies the model's shape and precision, the code and the machine."""
    return key_of(_module(model, "one"), torch.get_num_threads())


def _parts(model: DecoderOnly | EncoderDecoder) -> tuple[Part, ...]:
    others: tuple[Part, ...] = ("prompt",) if isinstance(model, DecoderOnly) else ("sources",)
    parts: tuple[Part, ...] = ("one", "many", *others)
    return (*parts, "best") if COMPILES else parts


def _module(model: DecoderOnly | EncoderDecoder, part: Part) -> ModelPart:
    return KINDS.get(part, DecodeStep)(model)


def _threads(part_module: ModelPart, part: Part) -> int:
    return torch.get_num_threads() if n_decoder_parameters(part_module.model) >= WORTH_THREADS[part] else 1


def n_decoder_parameters(model: DecoderOnly | EncoderDecoder) -> int:
    """Return the number of parameters that each decoding step reads, excluding embeddings and the output layer."""
    return sum(x.numel() for x in model.decoder.state_dict().values())


def exported(model: DecoderOnly | EncoderDecoder, part: Part) -> torch.export.ExportedProgram:
    """Export a part of the model as a graph."""
    example = example_of(model, part)
    with torch.no_grad():
        return torch.export.export(_module(model, part), example.inputs, dynamic_shapes=example.shapes, strict=False)
