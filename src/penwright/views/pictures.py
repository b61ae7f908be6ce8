"""Views as SVG and PNG pictures for papers. Since servers have no browser, matplotlib (extra `pictures`) draws them.

In SVG, text stays text, so the viewer can display any script. In PNG, text is drawn with the fonts of this machine.
"""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Shaped
from numpy import ndarray

from penwright.errors import UsageError, import_extra
from penwright.views import ink
from penwright.views.diagrams import arithmetic, beam, comparison
from penwright.views.ink import LINES, SIGNED, colours, image, label, probabilities
from penwright.views.packing import as_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = (".svg", ".png")
RESOLUTION = 200.0  # pixels per inch
COARSEST = 60  # minimum number of pixels per inch at which small text can be read
MOST_PIXELS_ALONG = 65_000  # maximum width and height of a .png in pixels; matplotlib draws less than 2^16
MOST_PIXELS = 100_000_000  # maximum number of pixels of a .png
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "penwright",  # a fixed salt, so that identical pictures are saved as identical files
    "text.parse_math": False,  # a dollar sign in a text does not start a formula
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "figure.dpi": RESOLUTION,
}
Drawing = Callable[["Figure", Mapping[str, Any]], None]


def render(name: str, data: Mapping[str, Any], ending: str) -> bytes:
    """Return a view as the content of a file with this suffix (".svg" or ".png").

    Raises UsageError for a view without a picture, and PenwrightError if matplotlib is missing.
    """
    if name not in DRAWINGS:
        raise UsageError(
            f"the view {name!r} can only be saved as .html. Views for {ending} files: {', '.join(sorted(DRAWINGS))}"
        )
    import_extra("matplotlib", "pictures", "pictures")
    from matplotlib import rc_context  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    out = io.BytesIO()
    with rc_context(dict(STYLE)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # ink.choose_fonts warns about missing glyphs itself
        figure = Figure(layout="constrained")
        DRAWINGS[name](figure, data)
        ink.choose_fonts(figure, stays_text=ending == ".svg")
        metadata = {"Date": None} if ending == ".svg" else None
        width, height = figure.get_size_inches()
        figure.savefig(out, format=ending[1:], metadata=metadata, dpi=_resolution(width, height, ending))
    return out.getvalue()


def _resolution(width: float, height: float, ending: str) -> float:
    """Return the number of pixels per inch of a picture of this size in inches: fewer if it is very large.

    Raises UsageError for a .png in which no text could be read.
    """
    if ending == ".svg":
        return RESOLUTION
    resolution = min(RESOLUTION, MOST_PIXELS_ALONG / max(width, height), (MOST_PIXELS / (width * height)) ** 0.5)
    if resolution < COARSEST:
        raise UsageError("the picture is too large for a .png file. Save it as .svg or .html, or show less data")
    return resolution


def _matrix(figure: "Figure", data: Mapping[str, Any]) -> None:
    weights = probabilities(data["weights"])
    rows, columns = ([label(token) for token in data[side]] for side in ("target_tokens", "source_tokens"))
    size = 1.6 + 0.18 * min(max(weights.shape), 40)
    figure.set_size_inches(size + 0.8, size)
    axes = figure.subplots()
    name = data.get("name", "decoder")
    shown = image(axes, _hide_later(weights) if name == "decoder" else weights)
    _tokens(axes, rows, columns)
    if "layer" in data:
        axes.set_title(f"{name}, layer {data['layer']}, head {data['head']}", fontsize=9, loc="left")
    marks = [0, 0.05, 0.25, 0.5, 1]
    bar = figure.colorbar(shown, ax=axes, ticks=np.sqrt(marks), shrink=0.6)
    bar.ax.set_yticklabels([f"{mark:g}" for mark in marks])
    bar.outline.set_visible(False)


def _hide_later(weights: Float[ndarray, "*heads targets sources"]) -> Float[ndarray, "*heads targets sources"]:
    """Mask later tokens, which a decoder cannot attend to."""
    return np.where(np.tri(*weights.shape[-2:]), weights, np.nan)


def _tokens(axes: "Axes", rows: Sequence[str], columns: Sequence[str]) -> None:
    """Label the axes with tokens if they fit, otherwise with numbers."""
    if max(len(rows), len(columns)) <= 64:
        axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=7)
        axes.set_yticks(range(len(rows)), rows, fontsize=7)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _heads(figure: "Figure", data: Mapping[str, Any]) -> None:
    part = as_table(data["parts"][data.get("part", 0)])
    layers = part.get("layers", range(len(part["weights"])))
    weights = probabilities(part["weights"])
    weights = _hide_later(weights) if part["name"] == "decoder" else weights
    n_layers, n_heads, rows, columns = weights.shape
    gap = 2 + max(rows, columns) // 6  # gap between the maps of two heads, where their names are written, in cells
    wide = np.pad(weights, ((0, 0), (0, 0), (gap, 0), (0, gap)), constant_values=np.nan)
    figure.set_size_inches(0.75 * n_heads, 0.85 * n_layers)
    axes = figure.subplots()
    image(axes, wide.transpose(0, 2, 1, 3).reshape(n_layers * (rows + gap), n_heads * (columns + gap)))
    axes.axis("off")
    for layer, head in np.ndindex(n_layers, n_heads):
        place = head * (columns + gap), layer * (rows + gap) + gap - 1
        axes.text(*place, f"{layers[layer]}·{head}", fontsize=6, va="bottom", color="#5b5d66")


def _lines(figure: "Figure", data: Mapping[str, Any]) -> None:
    weights = probabilities(data["weights"])
    places = np.argwhere(weights >= 0.2).tolist()
    pairs = [(row, column, float(weights[row, column])) for row, column in places]
    _link(figure, data["target_tokens"], data["source_tokens"], pairs, ("query tokens", "key tokens"))


def _alignment(figure: "Figure", data: Mapping[str, Any]) -> None:
    pairs = [(link["source"], link["target"], link["strength"]) for link in data["links"]]
    _link(figure, data["source"], data["target"], pairs, ("source", "target"))


def _link(
    figure: "Figure", left: Any, right: Any, pairs: Sequence[tuple[int, int, float]], titles: tuple[str, str]
) -> None:
    figure.set_size_inches(4.5, 0.7 + 0.22 * max(len(left), len(right)))
    axes = figure.subplots()
    axes.axis("off")
    axes.set(xlim=(-0.6, 1.6), ylim=(max(len(left), len(right)) - 0.5, -1.5))
    for x, tokens, title, side in ((-0.03, left, titles[0], "right"), (1.03, right, titles[1], "left")):
        axes.text(x, -1, title, ha=side, va="center", color="#5b5d66")
        for place, token in enumerate(tokens):
            axes.text(x, place, label(token), ha=side, va="center")
    bend = np.linspace(0, 1, 24)
    ease = bend**2 * (3 - 2 * bend)
    for start, end, strength in pairs:
        width = 0.5 + 1.5 * float(strength)
        axes.plot(bend, start + (end - start) * ease, color=LINES[0], alpha=min(1.0, 0.15 + float(strength)), lw=width)


def _curves(figure: "Figure", data: Mapping[str, Any]) -> None:
    figure.set_size_inches(6, 3.4)
    axes = figure.subplots()
    for number, run in enumerate(data["runs"]):
        axes.plot(run["x"], run["y"], label=label(run["name"], 60), color=LINES[number % len(LINES)], lw=1.2)
    axes.set(xlabel=data.get("x_label", "step"), ylabel=data.get("y_label", "loss"))
    axes.grid(alpha=0.25, lw=0.5)
    axes.legend()


def _confusion(figure: "Figure", data: Mapping[str, Any]) -> None:
    counts = np.asarray(data["counts"])
    names = [label(text) for text in data["labels"]]
    figure.set_size_inches(1.8 + 0.5 * len(names), 1.4 + 0.4 * len(names))
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image(axes, shares)
    _tokens(axes, names, names)
    axes.set(ylabel="true label", title="predicted label")
    for (row, column), count in np.ndenumerate(counts):
        ink = "white" if shares[row, column] > 0.3 else "black"
        axes.text(column, row, f"{count:g}", ha="center", va="center", color=ink, fontsize=8)


def _lens(figure: "Figure", data: Mapping[str, Any]) -> None:
    probability = np.asarray(data["top_probabilities"])[:, :24, 0][::-1]  # the last layer is at the top
    texts = [[label(position[0], 9) for position in layer[:24]] for layer in data["top_tokens"]][::-1]
    n_layers, positions = probability.shape
    figure.set_size_inches(1.2 + 0.62 * positions, 0.9 + 0.28 * n_layers)
    axes = figure.subplots()
    image(axes, probability)
    if positions < len(data["tokens"]):
        axes.set_title(f"the first {positions} of {len(data['tokens'])} positions", fontsize=9, loc="left")
    names = [f"layer {layer - 1}" if layer else "embedding" for layer in range(n_layers)][::-1]
    _tokens(axes, names, [label(token, 12) for token in data["tokens"][:24]])
    for (row, column), share in np.ndenumerate(probability):
        ink = "white" if share > 0.3 else "black"
        axes.text(column, row, texts[row][column], ha="center", va="center", color=ink, fontsize=6)


def _embeddings(figure: "Figure", data: Mapping[str, Any]) -> None:
    xy = np.asarray(data["xy"])
    figure.set_size_inches(6, 5)
    axes = figure.subplots()
    axes.plot(*xy.T, ".", ms=3 if len(xy) < 500 else 1.5, color=LINES[0], alpha=0.6)
    for place in range(min(len(xy), 120)):
        axes.text(xy[place, 0], xy[place, 1], f" {label(data['labels'][place])}", fontsize=6)
    axes.set(xticks=[], yticks=[])


def _similarity(figure: "Figure", data: Mapping[str, Any]) -> None:
    figure.set_size_inches(4.4, 3.8)
    axes = figure.subplots()
    shown = axes.imshow(data["similarity"], cmap=colours(SIGNED), vmin=-1, vmax=1, interpolation="nearest")
    axes.set(xlabel="position", ylabel="position")
    figure.colorbar(shown, ax=axes, shrink=0.7, label="cosine")


def _bars(figure: "Figure", names: Sequence[str], values: Shaped[ndarray, " n"], title: str) -> None:
    """Draw a row of bars, one for each name. Negative values have a different colour."""
    figure.set_size_inches(5, 0.7 + 0.2 * len(names))
    axes = figure.subplots()
    axes.barh(range(len(names)), values, color=[LINES[1] if value >= 0 else LINES[0] for value in values], height=0.7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel=title, ylim=(max(1, len(names)) - 0.5, -0.5))


def _labels(figure: "Figure", data: Mapping[str, Any]) -> None:
    _bars(figure, [label(text) for text in data["labels"]], np.asarray(data["probabilities"]), "probability")


def _candidates(figure: "Figure", data: Mapping[str, Any]) -> None:
    probability = np.array([each["probability"] for each in data["before"]])
    _bars(figure, [label(each) for each in data["before"]], probability, "probability")


def _neighbours(figure: "Figure", data: Mapping[str, Any]) -> None:
    similarity = np.array([each["similarity"] for each in data["neighbours"]])
    _bars(figure, [label(each) for each in data["neighbours"]], similarity, "cosine")


def _attribution(figure: "Figure", data: Mapping[str, Any]) -> None:
    _bars(figure, [label(token) for token in data["tokens"]], np.asarray(data["values"]), data["method"])


def _ablation(figure: "Figure", data: Mapping[str, Any]) -> None:
    changes = np.asarray(data["changes"])
    _bars(figure, [label(token) for token in data["tokens"][-len(changes) :]], changes, "change in loss, nats")


def _text(figure: "Figure", data: Mapping[str, Any]) -> None:
    surprise, tokens = -np.asarray(data["log_probs"]), data["tokens"]
    scored = tokens[len(tokens) - len(surprise) :]
    _bars(figure, [label(token) for token in scored], surprise, "surprisal, nats")


DRAWINGS: dict[str, Drawing] = {
    "ablation": _ablation,
    "alignment": _alignment,
    "arithmetic": arithmetic,
    "attention": _heads,
    "attribution": _attribution,
    "beam": beam,
    "candidates": _candidates,
    "comparison": comparison,
    "confusion": _confusion,
    "curves": _curves,
    "embeddings": _embeddings,
    "head": _matrix,
    "heads": _heads,
    "labels": _labels,
    "lens": _lens,
    "lines": _lines,
    "neighbours": _neighbours,
    "positions": _similarity,
    "rollout": _matrix,
    "text": _text,
}
