"""Terminal drawings for `penwright inspect`: coloured text, heat maps (shaded blocks without colours) and tables."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from penwright.text import count
from penwright.training.progress import SPARKS

SHADES = " ░▒▓█"
VIRIDIS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725")
LABEL, HEADING = 12, 8  # maximum widths of a row name and a column name, in terminal cells
CELL = 2  # width of a heat map cell in terminal cells; at this width, it is about square
NUMBER = 8  # width of a number in a table, in terminal cells


class ShadedToken(NamedTuple):
    """The text of a token, and the strength of its shade, from 0 to 1."""

    text: str
    level: float


def visible(text: str) -> str:
    """Return the text on one line, with invisible characters replaced by symbols or code points."""
    marks = {"\n": "↵", "\t": "→", "\r": "←"}
    return "".join(marks.get(c, c) if c.isprintable() or c in marks else f"⟨U+{ord(c):04X}⟩" for c in text)


def label(text: str) -> str:
    """Return a token with its spaces and invisible characters made visible."""
    return visible(text).replace(" ", "␣")


def shaded_text(pieces: Iterable[ShadedToken], width: int) -> Iterator[Text]:
    """Yield the shaded lines of a text, wrapped to `width`, each followed by bars that show its tokens' levels."""
    line, bars = Text(), Text()
    for text, level in pieces:
        style = _style(level)
        for character in visible(text):
            if line.cell_len + cell_len(character) > width:
                yield from (line, bars)
                line, bars = Text(), Text()
            line.append(character, style)
            bars.append(SPARKS[_step(level, SPARKS)] * cell_len(character))
        if text.endswith("\n"):
            yield from (line, bars)
            line, bars = Text(), Text()
    if line:
        yield from (line, bars)


def heat_map(weights: np.ndarray, rows: Sequence[str], columns: Sequence[str], console: Console) -> Iterator[Text]:
    """Yield the lines of a heat map of weights [targets, sources]. Columns that do not fit are left out.

    The shade is proportional to the square root of a weight, so small weights stay visible.
    """
    n_columns = max(1, (console.width - LABEL - 1) // CELL)
    headings = [set_cell_size(label(name), min(HEADING, cell_len(label(name)))) for name in columns[:n_columns]]
    for letters in zip_longest(*headings, fillvalue=" "):
        yield Text(" " * (LABEL + 1) + "".join(set_cell_size(letter, CELL) for letter in letters))
    for name, values in zip(rows, weights, strict=True):
        line = Text(set_cell_size(label(name), LABEL) + " ")
        for level in np.sqrt(values[:n_columns].clip(0, 1)).tolist():
            if console.color_system is None:
                line.append(SHADES[_step(level, SHADES)] * CELL)
            else:
                line.append(" " * CELL, _style(level))
        yield line
    if len(columns) > n_columns:
        yield Text(f"(not shown: {count(len(columns) - n_columns, 'more column')})")


def numbers(title: str, matrix: np.ndarray, rows: Sequence[str], columns: Sequence[str], console: Console) -> Table:
    """Return a table of numbers. Columns that do not fit are left out."""
    n_columns = max(1, (console.width - LABEL - 4) // NUMBER)
    ellipsis = ["…"] if len(columns) > n_columns else []
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("", max_width=LABEL, no_wrap=True)
    for name in [*columns[:n_columns], *ellipsis]:
        table.add_column(label(name), justify="right", max_width=NUMBER - 1, no_wrap=True)
    for name, values in zip(rows, matrix, strict=True):
        table.add_row(label(name), *[f"{value:.2f}" for value in values[:n_columns]], *ellipsis)
    return table


def table_of(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, last: Literal["left", "right"] = "right"
) -> Table:
    """Return a table. Its first column is left-aligned; `last` aligns the last one; all others are right-aligned."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for place, name in enumerate(columns):
        justify = "left" if place == 0 else last if place == len(columns) - 1 else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def signed_bar(share: float, width: int = 20) -> str:
    """Return a bar for a value from -1 to 1: solid if the value is positive, hatched otherwise."""
    return ("█" if share > 0 else "▒") * round(abs(share) * width)


def _step(level: float, steps: Sequence[str]) -> int:
    return min(len(steps) - 1, int(max(0.0, level) * len(steps)))


def _style(level: float) -> Style:
    step = _step(level, VIRIDIS)
    return Style(color="black" if step >= len(VIRIDIS) // 2 else "white", bgcolor=VIRIDIS[step])
