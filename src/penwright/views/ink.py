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
import warnings
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from penwright.errors import PenwrightWarning

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BRINGS = "DejaVu Sans"  # Latin, Greek, Cyrillic, Arabic, Hebrew ...
NOTE = "No font of this machine has {missing}; an .svg is drawn with the fonts of whoever reads it"


def choose(figure: "Figure", stays_text: bool) -> None:
    """Every text of the figure in fonts that have its characters.

    Where no font has them and the picture is of pixels (not `stays_text`), a note in it and a warning say which.
    """
    from matplotlib.text import Text  # noqa: PLC0415 (an extra)

    texts: list[Text] = figure.findobj(Text)
    families, missing = covering({c for text in texts for c in text.get_text() if not c.isspace()})
    for text in texts:
        text.set_fontfamily([*families, "sans-serif"] if stays_text else families)
    if missing and not stays_text:
        note = NOTE.format(missing=_named(missing))
        figure.supxlabel(note, fontsize=5, color="#5b5d66", x=0.01, ha="left", wrap=True)
        warnings.warn(note, PenwrightWarning, stacklevel=4)


def covering(characters: Iterable[str]) -> tuple[list[str], set[str]]:
    """Names of fonts that have the characters between them, as few as do, and the characters that none has."""
    from matplotlib import font_manager  # noqa: PLC0415 (an extra)

    missing = {c for c in characters if ord(c) not in _points(font_manager.findfont(BRINGS))}
    families = [BRINGS]
    while missing:
        upright = [e for e in font_manager.fontManager.ttflist if e.style == "normal" and "mpl-data" not in e.fname]
        found = {entry.name: {c for c in missing if ord(c) in _points(entry.fname)} for entry in upright}
        best = max(found, key=lambda name: len(found[name]), default=None)
        if best is None or not found[best]:
            break
        families.append(best)
        missing -= found[best]
    return families, missing


@cache
def _points(path: str) -> frozenset[int]:
    """The code points that a font file has signs for."""
    from matplotlib.ft2font import FT2Font  # noqa: PLC0415 (an extra)

    return frozenset(FT2Font(path).get_charmap())


def _named(missing: set[str]) -> str:
    """The first of them, by their numbers: as signs they could not be read."""
    first = [f"U+{ord(c):04X}" for c in sorted(missing)[:6]]
    more = len(missing) - len(first)
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


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
