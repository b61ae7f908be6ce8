"""The step that writing repeats for each token: as it is, or compiled ahead of time and kept for later processes."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

import penwright.layers
import penwright.models
from penwright import compiler
from penwright.config import cache_folder
from penwright.layers.attention import Attention, KeysValues, stepping_attention
from penwright.layers.cache import ROOM, Cache
from penwright.models import DecoderOnly, Encoded, EncoderDecoder

Rows = Literal["one", "many"]
StepFunction = Callable[[Tensor, Tensor, list[Tensor], list[Tensor], Tensor | None], Tensor]
N_ROWS: dict[Rows, int] = {"one": 1, "many": 4}  # of the example to compile by
N_SOURCES = 8
WORTH_THREADS: dict[Rows, int] = {"one": 5_000_000, "many": 2_000_000}
# ... parameters that make several threads pay: in a smaller step they wait for each other after every product


class Step(nn.Module):
    """One more token for each row, as a function of tensors alone."""

    def __init__(self, model: DecoderOnly | EncoderDecoder):
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Int[Tensor, " rows"],
        lengths: Int[Tensor, " rows"],
        kept: list[Float[Tensor, "rows n_kv_heads room d_head"]],
        source: list[Float[Tensor, "rows n_kv_heads sources d_head"]],
        padding: Bool[Tensor, "rows sources"] | None,
    ) -> Float[Tensor, "rows vocab_size"]:
        """The logits of the next token, not in bfloat16, which is too coarse to tell the best ones apart.

        What is kept, keys and values in turn, takes this token in, where it is.
        """
        model, cache = self.model, Cache.over(_layers(kept), lengths)
        if isinstance(model, DecoderOnly):
            hidden = model.hidden(tokens[:, None], cache=cache)
        else:
            assert padding is not None
            hidden = model.hidden(tokens[:, None], Encoded(_layers(source), padding), cache)
        logits: Tensor = model.output(hidden[:, -1])
        return logits.float() if logits.dtype == torch.bfloat16 else logits


def _layers(tensors: list[Tensor]) -> tuple[KeysValues, ...]:
    return tuple(map(KeysValues, tensors[::2], tensors[1::2]))


class Stepper:
    """Appends a token to each row of a cache, by a compiled step where one was kept for models of this shape."""

    def __init__(self, model: DecoderOnly | EncoderDecoder):
        self._step = Step(model)
        self._known: dict[Rows, StepFunction] = {}
        self.watch: Callable[[], None] = _nothing  # called before each step; what it raises ends the work

    @contextmanager
    def watched(self, watch: Callable[[], None]) -> Iterator[None]:
        """Have this called before each step inside."""
        self.watch = watch
        try:
            yield
        finally:
            self.watch = _nothing

    def __call__(
        self, tokens: Int[Tensor, " rows"], cache: Cache, encoded: Encoded | None = None
    ) -> Float[Tensor, "rows vocab_size"]:
        """The logits after these tokens."""
        self.watch()
        cache.make_room(1)
        kept = [tensor for layer in cache.layers for tensor in layer.kept]
        source = [tensor for layer in encoded.layers for tensor in layer] if encoded else []
        step = self._for("one" if len(tokens) == 1 else "many", tokens.device)
        logits: Tensor = step(tokens, cache.lengths, kept, source, encoded.padding if encoded else None)
        cache.advance(1)
        return logits

    def _for(self, rows: Rows, device: torch.device) -> StepFunction:
        if rows not in self._known:
            kept = _load(self._step, rows) if device.type == "cpu" else None
            self._known[rows] = kept or self._step
        return self._known[rows]


def _nothing() -> None:
    pass


def compile_steps(model: DecoderOnly | EncoderDecoder) -> None:
    """Compile the steps of models of this shape and precision, for one row and for many, unless they are kept already.

    That takes up to a minute each, once on a machine: whatever the weights, later processes find them.
    """
    compiler.require()
    compiler.keep_what_is_compiled()
    for rows in N_ROWS:
        path = _path(Step(model), rows)
        if not path.exists():
            _compile(Step(model), rows, path)


def _path(step: Step, rows: Rows) -> Path:
    return cache_folder("compiled") / f"step-{rows}-{_key(step, rows)}.pt2"


def _load(step: Step, rows: Rows) -> StepFunction | None:
    """By torch's own loader: its dress in Python takes two seconds to import and parses JSON at each step."""
    path = _path(step, rows)
    if not path.exists():
        return None
    try:
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, -1)
    except RuntimeError:  # a disk was full, or the like: nothing is lost but time
        warnings.warn(f"{path} is damaged: delete it and `penwright quicken` again", stacklevel=2)
        return None
    tensors = dict(step.named_parameters(remove_duplicate=False)) | dict(step.named_buffers(remove_duplicate=False))
    loader.load_constants({name: tensors[name] for name in loader.get_constant_fqns()}, False, True, True)
    n_threads = _threads(step, rows)

    def run(
        tokens: Tensor, lengths: Tensor, kept: list[Tensor], source: list[Tensor], padding: Tensor | None
    ) -> Tensor:
        with _with_threads(n_threads):
            return loader.run([tokens, lengths, *kept, *source, *([] if padding is None else [padding])])[0]

    return run


def _key(step: Step, rows: Rows) -> str:
    """What a compiled step depends on: shapes and kinds of weights, never their values, and what compiled it."""
    model = step.model
    shapes = [(name, str(x.dtype), list(x.shape)) for name, x in step.state_dict().items()]
    sources = [Path(__file__), *(path for p in (penwright.layers, penwright.models) for path in _modules_of(p))]
    code = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources]
    machine = (torch.backends.cpu.get_cpu_capability(), _threads(step, rows))
    what = json.dumps([model.settings.model_dump(mode="json"), shapes, code, torch.__version__, machine])
    return hashlib.sha256(what.encode()).hexdigest()[:16]


def _threads(step: Step, rows: Rows) -> int:
    n_parameters = sum(x.numel() for x in step.model.decoder.state_dict().values())
    return torch.get_num_threads() if n_parameters >= WORTH_THREADS[rows] else 1


@contextmanager
def _with_threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if n == before:
        yield
        return
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _modules_of(package: object) -> list[Path]:
    return sorted(Path(str(package.__file__)).parent.glob("*.py"))  # type: ignore[attr-defined]


def _compile(step: Step, rows: Rows, path: Path) -> None:
    """Write the compiled step to this path, whole or not at all. Weights are not in it: they are given at loading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.pt2")
    options = {"aot_inductor.package_constants_in_so": False}
    with torch.no_grad(), _with_threads(_threads(step, rows)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._inductor.aoti_compile_and_package(exported(step, rows), package_path=str(part), inductor_configs=options)
    part.rename(path)


def exported(step: Step, rows: Rows) -> torch.export.ExportedProgram:
    """The step as a graph, for any number of rows (unless there is one), tokens kept and tokens of sources."""
    model, n = step.model, N_ROWS[rows]
    decoder, settings = model.decoder, model.settings
    like = model.embedding.tokens.weight if isinstance(model, DecoderOnly) else model.target_embedding.tokens.weight

    def keys_values(length: int) -> list[Tensor]:
        return [like.new_zeros(n, settings.n_kv_heads, length, settings.d_head) for _ in range(2 * len(decoder.blocks))]

    translates = isinstance(model, EncoderDecoder)
    kept = keys_values(min(ROOM, settings.context_length))
    source = keys_values(N_SOURCES) if translates else []
    padding = torch.ones(n, N_SOURCES, dtype=torch.bool) if translates else None
    tokens = torch.zeros(n, dtype=torch.long)
    Dim = torch.export.Dim
    batch = {} if n == 1 else {0: Dim("rows", min=2, max=2**20)}
    room, sources = Dim("room", min=2, max=settings.context_length), Dim("sources", min=2, max=2**20)
    shapes = (
        batch,
        batch,
        [{**batch, 2: room}] * len(kept),
        [{**batch, 2: sources}] * len(source),
        {**batch, 1: sources} if translates else None,
    )
    given = (tokens, tokens.clone(), kept, source, padding)  # one tensor given twice would be taken for one for ever
    with torch.no_grad(), _stepping(decoder):
        return torch.export.export(step, given, dynamic_shapes=shapes, strict=False)


@contextmanager
def _stepping(decoder: nn.Module) -> Iterator[None]:
    """Attention as a compiler likes it."""
    attentions = [part for part in decoder.modules() if isinstance(part, Attention)]
    kernels = [attention.kernel for attention in attentions]
    for attention in attentions:
        attention.kernel = stepping_attention
    try:
        yield
    finally:
        for attention, kernel in zip(attentions, kernels, strict=True):
            attention.kernel = kernel
