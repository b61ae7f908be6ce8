"""The route that serves the pictures of `penwright.inspection`: what happens inside a model.

A response is packed for `views/modules/bytes.js`: {views: [{name, heading, data, options}], warnings: [texts]}. With
`?format=json` it holds the same as JSON. With html, svg or png it is a file to save.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from penwright.inspection import Inspector, as_record, view
from penwright.inspection.attention_maps import PackedPart
from penwright.inspection.forward_pass import PartName, Side
from penwright.inspection.gradients import Method
from penwright.inspection.heads import parse_head
from penwright.inspection.pages import heads
from penwright.inspection.views import importance, labels, one_head
from penwright.serving.errors import REFUSALS, RequestTooLarge
from penwright.serving.fields import Limits, ModelRequest, Name, Registry, Text, check_lengths
from penwright.views import View, pack
from penwright.views.notebook import thumbnails
from penwright.views.packing import as_table

router = APIRouter(prefix="/inspect", responses=REFUSALS)
Format = Literal["bytes", "json", "html", "svg", "png"]
TYPES: Mapping[str, str] = {
    "bytes": "application/octet-stream",
    "html": "text/html; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}
MOST_LIKELY = 500_000  # maximum of k times the characters of the text
MOST_NUMBERS = {"json": 4_000_000, "html": 16_000_000, "svg": 16_000_000, "png": 16_000_000}  # limits of a picture
N_WORDS = 2000  # words in an embedding map
N_POSITIONS = 256  # positions in the similarity picture


class InspectQuestion(ModelRequest):
    """A request for a picture. Each picture reads the fields that concern it."""

    model: Name | None = None
    text: Text = ""
    target: Text | None = None  # a translation or a label; None: the model's own
    head: Annotated[Text, Field(max_length=40)] = "0.0"  # such as "3.2" or, for a translator, "cross.3.2"
    heads: Annotated[list[Name], Field(max_length=4096, fail_fast=True, default_factory=list)]  # heads to ablate
    part: PartName | None = None  # part to roll out; None: the last
    position: Annotated[int, Field(ge=0, le=2**31)] | None = None  # the attributed token follows this position
    method: Method = "integrated_gradients"
    word: Text = ""  # find the neighbours of this word
    side: Side | None = None  # which embeddings of a translator
    k: Annotated[int, Field(ge=1, le=100)] = 10


def _every_head(insp: Inspector, asked: InspectQuestion) -> View:
    return heads(insp, asked.text, asked.target)


def _one_head(insp: Inspector, asked: InspectQuestion) -> View:
    head = parse_head(asked.head, insp.model)
    maps = insp.attention(asked.text, asked.target, [head.layer])
    part = maps.part(head.part)
    data = one_head(maps, head).data
    weights = part.weights[0, head.number][: len(data["weights"])]  # the exact weights, not the ones rounded to bytes
    return View("head", {**data, "weights": weights}, heading=f"Where head {head} looks")


def _rollout(insp: Inspector, asked: InspectQuestion) -> View:
    found = insp.rollout(asked.text, asked.target)
    return view(next((each for each in found if each.name == asked.part), found[-1]))


def _tokens(insp: Inspector, asked: InspectQuestion) -> View:
    if insp.shape == "classifier":
        return labels(insp.lens(asked.text, asked.target, k=len(insp.outcomes)))
    return view(insp.token_scores(asked.text, asked.target, asked.k))


def _attribution(insp: Inspector, asked: InspectQuestion) -> View:
    return view(insp.attribution(asked.text, asked.target, position=asked.position, method=asked.method))


# The pictures by their names in the URL.
PICTURES: Mapping[str, Callable[[Inspector, InspectQuestion], View]] = {
    "tokens": _tokens,
    "next": lambda insp, asked: view(insp.token_scores(asked.text, asked.target, asked.k).next),
    "heads": _every_head,
    "head": _one_head,
    "alignment": lambda insp, asked: view(insp.alignment(asked.text, asked.target)),
    "rollout": _rollout,
    "lens": lambda insp, asked: view(insp.lens(asked.text, asked.target, asked.k)),
    "attribution": _attribution,
    "leaving_out": lambda insp, asked: view(insp.occlusion(asked.text, asked.target)),
    "ablation": lambda insp, asked: view(insp.ablate(asked.text, asked.heads, asked.target, asked.k)),
    "importance": lambda insp, asked: importance(insp.head_importance(asked.text, asked.target)),
    "arithmetic": lambda insp, asked: view(insp.arithmetic(asked.text, asked.head, asked.target)),
    "neighbours": lambda insp, asked: view(insp.neighbours(asked.word, asked.k, asked.side)),
    "map": lambda insp, asked: view(insp.embedding_map(n=N_WORDS, side=asked.side)),
    "positions": lambda insp, asked: view(insp.positions(N_POSITIONS, asked.side)),
}
ABOUT_A_TEXT = set(PICTURES) - {"neighbours", "map", "positions"}
Picture = Literal[
    "tokens", "next", "heads", "head", "alignment", "rollout", "lens", "attribution", "leaving_out", "ablation",
    "importance", "arithmetic", "neighbours", "map", "positions",
]  # fmt: skip


@router.post("/{picture}", response_class=Response)
async def inspect(
    picture: Picture, asked: InspectQuestion, shelf: Registry, limits: Limits, format: Format = "bytes"
) -> Response:
    """Return a picture of what happens inside a model for a text."""
    served = shelf.get(asked.model)
    check_lengths([asked.text, asked.target, asked.word], limits)
    if asked.k * max(len(asked.text), len(asked.target or "")) > MOST_LIKELY:
        raise RequestTooLarge(
            f"k is {asked.k}, which is too much for a text of this length. Use a smaller k, or a shorter text"
        )

    def answer() -> tuple[View, tuple[str, ...]]:
        insp = served.inspector
        warnings = insp.warnings(asked.text, asked.target) if picture in ABOUT_A_TEXT else ()
        return PICTURES[picture](insp, asked), warnings

    found, warnings = await served.run(answer)
    return await asyncio.to_thread(answer_in, format, found, warnings)


def answer_in(format: Format, found: View, warnings: Sequence[str]) -> Response:
    """Return a picture with its warnings, for the page or as a file. Raises TooMuch if the result would be huge."""
    n_numbers = _count(as_table(found.data))
    if n_numbers > MOST_NUMBERS.get(format, n_numbers):
        raise RequestTooLarge(
            f"this picture has {n_numbers:,} numbers, too many for {format}. "
            "Use a shorter text, format=bytes, or a single head"
        )
    if format == "json":
        return JSONResponse({"views": [_record(found)], "warnings": list(warnings)})
    content = pack({"views": [for_page(found)], "warnings": warnings}) if format == "bytes" else _file(found, format)
    return Response(content, media_type=TYPES[format])


def for_page(found: View) -> dict[str, Any]:
    """Return a view for the page. Heads are sent as thumbnails; the page requests a head when it is opened."""
    data = as_table(found.data)
    if found.name == "attention":
        data = {**data, "parts": [_thumbs(part) for part in data["parts"]]}
    return {"name": found.name, "heading": found.heading, "data": data, "options": found.options}


def _count(data: object) -> int:
    """Return how many numbers the arrays of a picture hold."""
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


def _record(found: View) -> dict[str, Any]:
    return {"name": found.name, "heading": found.heading, "data": as_record(as_table(found.data))}


def _file(found: View, format: str) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"view.{format}"
        found.save(path)
        return path.read_bytes()
