"""Pictures with several parts: a beam search tree, the attention computation of a head, a comparison of two texts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from penwright.views.ink import LINES, SIGNED, WEIGHTS, colours, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, HIGH = 0.85, 0.24  # width of a step and height of a node of the tree, in inches
QUIET = "#9a9ca5"
WIDEST = 12  # maximum number of dimensions drawn per vector: the first ones and the last
CELL = 0.44, 0.2  # width and height of a table cell, in inches


def beam(figure: "Figure", data: Mapping[str, Any]) -> None:
    """Draw the tree of a beam search.

    Kept nodes are black, dropped nodes pale, and finished nodes framed. Below each node is its log-probability in nats.
    """
    nodes = {node["id"]: node for node in data["nodes"]}
    rows = _rows(nodes)
    first, last = (end((node["step"] for node in nodes.values()), default=0) for end in (min, max))
    n_rows = max(rows.values(), default=0) + 1
    figure.set_size_inches(0.4 + WIDE * (last - first + 1), 0.5 + HIGH * 1.6 * n_rows)
    axes = figure.subplots()
    axes.axis("off")
    axes.set(xlim=(-0.5, last - first + 0.6), ylim=(n_rows - 0.4, -0.6))
    ease = np.linspace(0, 1, 16)
    for node in nodes.values():
        x, y, ink = node["step"] - first, rows[node["id"]], "black" if node["kept"] else QUIET
        parent = nodes.get(node["parent"])
        if parent is not None:
            above = rows[parent["id"]]
            bend = above + (y - above) * ease**2 * (3 - 2 * ease)
            axes.plot(x - 0.72 + 0.44 * ease, bend, color=ink, lw=1.2 if node["kept"] else 0.6, zorder=0)
        box = {"boxstyle": "round,pad=0.25", "fc": "white", "ec": LINES[0] if node["final"] else "none", "lw": 0.9}
        axes.text(x, y, label(node["token"], 9), ha="center", va="center", fontsize=7.5, color=ink, bbox=box)
        axes.text(x, y + 0.42, f"{node['log_prob']:.2f}", ha="center", va="center", fontsize=4.5, color=QUIET)


def _rows(nodes: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
    """Return the row in which each node is drawn. A node shares its best child's row, as in `modules/beam.js`."""
    children: dict[int | None, list[Mapping[str, Any]]] = {}
    for node in nodes.values():
        children.setdefault(node["parent"] if node["parent"] in nodes else None, []).append(node)
    rows: dict[int, int] = {}
    todo = [(node, place == 0) for place, node in enumerate(children.get(None, []))][::-1]
    row = 0
    while todo:
        node, is_first = todo.pop()
        row += not is_first
        rows[node["id"]] = row
        below = sorted(children.get(node["id"], []), key=lambda child: -child["log_prob"])
        todo += [(child, place == 0) for place, child in enumerate(below)][::-1]
    return rows


def arithmetic(figure: "Figure", data: Mapping[str, Any]) -> None:
    """Draw every step of a head's attention for the last query token. Long vectors are shortened."""
    target = len(data["target_tokens"]) - 1
    query, output = (np.asarray(data[name])[target : target + 1] for name in ("queries", "output"))
    keys, values = np.asarray(data["keys"]), np.asarray(data["values"])
    scores, scaled, masked, weights = (np.asarray(data[n])[target] for n in ("scores", "scaled", "masked", "weights"))
    sources, asking = [label(token, 12) for token in data["source_tokens"]], label(data["target_tokens"][target], 12)
    weighted = weights[:, None] * values
    root = f"/ √{query.shape[1]}"
    steps = [
        (f"the query of “{asking}”", [asking], _shorten(query), None),
        ("the keys", sources, _shorten(keys), None),
        ("query · key", sources, np.stack([scores, scaled, masked], 1), ("score", root, "masked")),
        ("softmax", sources, weights[:, None], ("weight",)),
        ("weight × value", sources, _shorten(weighted), None),
        ("their sum: the output", [asking], _shorten(output), None),
    ]
    heights = [len(rows) + 2.2 for _, rows, _, _ in steps]
    width = max(numbers.shape[1] for _, _, numbers, _ in steps)
    figure.set_size_inches(1.3 + CELL[0] * width, CELL[1] * sum(heights) + 0.3)
    figure.suptitle(f"layer {data['layer']}, head {data['head']}", x=0.02, ha="left", fontsize=9)
    for axes, (title, rows, numbers, names) in zip(
        figure.subplots(len(steps), 1, height_ratios=heights), steps, strict=True
    ):
        shares = names == ("weight",)
        columns = names or _places(query.shape[1])
        _numbers(axes, numbers, rows, columns, width, shares=shares)
        axes.set_title(title, fontsize=8, loc="left")


def _places(width: int) -> list[str]:
    """Return the column labels of a vector of this width; for a long vector, only the first and the last."""
    places = [str(place) for place in range(width)]
    return places if width <= WIDEST else [*places[: WIDEST - 1], f"… {width - 1}"]


def _shorten(vectors: Float[ndarray, "rows width"]) -> Float[ndarray, "rows shown"]:
    if vectors.shape[1] <= WIDEST:
        return vectors
    return np.concatenate([vectors[:, : WIDEST - 1], vectors[:, -1:]], 1)


def _numbers(
    axes: "Axes",
    numbers: Float[ndarray, "rows columns"],
    rows: Sequence[str],
    columns: Sequence[str],
    width: int,
    *,
    shares: bool,
) -> None:
    """Draw a table of numbers on coloured cells: probabilities if `shares` is true, otherwise signed numbers."""
    finite = np.where(np.isfinite(numbers), numbers, 0.0)
    if shares:
        shown = axes.imshow(np.sqrt(finite), cmap=colours(WEIGHTS), vmin=0, vmax=1, aspect="auto")
    else:
        most = max(np.abs(finite).max(initial=0), 1e-12)
        shown = axes.imshow(finite, cmap=colours(SIGNED), vmin=-most, vmax=most, aspect="auto")
    axes.set(xlim=(-0.5, width - 0.5))  # cells are equally wide in all steps
    axes.set_xticks(range(len(columns)), columns, fontsize=5.5)
    axes.set_yticks(range(len(rows)), rows, fontsize=6.5)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=1)
    axes.spines[:].set_visible(False)
    light = shown.to_rgba(np.sqrt(finite) if shares else finite)[..., :3] @ (0.299, 0.587, 0.114)
    for (row, column), value in np.ndenumerate(numbers):
        ink = "black" if light[row, column] > 0.5 else "white"
        text = f"{value:.0%}" if shares else f"{value:.2f}".replace("-inf", "−∞")
        axes.text(column, row, text, ha="center", va="center", fontsize=5.5, color=ink)


def comparison(figure: "Figure", data: Mapping[str, Any]) -> None:
    """Draw two bars for each pair of aligned tokens: their surprisals in the first and in the second text."""
    pairs = zip(data["first_texts"], data["second_texts"], strict=True)
    names = [label(one) if one == other else f"{label(one)} | {label(other)}" for one, other in pairs]
    figure.set_size_inches(5, 0.9 + 0.28 * len(names))
    axes = figure.subplots()
    for side, shift in (("first", -0.19), ("second", 0.19)):
        colour, name = (LINES[0], data["names"][0]) if side == "first" else (LINES[1], data["names"][1])
        places = np.arange(len(names)) + shift
        axes.barh(places, np.nan_to_num(data[side]), height=0.36, color=colour, label=label(name, 60))
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel="surprisal, nats", ylim=(max(1, len(names)) - 0.5, -0.5))
    axes.legend()
