"""Views in notebooks: sandboxed frames that grow with their content. Large views are reduced to limit the file size."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from penwright.views.packing import as_table, to_root_bytes

LIMIT = 1_000_000  # maximum size of a cell's output, in bytes of HTML
THUMBNAIL = 64  # maximum width and height of a thumbnail in pixels, as in modules/heads.js
HEIGHT = 520  # height of a frame in pixels if the notebook does not run scripts

# This script runs in the notebook. It sets the height of every frame, and sends the theme (light or dark) at the start
# and after each change. It is installed once, even if cells run again, and does not keep removed frames alive. Since a
# frame may draw its view before this script listens, or before it has a width, the script asks for the height again.
HOST = """<script>(() => {
const frame = document.currentScript.previousElementSibling;
const ask = (one) => one.contentWindow && one.contentWindow.postMessage({penwright: "here"}, "*");
ask(frame);
if (window.penwrightFrames) return void window.penwrightFrames.add(new WeakRef(frame));
const frames = (window.penwrightFrames = new Set([new WeakRef(frame)]));
const here = () => [...frames].flatMap((each) => each.deref() || (frames.delete(each), []));
const tell = (one) => {
  if (!one.isConnected || !one.contentWindow) return;
  const ink = getComputedStyle(one.parentElement).color.match(/[\\d.]+/g).map(Number);
  const theme = ink[0] + ink[1] + ink[2] > 382 ? "dark" : "light";
  one.contentWindow.postMessage({penwright: "theme", theme}, "*");
};
addEventListener("message", ({source, data}) => {
  const one = data && data.penwright && here().find((each) => each.contentWindow === source);
  if (!one) return;
  if (data.penwright === "height" && data.height) one.style.height = data.height + 8 + "px";
  if (data.penwright === "height" && !data.height && one.offsetHeight) setTimeout(ask, 100, one);
  if (data.penwright === "ready") tell(one);
});
const again = () => setTimeout(() => here().forEach(tell), 300);
const options = {attributes: true, attributeFilter: ["class", "style", "data-jp-theme-light", "data-theme"]};
for (const each of [document.documentElement, document.body]) new MutationObserver(again).observe(each, options);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
})();</script>"""


def cell(page: str) -> str:
    """Return a page as the output of a cell: an ASCII-only frame without access to the notebook or the network."""
    source = escape(page).encode("ascii", "xmlcharrefreplace").decode()
    frame = f'<iframe title="Penwright" sandbox="allow-scripts" srcdoc="{source}" '
    return f'<div>{frame}style="width:100%;height:{HEIGHT}px;border:0"></iframe>{HOST}</div>'


def smaller(name: str, data: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], dict[str, str]]]:
    """Yield the complete data, then smaller and smaller versions, each with options that say what is missing.

    The view `model` keeps a half, a quarter, ... of its precomputed details (`data["pieces"]`). In `attention`, all
    heads keep their thumbnails, but only the first 32, 16, ... 0 heads per kind of attention keep their weights. Heads
    are ordered by layer and number, except that the [layer, head] pairs in `data["first"]` come first.
    """
    yield data, {}
    if name == "model":
        pieces = list(data["pieces"].items())
        for share in (2, 4, 8, 16, 32, 64):
            yield {**data, "pieces": dict(pieces[: len(pieces) // share])}, {}
    if name != "attention":
        return
    for kept in (32, 16, 8, 4, 2, 1, 0):
        hint = (
            f"This notebook has the weights of only some heads ({kept} per kind of attention). "
            "Save the view as .html to keep all."
        )
        yield (
            {**data, "parts": [_reduce_part(part, kept, data.get("first", ())) for part in data["parts"]]},
            {"missing": hint},
        )


def _reduce_part(part: Any, kept: int, first: Any) -> dict[str, Any]:
    fields = as_table(part)
    weights = np.asarray(fields["weights"])
    weights = weights if weights.dtype == np.uint8 else to_root_bytes(weights)
    layers = list(fields.get("layers", range(weights.shape[0])))
    every = [(layer, head) for layer in layers for head in range(weights.shape[1])]
    chosen = list(dict.fromkeys([*(pair for pair in map(tuple, first) if pair in every), *every]))[:kept]
    maps = [weights[layers.index(layer), head] for layer, head in chosen]
    opened = {"heads": chosen, "weights": np.stack(maps)} if chosen else None
    return {**fields, "weights": None, "thumbs": thumbnails(weights), "open": opened}


def thumbnails(
    weights: UInt8[ndarray, "n_layers n_heads targets sources"],
) -> UInt8[ndarray, "n_layers n_heads high wide"]:
    """Shrink weights to at most 64 by 64 cells. Each cell keeps its largest weight, so thin lines stay visible."""
    for axis in (2, 3):
        size = weights.shape[axis]
        if size > THUMBNAIL:
            starts = np.ceil(np.arange(THUMBNAIL) * size / THUMBNAIL).astype(int)
            weights = np.maximum.reduceat(weights, starts, axis=axis)
    return weights
