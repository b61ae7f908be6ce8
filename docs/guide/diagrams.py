"""The diagrams of the guide: SVG made by code. Their colours are classes in site.css, which follow the theme."""

from collections.abc import Callable, Sequence
from html import escape
from math import log

FONT = 13
WIDTH = 440  # of all diagrams, so that a phone shows their text large enough


class Drawing:
    """A drawing of boxes, arrows, cells and texts; y grows downwards."""

    def __init__(self, title: str, height: int):
        self.title, self.height = title, height
        self._parts: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> None:
        """Write centred lines around a point; `anchor` is start, middle or end."""
        lines = text.split("\n")
        for at, line in enumerate(lines):
            here = y + (at - (len(lines) - 1) / 2) * FONT * 1.2 + FONT * 0.35
            self._parts.append(
                f'<text class="{kind}" x="{x:g}" y="{here:g}" text-anchor="{anchor}">{escape(line)}</text>'
            )

    def box(self, x: float, y: float, width: float, height: float, text: str = "", kind: str = "plain") -> None:
        """Draw a box around a text."""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self._parts.append(f'<rect class="{kind}" {place} rx="4"/>')
        if text:
            self.text(x + width / 2, y + height / 2, text)

    def arrow(self, *points: tuple[float, float], head: bool = True, kind: str = "") -> None:
        """Draw a line through points; its last piece is horizontal or vertical if it has a head."""
        corners = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline class="{kind}" points="{corners}"/>')
        if head:
            (x0, y0), (x, y) = points[-2:]
            dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
            sides = [(x - 7 * dx + 3.5 * dy, y - 7 * dy + 3.5 * dx), (x - 7 * dx - 3.5 * dy, y - 7 * dy - 3.5 * dx)]
            self._parts.append(f'<polygon points="{" ".join(f"{a:g},{b:g}" for a, b in [(x, y), *sides])}"/>')

    def column(self, x: float, bottom: float, boxes: Sequence[tuple[str, str]], width: float = 150) -> float:
        """Stack boxes (text, kind) upwards, joined by arrows; return the y of the top."""
        y = bottom
        for at, (text, kind) in enumerate(boxes):
            height = 26 if "\n" not in text else 42
            if at:
                self.arrow((x, y), (x, y - 14))
                y -= 14
            self.box(x - width / 2, y - height, width, height, text, kind)
            y -= height
        return y

    def svg(self) -> str:
        """Return the drawing as an element for a page."""
        size = f'viewBox="0 0 {WIDTH} {self.height}"'
        return f'<svg {size} role="img"><title>{escape(self.title)}</title>{"".join(self._parts)}</svg>'


def transformer() -> str:
    """Draw the encoder and the decoder."""
    d = Drawing("An encoder and a decoder with cross-attention", 452)
    left, right, bottom = 108, 322, 420
    for x, below in ((left, "source tokens"), (right, "target tokens so far, after <s>")):
        d.text(x, bottom + 22, below, "small")
        d.arrow((x, bottom + 14), (x, bottom))
        d.box(x - 92, bottom - 26, 184, 26, "embedding + position", "embedding")
        d.arrow((x, bottom - 26), (x, bottom - 58))
    encoder = [
        ("self-attention", "attention"),
        ("add & norm", "norm"),
        ("feed-forward", "feed"),
        ("add & norm", "norm"),
    ]
    decoder = [
        ("masked self-attention", "attention"),
        ("add & norm", "norm"),
        ("cross-attention", "attention"),
        ("add & norm", "norm"),
        ("feed-forward", "feed"),
        ("add & norm", "norm"),
    ]
    d.box(left - 92, 196, 184, 172, kind="group")
    d.box(right - 92, 116, 184, 252, kind="group")
    top = d.column(left, bottom - 60, encoder)
    d.column(right, bottom - 60, decoder)
    d.text(left - 92, 187, "N times", "small", "start")
    d.text(right - 92, 107, "N times", "small", "start")
    d.arrow((left, top), (left, 164), (215, 164), (215, 267), (right - 75, 267))
    d.text(left - 8, 154, "keys and values", "small")
    d.arrow((right, 120), (right, 84))
    d.box(right - 75, 58, 150, 26, "linear + softmax", "output")
    d.arrow((right, 58), (right, 36))
    d.text(right, 26, "probabilities of the next token", "small")
    return d.svg()


def writer(n_layers: int) -> str:
    """Draw the decoder-only Transformer."""
    d = Drawing("A decoder-only Transformer, from text to the next token", 392)
    d.text(150, 378, "The sky is", "strong")
    d.arrow((150, 366), (150, 352))
    boxes = [
        ("tokenizer", "plain"),
        ("embedding", "embedding"),
        ("masked self-attention", "attention"),
        ("feed-forward", "feed"),
        ("norm", "norm"),
        ("linear (un-embedding)", "output"),
        ("softmax", "output"),
    ]
    d.box(58, 199, 184, 80, kind="group")
    top = d.column(150, 352, boxes, width=160)
    d.arrow((150, top), (150, top - 22))
    d.text(150, top - 33, "blue 62 %   clear 9 %   ...", "strong")
    notes = (
        "token ids",
        "one vector per token",
        f"block, {n_layers} times",
        "",
        "the same scale",
        "logits",
        "probabilities",
    )
    for at, note in enumerate(notes):
        d.text(252, 339 - at * 40 - (20 if at == 2 else 0), note, "small", "start")
    return d.svg()


def block() -> str:
    """Draw the block with its norms before the sublayers, and after the sums."""
    d = Drawing("A block with its norms before the sublayers (left) and after the sums (right)", 330)

    def residual(x: float, y: float, name: str, kind: str, before: bool) -> None:
        d.arrow((x, y), (x, y - 96 if before else y - 62), head=False)
        if before:
            d.box(x - 55, y - 46, 110, 24, "norm", "norm")
        d.box(x - 55, y - (82 if before else 52), 110, 24, name, kind)
        total = y - 108 if before else y - 80
        d.arrow((x, y - 10), (x + 78, y - 10), (x + 78, total), (x + 9, total))
        d.arrow((x, y - (82 if before else 52)), (x, total + 9))
        d.box(x - 9, total - 9, 18, 18, "+")
        if not before:
            d.arrow((x, total - 9), (x, total - 17))
            d.box(x - 55, total - 41, 110, 24, "norm", "norm")

    for x, before, name in ((95, True, "pre-norm (today)"), (315, False, "post-norm (2017)")):
        step = 122 if before else 128
        d.text(x, 318, name, "strong")
        residual(x, 300, "attention", "attention", before)
        d.arrow((x, 300 - (117 if before else 121)), (x, 300 - step), head=False)
        residual(x, 300 - step, "feed-forward", "feed", before)
        d.arrow((x, 300 - step - (117 if before else 121)), (x, 34))
        d.text(x, 22, "to the next block", "small")
    return d.svg()


def head() -> str:
    """Draw one head of attention."""
    d = Drawing("One head of attention", 338)
    d.text(220, 326, "vectors of the tokens", "small")
    for x, name in ((90, "query"), (220, "key"), (350, "value")):
        d.arrow((220, 314), (220, 304), (x, 304), (x, 290)) if x != 220 else d.arrow((220, 314), (220, 290))
        d.box(x - 50, 264, 100, 26, f"linear: {name}", "embedding")
        d.text(x - 10, 252, name[0].upper(), "strong", "end")
    d.arrow((90, 264), (90, 236), (130, 236), (130, 224))
    d.arrow((220, 264), (220, 236), (180, 236), (180, 224))
    d.column(
        155,
        224,
        [("scores  Q Kᵀ", "attention"), ("divide by √d", "plain"), ("mask: -∞", "plain"), ("softmax", "output")],
        130,
    )
    d.arrow((155, 78), (155, 50))
    d.text(148, 64, "weights", "small", "end")
    d.arrow((350, 264), (350, 37), (260, 37))
    d.box(50, 24, 210, 26, "weights V: add up the values", "attention")
    d.arrow((155, 24), (155, 6))
    return d.svg()


def heads(n: int) -> str:
    """Draw several heads whose outputs are joined."""
    d = Drawing("Several heads side by side", 214)
    d.text(220, 202, "vectors of the tokens (d_model numbers each)", "small")
    places = [70 + at * 300 / max(1, n - 1) for at in range(n)]
    for at, x in enumerate(places):
        d.arrow((220, 190), (220, 178), (x, 178), (x, 164))
        d.box(x - 38, 122, 76, 42, f"head {at}\nd = d_head", "attention")
        d.arrow((x, 122), (x, 100))
    d.box(30, 74, 380, 26, "put side by side (concatenate)", "plain")
    d.arrow((220, 74), (220, 60))
    d.box(130, 34, 180, 26, "linear: output", "embedding")
    d.arrow((220, 34), (220, 16))
    return d.svg()


def masks() -> str:
    """Draw which sources each target may see, under four masks."""
    d = Drawing("Four masks: rows look, columns are seen, filled cells are allowed", 366)
    n, n_real = 5, 3
    rules: list[tuple[str, Callable[[int, int], bool]]] = [
        ("no mask (encoder)", lambda row, column: True),
        ("causal (look-ahead) mask", lambda row, column: column <= row),
        ("padding mask", lambda row, column: column < n_real),
        ("causal and padding", lambda row, column: column <= row and column < n_real),
    ]
    for number, (name, allowed) in enumerate(rules):
        x, y = 45 + 220 * (number % 2), 24 + 186 * (number // 2)
        d.text(x + 65, y - 12, name, "strong")
        for row in range(n):
            for column in range(n):
                d.box(x + 26 * column, y + 26 * row, 24, 24, kind="allowed" if allowed(row, column) else "hidden")
            word = "pad" if number > 1 and row >= n_real else str(row + 1)
            d.text(x - 14, y + 26 * row + 12, word, "small")
            d.text(x + 26 * row + 12, y + 26 * n + 10, word, "small")
    return d.svg()


def teacher_forcing(words: Sequence[str]) -> str:
    """Draw what a model reads and what it must predict while it is trained, and while it writes."""
    d = Drawing("Training reads the true tokens; writing reads the model's own", 256)
    step = 400 / (len(words) + 1)
    for y, name in ((14, "training: it reads the true tokens (teacher forcing)"), (150, "writing: it reads its own")):
        d.text(20, y, name, "strong", "start")
        for at in range(len(words) + 1):
            x = 20 + at * step
            d.box(x, y + 68, step - 6, 24, ["<s>", *words][at], "embedding")
            d.box(x, y + 16, step - 6, 24, [*words, "</s>"][at], "output")
            d.arrow((x + step / 2 - 3, y + 68), (x + step / 2 - 3, y + 40))
            if y > 100 and at:  # the output becomes the next input
                d.arrow((x - 6, y + 28), (x - 3, y + 28), (x - 3, y + 80), (x, y + 80), head=False, kind="dashed")
    d.text(20, 122, "below: what it reads; above: what it must predict", "small", "start")
    return d.svg()


def bars(words: Sequence[str], values: Sequence[float], truth: int, note: str = "") -> str:
    """Draw probabilities as bars, the true one filled."""
    d = Drawing(
        "Probabilities: " + ", ".join(f"{w} {v:.2f}" for w, v in zip(words, values, strict=True)), 34 * len(words) + 30
    )
    for at, (word, value) in enumerate(zip(words, values, strict=True)):
        y = 6 + 34 * at
        d.text(80, y + 12, word, "strong" if at == truth else "", "end")
        d.box(90, y, max(2, 250 * value), 24, kind="output" if at == truth else "plain")
        d.text(98 + 250 * value, y + 12, f"{value:.3f}", "small", "start")
    d.text(
        90,
        34 * len(words) + 14,
        note or f"loss = -ln {values[truth]:.3f} = {-log(values[truth]):.3f} nats",
        "small",
        "start",
    )
    return d.svg()


def padding(lengths: Sequence[int]) -> str:
    """Draw a batch of texts of different lengths, padded to the longest, and the same sorted into two batches."""
    rows = sorted(lengths)
    d = Drawing("A batch, padded to its longest text; and sorted by length into two batches", 28 * len(rows) + 60)
    size = min(24.0, 190 / max(rows))

    def row(x: float, y: float, length: int, longest: int) -> None:
        for at in range(longest):
            d.box(x + size * at, y, size - 2, 20, kind="allowed" if at < length else "hidden")

    half, longest = len(rows) // 2, rows[-1]
    for at, length in enumerate(lengths):
        row(16, 26 + 26 * at, length, longest)
    for at, length in enumerate(rows):
        row(236, 26 + 26 * at + (10 if at >= half else 0), length, rows[half - 1] if at < half else longest)
    for x, name, wasted in (
        (16, "one batch", sum(longest - length for length in lengths)),
        (236, "sorted by length", sum((rows[half - 1] if at < half else longest) - n for at, n in enumerate(rows))),
    ):
        d.text(x, 12, name, "strong", "start")
        d.text(x, 28 * len(rows) + 44, f"{wasted} places of padding", "small", "start")
    return d.svg()
