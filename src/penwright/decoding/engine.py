"""The step that writing repeats for each token, and the reading before it: as they are, or compiled ahead of time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from math import inf

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from penwright.decoding import cuda_graphs
from penwright.decoding.ahead_of_time import Compiled, Input, ModelPart, compile_ahead, forget, is_kept, load
from penwright.decoding.export_inputs import MOST_TARGETS, Inputs, Part, example_of, n_several
from penwright.decoding.exported import (
    DecodeStep,
    EncodeStep,
    MultiBeamStep,
    MultiTokenStep,
    PromptStep,
    TopKStep,
    as_layers,
)
from penwright.decoding.sampling.beam_rules import BeamRule, BeamStep
from penwright.decoding.sampling.next_token import Rule, Written
from penwright.decoding.sampling.topk import COMPILES, MOST, MaskedTopK, likeliest
from penwright.decoding.sampling.utf8 import Situations, Utf8Rules
from penwright.errors import PenwrightError, Say, say_nothing
from penwright.model.block import Encoded
from penwright.model.cache import Cache
from penwright.model.decoder_only import DecoderOnly
from penwright.model.encoder_decoder import EncoderDecoder
from penwright.native import toolchain

READ_TOGETHER = 2  # sources at least: a compiled reading takes one for a special case
LITTLE = 30_000_000  # parameters: beside a larger step, what Python does after it is little
NEAR = 0.05  # what rounding to int8 in another order may change: of the length of a row of logits
NEAR_NATS = 0.5  # and in log-probabilities, which are no such sum of many: what is wrong is further off
WORTH_THREADS: dict[Part, float] = {  # parameters: in a smaller step threads wait for each other after every product
    "one": 5_000_000,
    "many": 2_000_000,
    "several": 5_000_000,
    "beams": 2_000_000,
    "prompt": 5_000_000,
    "sources": 2_000_000,
    "best": inf,
}

KINDS: dict[Part, type[ModelPart]] = {  # those that are no Step
    "several": MultiTokenStep,
    "beams": MultiBeamStep,
    "prompt": PromptStep,
    "sources": EncodeStep,
    "best": TopKStep,
}


class DecodeEngine:
    """Appends a token to each row of a cache, by a compiled step where one was kept for models of this shape."""

    def __init__(self, model: DecoderOnly | EncoderDecoder):
        self._model, self._step = model, DecodeStep(model)
        self._graphs = cuda_graphs.StepGraphs(self._step)
        self._known: dict[Part, Compiled | None] = {}
        self.watch: Callable[[], None] = _nothing  # called before each step; what it raises ends the work

    @contextmanager
    def watched(self, watch: Callable[[], None]) -> Iterator[None]:
        """Have this called before each step inside."""
        self.watch = watch
        try:
            yield
        finally:
            self.watch = _nothing

    @property
    def n_threads(self) -> int:
        """Those that a step of several rows is quickest with."""
        return _threads(self._step, "many")

    def load(self) -> None:
        """Have everything compiled ready, which else is read when it is first needed."""
        for part in _parts(self._model):
            self._compiled(part, next(self._model.parameters()).device)

    def __call__(
        self, tokens: Int[Tensor, " rows"], cache: Cache, encoded: Encoded | None = None
    ) -> Float[Tensor, "rows vocab_size"]:
        """The logits after these tokens."""
        self.watch()
        cache.make_room(1)
        compiled = self._compiled("one" if len(tokens) == 1 else "many", tokens.device)
        origins = cache.origins
        if compiled and encoded and len(tokens) > 1 and origins is None:
            origins = cache.own_rows(cache.room)  # compiled for beams, whether there are any or not
        inputs = _inputs(tokens, cache, encoded, origins)
        if compiled:
            logits: Tensor = compiled(*inputs)[0]
        else:
            logits = self._graphs(inputs) if tokens.device.type in cuda_graphs.DEVICES else self._step(*inputs)
        cache.advance(1)
        return logits

    def several(
        self, token: Int[Tensor, "1"], cache: Cache, encoded: Encoded | None, rule: Rule
    ) -> tuple[Written, ...]:
        """Tokens that come after this one of the only row: it and all but the last are in the cache then.

        It gives no tokens where nothing is compiled for that, or the cache has no room.
        """
        compiled = self._compiled("several", token.device)
        n_tokens = n_several(self._model)
        if compiled is None or cache.longest + n_tokens > cache.capacity:
            return ()
        self.watch()
        cache.make_room(n_tokens)
        *row, _, source, padding = _inputs(token, cache, encoded, None)
        log_probs, tokens = compiled(*row, source, padding, rule.tensors(n_tokens))
        cache.advance(n_tokens)
        return tuple(map(Written, tokens.tolist(), log_probs.tolist()))

    def beams(
        self, tokens: Int[Tensor, " beams"], cache: Cache, encoded: Encoded, rule: BeamRule
    ) -> tuple[BeamStep, ...]:
        """Steps that come after these tokens of the beams of the only source, which are in the cache then.

        So are those of all steps but the last. It gives no steps where nothing is compiled for that, or the cache has
        no room.
        """
        compiled, n_beams = self._compiled("beams", tokens.device), len(tokens)
        n_steps = n_several(self._model)
        if compiled is None or n_beams > MOST or cache.longest + n_steps > cache.capacity:
            return ()
        self.watch()
        cache.make_room(n_steps)
        origins = cache.own_rows(cache.room) if cache.origins is None else cache.origins
        inputs = _inputs(tokens, cache, encoded, origins)
        *found, origins = compiled(*inputs, rule.tensors(n_steps))
        cache.origins = origins.view(n_beams, -1)
        cache.advance(n_steps)
        return tuple(BeamStep(*each) for each in zip(*(column.numpy() for column in found), strict=True))

    def reads_quickly(self, device: torch.device) -> bool:
        """Whether go_on() reads tokens sooner than the model does."""
        return self._compiled("prompt", device) is not None

    def go_on(self, tokens: Int[Tensor, " targets"], cache: Cache) -> Float[Tensor, "1 vocab_size"]:
        """The logits after the last of these tokens of the only row, however many they are."""
        *_, last = (self._read_part(part, cache) for part in tokens.split(MOST_TARGETS))
        return last

    def _read_part(self, tokens: Int[Tensor, " targets"], cache: Cache) -> Float[Tensor, "1 vocab_size"]:
        if len(tokens) == 1:  # compiled for two or more
            return self(tokens, cache)
        self.watch()
        cache.make_room(len(tokens))
        inputs = (tokens.contiguous(), cache.lengths, [tensor for layer in cache.layers for tensor in layer.kept])
        compiled = self._compiled("prompt", tokens.device)
        logits: Tensor = compiled(*inputs)[0] if compiled else PromptStep(self._model)(*inputs)
        cache.advance(len(tokens))
        return logits

    def read(self, sources: Int[Tensor, "sources length"], padding: Bool[Tensor, "sources length"]) -> Encoded:
        """What a translator's steps look at."""
        compiled, n = self._compiled("sources", sources.device), len(sources)
        if compiled:
            copies = 2 if n == 1 else 1  # compiled for two sources or more
            found = [x[:n] for x in compiled(sources.repeat(copies, 1), padding.repeat(copies, 1))]
        else:
            found = EncodeStep(self._model)(sources, padding)
        return Encoded(as_layers(found), padding)

    def likeliest(
        self, logits: Float[Tensor, "rows vocab_size"], spelling: Utf8Rules, situations: Situations, n: int
    ) -> MaskedTopK:
        """The n likeliest tokens that may come; the logits are of no use then."""
        compiled = self._compiled("best", logits.device) if n <= MOST else None
        if compiled is None:
            return likeliest(logits, spelling, situations, n)
        values, places, normalisers = compiled(logits.contiguous(), spelling.bits, torch.from_numpy(situations))
        return MaskedTopK(values[:, :n], places[:, :n], normalisers)

    def normalisers(self, logits: Float[Tensor, "rows vocab_size"]) -> Float[Tensor, " rows"]:
        """What makes log-probabilities of these logits, to be subtracted; they stay as they are."""
        if self._compiled("best", logits.device) is None:
            return logits.logsumexp(-1)
        free = Utf8Rules.free(logits.shape[1])
        return self.likeliest(logits, free, np.zeros(len(logits), np.int64), 1).normalisers

    def _compiled(self, part: Part, device: torch.device) -> Compiled | None:
        if part not in self._known:
            whole = _whole(self._model, part)
            self._known[part] = load(whole, part, _threads(whole, part)) if device.type == "cpu" else None
        return self._known[part]


def _inputs(
    tokens: Int[Tensor, " rows"], cache: Cache, encoded: Encoded | None, origins: Int[Tensor, "rows room"] | None
) -> Inputs:
    """What a step takes."""
    kept, tokens = [tensor for layer in cache.layers for tensor in layer.kept], tokens.contiguous()
    if encoded is None:
        return (tokens, cache.lengths, kept, None, [], None)
    n_sources = encoded.padding.shape[0]
    rows = (tokens.view(n_sources, -1), cache.lengths.view(n_sources, -1))
    origins = None if origins is None else origins.view(n_sources, -1, origins.shape[1])
    return (*rows, kept, origins, [x for layer in encoded.layers for x in layer], encoded.padding)


def _nothing() -> None:
    pass


def compile_steps(model: DecoderOnly | EncoderDecoder, say: Say = say_nothing) -> None:
    """Compile what models of this shape and precision do to write, unless it is kept already.

    That takes up to a minute for each part, once on a machine: whatever the weights, later processes find them.
    Raises a PenwrightError where what is compiled computes something else.
    """
    toolchain.require()
    for number, part in enumerate(_parts(model), 1):
        whole = _whole(model, part)
        n_threads = _threads(whole, part)
        if not is_kept(whole, part, n_threads):
            say(f"compiling part {number} of {len(_parts(model))} ({part}): a minute or so, once on a machine")
            graph = exported(model, part)
            compile_ahead(whole, part, n_threads, graph)
            _check(whole, part, n_threads, graph.module())


def _check(whole: ModelPart, part: Part, n_threads: int, graph: nn.Module) -> None:
    """What is compiled must compute what the graph does that it was compiled from; else it is not kept."""
    compiled, inputs = load(whole, part, n_threads), example_of(whole.model, part).drawn()
    if compiled is None or not _is_near(
        compiled, graph, inputs, steps=isinstance(whole, MultiTokenStep | MultiBeamStep)
    ):
        forget(whole, part, n_threads)
        raise PenwrightError(
            "what torch's compiler made of this model does not compute what the model does, and was deleted: use the "
            "model as it is, or try another --precision"
        )


def _is_near(compiled: Compiled, graph: nn.Module, inputs: Sequence[Input], *, steps: bool) -> bool:
    with torch.no_grad():
        found, plain = compiled(*deepcopy(inputs)), graph(*inputs)  # a step changes what is kept
    if steps:
        log_probs, tokens, plain_log_probs, plain_tokens = (x.flatten() for x in (*found[:2], *plain[:2]))
        n = 1 + int((tokens == plain_tokens).cumprod(0).sum())  # rounding may choose another one, and all differs then
        return bool(((log_probs - plain_log_probs).abs()[:n] <= NEAR_NATS).all())
    plain = plain if isinstance(plain, Tensor) else plain[0]
    return bool((found[0] - plain).float().norm() <= NEAR * plain.float().norm())


def are_steps_kept(model: nn.Module) -> bool:
    """Whether compile_steps() has been here, since the code, torch and the number of threads are what they are."""
    if not isinstance(model, DecoderOnly | EncoderDecoder):
        return False
    return all(is_kept(_whole(model, part), part, _threads(_whole(model, part), part)) for part in _parts(model))


def _parts(model: DecoderOnly | EncoderDecoder) -> tuple[Part, ...]:
    others: tuple[Part, ...] = ("prompt",) if isinstance(model, DecoderOnly) else ("sources",)
    parts: tuple[Part, ...] = ("one", "many", *others)
    if not COMPILES:
        return parts
    if _n_parameters(model) >= LITTLE:
        return (*parts, "best")
    return (*parts, "best", "several") if isinstance(model, DecoderOnly) else (*parts, "best", "several", "beams")


def _whole(model: DecoderOnly | EncoderDecoder, part: Part) -> ModelPart:
    return KINDS.get(part, DecodeStep)(model)


def _threads(whole: ModelPart, part: Part) -> int:
    return torch.get_num_threads() if _n_parameters(whole.model) >= WORTH_THREADS[part] else 1


def _n_parameters(model: DecoderOnly | EncoderDecoder) -> int:
    return sum(x.numel() for x in model.decoder.state_dict().values())


def exported(model: DecoderOnly | EncoderDecoder, part: Part) -> torch.export.ExportedProgram:
    """The part as a graph."""
    example = example_of(model, part)
    with torch.no_grad():
        return torch.export.export(_whole(model, part), example.inputs, dynamic_shapes=example.shapes, strict=False)
