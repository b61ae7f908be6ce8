"""Building blocks of all pictures: fonts, colours as in `modules/colour.js`, and labels as in `modules/tokens.js`."""

import re
import warnings
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from penwright.errors import PenwrightWarning
from penwright.views.packing import as_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

DEFAULT_FONT = "DejaVu Sans"  # a font included in matplotlib; it covers Latin, Greek, Cyrillic, Arabic, Hebrew ...
NOTE = "No font on this machine has {missing}. Save as .svg instead, which uses the reader's fonts"


def choose_fonts(figure: "Figure", stays_text: bool) -> None:
    """Choose fonts that together cover all characters in the figure's texts.

    If text is drawn as pixels (`stays_text` is false) and some characters are in no font, warn and add a note to the
    picture.
    """
    from matplotlib.text import Text  # noqa: PLC0415 - an extra

    texts: list[Text] = figure.findobj(Text)
    families, missing = find_fonts({c for text in texts for c in text.get_text() if not c.isspace()})
    for text in texts:
        text.set_fontfamily([*families, "sans-serif"] if stays_text else families)
    if missing and not stays_text:
        note = NOTE.format(missing=_list_missing(missing))
        figure.supxlabel(note, fontsize=5, color="#5b5d66", x=0.01, ha="left", wrap=True)
        warnings.warn(note, PenwrightWarning, stacklevel=4)


def find_fonts(characters: Iterable[str]) -> tuple[list[str], set[str]]:
    """Return the names of a few fonts that together cover the characters, and the characters that no font has."""
    from matplotlib import font_manager  # noqa: PLC0415 - an extra

    missing = {c for c in characters if ord(c) not in _code_points(font_manager.findfont(DEFAULT_FONT))}
    families = [DEFAULT_FONT]
    while missing:
        upright = [e for e in font_manager.fontManager.ttflist if e.style == "normal" and "mpl-data" not in e.fname]
        covered = {entry.name: {c for c in missing if ord(c) in _code_points(entry.fname)} for entry in upright}
        best = max(covered, key=lambda name: len(covered[name]), default=None)
        if best is None or not covered[best]:
            break
        families.append(best)
        missing -= covered[best]
    return families, missing


@cache
def _code_points(path: str) -> frozenset[int]:
    """Return the code points that a font file has glyphs for."""
    from matplotlib.ft2font import FT2Font  # noqa: PLC0415 - an extra

    return frozenset(FT2Font(path).get_charmap())


def _list_missing(missing: set[str]) -> str:
    """List the code points of the first six missing characters, and count the rest."""
    first = [f"U+{ord(c):04X}" for c in sorted(missing)[:6]]
    more = len(missing) - len(first)
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


WEIGHTS = "#f8f8e9 #ceeab5 #90dd9f #27ce9f #05b2a5 #0597a0 #037c97 #00628d #004788 #1b2a77 #20194b"
SIGNED = "#004298 #2f66b5 #5e8acb #8daee0 #bed3f1 #f5f7f9 #f0cfb9 #dfa985 #cc8452 #b66010 #904700"
LINES = ["#0072b2", "#c25100", "#00795a", "#a8508a", "#8a6d00", "#2b2b2b", "#3a7ca5", "#7a4b2a"]
SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥"}


def label(token: Any, longest: int = 24) -> str:
    """Return a token as a label of at most `longest` characters, as in `modules/tokens.js`."""
    text = token if isinstance(token, str) else as_table(token)["text"]
    cut = text[:longest]
    cut = re.sub(r"^ +| +$", lambda spaces: "␣" * len(spaces[0]), cut)
    signs = "".join(c if c.isprintable() else SIGNS.get(c, f"‹{ord(c):04X}›") for c in cut)
    return (signs or "∅") + ("…" if len(text) > longest else "")


def probabilities(weights: Any) -> Float[ndarray, "*shape"]:
    """Return weights as probabilities. A byte stores 255 times the square root (see `packing.to_root_bytes`)."""
    weights = np.asarray(weights)
    return (weights / 255.0) ** 2 if weights.dtype == np.uint8 else weights.astype(float)


def colours(stops: str) -> "LinearSegmentedColormap":
    """Return a colormap that passes through these colours."""
    from matplotlib.colors import LinearSegmentedColormap  # noqa: PLC0415 - an extra

    return LinearSegmentedColormap.from_list("scale", stops.split())


def image(axes: "Axes", weights: Float[ndarray, "targets sources"]) -> Any:
    """Draw probabilities as cells, coloured by their square roots."""
    return axes.imshow(np.sqrt(weights), cmap=colours(WEIGHTS), vmin=0, vmax=1, interpolation="nearest", aspect="auto")
