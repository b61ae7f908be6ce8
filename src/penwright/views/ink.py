"""What pictures share: the colours of `modules/colour.js`, labels of tokens as in `modules/tokens.js`, matrices."""

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from penwright.views.packing import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap

WEIGHTS = "#f8f8e9 #ceeab5 #90dd9f #27ce9f #05b2a5 #0597a0 #037c97 #00628d #004788 #1b2a77 #20194b"
SIGNED = "#004298 #2f66b5 #5e8acb #8daee0 #bed3f1 #f5f7f9 #f0cfb9 #dfa985 #cc8452 #b66010 #904700"
LINES = ["#0072b2", "#c25100", "#00795a", "#a8508a", "#8a6d00", "#2b2b2b", "#3a7ca5", "#7a4b2a"]
SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥"}


def label(token: Any, longest: int = 24) -> str:
    """The token as a label, as in `modules/tokens.js`."""
    text = token if isinstance(token, str) else table(token)["text"]
    cut = text[:longest]
    cut = re.sub(r"^ +| +$", lambda spaces: "␣" * len(spaces[0]), cut)
    signs = "".join(c if c.isprintable() else SIGNS.get(c, f"‹{ord(c):04X}›") for c in cut)
    return (signs or "∅") + ("…" if len(text) > longest else "")


def probabilities(weights: Any) -> Float[ndarray, "*shape"]:
    """Bytes hold 255 times the square root (see `packing.roots`); other arrays are probabilities themselves."""
    weights = np.asarray(weights)
    return (weights / 255.0) ** 2 if weights.dtype == np.uint8 else weights.astype(float)


def colours(stops: str) -> "LinearSegmentedColormap":
    """A scale through these colours."""
    from matplotlib.colors import LinearSegmentedColormap  # noqa: PLC0415 (an extra)

    return LinearSegmentedColormap.from_list("scale", stops.split())


def image(axes: "Axes", weights: Float[ndarray, "targets sources"]) -> Any:
    """Probabilities as cells, coloured by their roots."""
    return axes.imshow(np.sqrt(weights), cmap=colours(WEIGHTS), vmin=0, vmax=1, interpolation="nearest", aspect="auto")
