"""The route that serves the pictures of `penwright.inspection`, which show what happens inside a model.

By default, a response is packed for `views/modules/bytes.js`: {views: [{name, heading, data, options}], warnings:
[texts]}. With `?format=json`, the same content is sent as JSON. The formats html, svg and png are sent as a file.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from penwright.inspection import Inspector, as_record, view
from penwright.inspection.attention_maps import PackedPart, parse_head
from penwright.inspection.forward_pass import PartName, Side
from penwright.inspection.gradients import Method
from penwright.inspection.pages import circuit, heads
from penwright.inspection.patching import PatchKind
from penwright.inspection.views import importance, labels, one_head
from penwright.model.block import Block
from penwright.serving.checks import Check
from penwright.serving.errors import ERROR_RESPONSES, RequestTooLarge
from penwright.serving.fields import MAX_INT, Limits, ModelRequest, Name, Registry, Text, TokenId, check_lengths
from penwright.serving.live import early_checkpoint, run_early
from penwright.serving.model_worker import ModelWorker
from penwright.views import View, pack
from penwright.views.notebook import thumbnails
from penwright.views.packing import as_table

router = APIRouter(prefix="/inspect", responses=ERROR_RESPONSES)
T = TypeVar("T")
Format = Literal["bytes", "json", "html", "svg", "png"]
TYPES: Mapping[str, str] = {
    "bytes": "application/octet-stream",
    "html": "text/html; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}
MAX_ALTERNATIVES = 500_000  # maximum product of k and the number of characters in a text
# maximum number of values in a picture, by format
MAX_NUMBERS = {"json": 4_000_000, "html": 16_000_000, "svg": 16_000_000, "png": 16_000_000}
MAX_TOKENS = 512  # maximum length of a text for the picture of a whole model, in tokens
MAX_CIRCUIT_TOKENS = 96  # maximum length of a text in tokens for circuits and patching, which need many passes
MAX_MATRIX_TOKENS = 2048  # maximum length of a text for gradients and for the arithmetic of a whole head, in tokens
N_WORDS = 2000  # number of tokens in an embedding map
N_POSITIONS = 256  # number of positions that a picture of positional similarity compares


class InspectRequest(ModelRequest):
    """A request for a picture. Each kind of picture uses only some of the fields."""

    model: Name | None = None
    step: Annotated[int, Field(ge=0, le=MAX_INT)] | None = (
        None  # training step of an early checkpoint; None for the served weights
    )
    text: Text = ""
    target: Text | None = None  # a translation or a label; None for the model's own output
    head: Annotated[Text, Field(max_length=40)] = "0.0"  # LAYER.HEAD or PART.LAYER.HEAD, for example "cross.3.2"
    heads: Annotated[list[Name], Field(max_length=4096, fail_fast=True, default_factory=list)]  # heads to ablate
    # in rollout and patching: which result to show ("encoder", "decoder" or "cross"); None for the last one
    part: PartName | None = None
    position: Annotated[int, Field(ge=0, le=2**31)] | None = (
        None  # position to show; for attribution, the position before the token to explain
    )
    place: Annotated[Text, Field(max_length=40)] = (
        "output"  # place in the model, e.g. "decoder.embedding" or "decoder.2"
    )
    other_text: Text = ""  # second text, for activation patching
    kind: PatchKind = "residual"  # kind of activations to patch
    method: Method = "integrated_gradients"
    word: Text = ""  # word whose nearest neighbours are returned
    token: TokenId | None = None  # id of the token, if several tokens have this text
    side: Side | None = None  # side of a translator whose embeddings are used; None for the source
    k: Annotated[int, Field(ge=1, le=100)] = 10


def _every_head(inspector: Inspector, body: InspectRequest) -> View:
    return heads(inspector, body.text, body.target)


def _one_head(inspector: Inspector, body: InspectRequest) -> View:
    head = parse_head(body.head, inspector.model)
    maps = inspector.attention(body.text, body.target, [head.layer])
    part = maps.part(head.part)
    data = one_head(maps, head).data
    # use the exact weights: those of a view are rounded to 8 bits
    weights = part.weights[0, head.number][: len(data["weights"])]
    return View("head", {**data, "weights": weights}, heading=f"Where head {head} attends")


def _rollout(inspector: Inspector, body: InspectRequest) -> View:
    parts = inspector.rollout(body.text, body.target)
    return view(next((each for each in parts if each.name == body.part), parts[-1]))


def _tokens(inspector: Inspector, body: InspectRequest) -> View:
    if inspector.kind == "classifier":
        return labels(inspector.lens(body.text, body.target, k=len(inspector.outcomes)))
    return view(inspector.token_scores(body.text, body.target, body.k))


def _attribution(inspector: Inspector, body: InspectRequest) -> View:
    _require_few(inspector, body, MAX_MATRIX_TOKENS)
    return view(inspector.attribution(body.text, body.target, position=body.position, method=body.method))


def _arithmetic(inspector: Inspector, body: InspectRequest) -> View:
    _require_few(inspector, body, MAX_MATRIX_TOKENS)
    arithmetic = inspector.arithmetic(body.text, body.head, body.target)
    return view(arithmetic if body.position is None else arithmetic.row(body.position))


def _model(inspector: Inspector, body: InspectRequest) -> View:
    _require_few(inspector, body, MAX_TOKENS)
    return view(inspector.model_map(body.text, body.target, position=body.position, k=body.k))


def _circuit(inspector: Inspector, body: InspectRequest) -> View:
    _require_few(inspector, body, MAX_CIRCUIT_TOKENS)
    return View("circuit", circuit(inspector, body.text, body.target, body.position), heading="The strongest paths")


def _parts(inspector: Inspector, body: InspectRequest) -> View:
    return view(inspector.logit_attribution(body.text, body.target, position=body.position))


def _patching(inspector: Inspector, body: InspectRequest) -> View:
    _require_few(inspector, body, MAX_CIRCUIT_TOKENS)
    parts = inspector.patching(body.text, body.other_text, body.target, kind=body.kind, position=body.position)
    return view(next((each for each in parts if each.part == body.part), parts[-1]))


def _require_few(inspector: Inspector, body: InspectRequest, most: int) -> None:
    """Raise RequestTooLarge for a text with too many tokens for a picture of the whole model."""
    reading = inspector.read(body.text, body.target)
    n_tokens = max(len(reading.source), len(reading.target))
    if n_tokens > most:
        raise RequestTooLarge(
            f"the text has {n_tokens} tokens, but this picture shows at most {most}. Use a shorter text"
        )


# The functions that make the pictures, keyed by the name in the URL.
PICTURES: Mapping[str, Callable[[Inspector, InspectRequest], View]] = {
    "tokens": _tokens,
    "next": lambda inspector, body: view(inspector.token_scores(body.text, body.target, body.k).next),
    "heads": _every_head,
    "head": _one_head,
    "alignment": lambda inspector, body: view(inspector.alignment(body.text, body.target)),
    "rollout": _rollout,
    "lens": lambda inspector, body: view(inspector.lens(body.text, body.target, body.k)),
    "attribution": _attribution,
    "leaving_out": lambda inspector, body: view(inspector.occlusion(body.text, body.target)),
    "ablation": lambda inspector, body: view(inspector.ablate(body.text, body.heads, body.target, body.k)),
    "importance": lambda inspector, body: importance(inspector.head_importance(body.text, body.target)),
    "arithmetic": _arithmetic,
    "model": _model,
    "place": lambda inspector, body: view(
        inspector.place_detail(body.text, body.place, body.target, position=body.position)
    ),
    "circuit": _circuit,
    "parts": _parts,
    "patching": _patching,
    "neighbours": lambda inspector, body: view(inspector.neighbours(body.word, body.k, body.side, body.token)),
    "map": lambda inspector, body: view(inspector.embedding_map(n=N_WORDS, side=body.side)),
    "positions": lambda inspector, body: view(inspector.positions(N_POSITIONS, body.side)),
}
ABOUT_A_TEXT = set(PICTURES) - {"neighbours", "map", "positions"}
Picture = Literal[
    "tokens", "next", "heads", "head", "alignment", "rollout", "lens", "attribution", "leaving_out", "ablation",
    "importance", "arithmetic", "model", "place", "circuit", "parts", "patching", "neighbours", "map", "positions",
]  # fmt: skip


@router.post("/{picture}", response_class=Response)
async def inspect(
    picture: Picture, body: InspectRequest, registry: Registry, limits: Limits, format: Format = "bytes"
) -> Response:
    """Return a picture of what happens inside a model for a text."""
    worker = registry.get(body.model)
    check_lengths([body.text, body.target, body.word, body.other_text], limits)
    if body.k * max(len(body.text), len(body.target or "")) > MAX_ALTERNATIVES:
        raise RequestTooLarge(
            f"k is {body.k}, which is too large for a text of this length. Use a smaller k, or a shorter text"
        )

    def answer(inspector: Inspector) -> tuple[View, tuple[str, ...]]:
        warnings = inspector.warnings(body.text, body.target) if picture in ABOUT_A_TEXT else ()
        return PICTURES[picture](inspector, body), warnings

    if body.step is None:
        view, warnings = await run_inspection(worker, answer)
    else:
        checkpoint = early_checkpoint(worker, body.step)
        view, warnings = await run_early(worker, checkpoint, lambda application: answer(Inspector(application)))
    return await asyncio.to_thread(answer_in, format, view, warnings)


async def run_inspection(worker: ModelWorker, function: Callable[[Inspector], T]) -> T:
    """Call a function with the inspector of a model. If the client disconnects, it stops before the next layer."""

    @contextmanager
    def watched(check: Check) -> Iterator[None]:
        with ExitStack() as stack:
            for part in worker.application.model.modules():
                if isinstance(part, Block):
                    stack.callback(part.register_forward_pre_hook(lambda *_: check()).remove)
            yield

    return await worker.run(lambda: function(worker.inspector), watched)


def answer_in(format: Format, result: View, warnings: Sequence[str]) -> Response:
    """Return a picture with its warnings, for the page or as a file.

    Raises RequestTooLarge if the result would be too large.
    """
    n_numbers = _count(as_table(result.data))
    if n_numbers > MAX_NUMBERS.get(format, n_numbers):
        raise RequestTooLarge(
            f"this picture has {n_numbers:,} numbers, which is too many for {format}. "
            "Use a shorter text, format=bytes, or a single head"
        )
    if format == "json":
        return JSONResponse({"views": [_record(result)], "warnings": list(warnings)})
    content = pack({"views": [for_page(result)], "warnings": warnings}) if format == "bytes" else _file(result, format)
    return Response(content, media_type=TYPES[format])


def for_page(result: View) -> dict[str, Any]:
    """Return a view for the page, with heads as thumbnails. The page requests a head in full when the user opens it."""
    data = as_table(result.data)
    if result.name == "attention":
        data = {**data, "parts": [_thumbs(part) for part in data["parts"]]}
    return {"name": result.name, "heading": result.heading, "data": data, "options": result.options}


def _count(data: object) -> int:
    """Return the total number of array elements in a picture."""
    match data:
        case np.ndarray():
            return data.size
        case Mapping():
            return sum(map(_count, data.values()))
        case list() | tuple():
            return sum(map(_count, data))
        case PackedPart():
            return data.weights.size
    return 0


def _thumbs(part: PackedPart) -> dict[str, Any]:
    return {**as_table(part), "weights": None, "thumbs": thumbnails(part.weights)}


def _record(result: View) -> dict[str, Any]:
    return {"name": result.name, "heading": result.heading, "data": as_record(as_table(result.data))}


def _file(result: View, format: str) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"view.{format}"
        result.save(path)
        return path.read_bytes()
