"""Two files whose lines belong together: they must have the same number of them."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from penwright.data.files import SourceFile
from penwright.data.paths import suffix_of
from penwright.errors import PenwrightError

CONVINCING = 0.6  # how much better lengths agree once the missing lines are skipped
SAMPLE = 2000  # lines that are looked at to see whether two files are translations
FEWEST = 20  # lines that tell anything
ALIKE = 0.4  # correlation of the lengths of lines, from which on two files may be translations
MOST_LINES = 5_000_000  # that are compared in search of the gap


def look_like_translations(first: SourceFile, second: SourceFile) -> bool:
    """Whether the lines of two files differ, and long ones stand beside long ones."""
    lines = [file.first_lines(SAMPLE) for file in (first, second)]
    pairs = [(a, b) for a, b in zip(*lines, strict=False) if a.strip() and b.strip()]
    if len(pairs) < FEWEST or sum(a == b for a, b in pairs) > len(pairs) // 2:
        return False
    a, b = (np.log([len(line) for line in side]) for side in zip(*pairs, strict=True))
    if min(a.std(), b.std()) == 0:
        return False
    return bool(np.corrcoef(a, b)[0, 1] > ALIKE)


def check_alignment(first: SourceFile, second: SourceFile) -> None:
    """Raise PenwrightError when lines have no partner, with both counts and, if lengths tell, where that begins."""
    if first.n_lines == second.n_lines:
        return
    longer, shorter = (first, second) if first.n_lines > second.n_lines else (second, first)
    missing = longer.n_lines - shorter.n_lines
    names = suffix_of(longer.path)[1:] or longer.path, suffix_of(shorter.path)[1:] or shorter.path
    counts = ", ".join(f"{name} {_spaced(n)}" for name, n in zip(names, (longer.n_lines, shorter.n_lines), strict=True))
    if names[0] == names[1]:
        counts = f"{_spaced(longer.n_lines)} and {_spaced(shorter.n_lines)} lines"
    gap = first_gap(_lengths(longer), _lengths(shorter)) if longer.n_lines <= MOST_LINES else None
    where = f"; first difference near line {_spaced(gap + 1)}" if gap is not None else ""
    have = "1 line of {} has" if missing == 1 else f"{_spaced(missing)} lines of {{}} have"
    raise PenwrightError(
        f"{have.format(longer.path)} no partner in {shorter.path} ({counts}{where}). Nothing was trained."
    )


def first_gap(longer: NDArray[np.float64], shorter: NDArray[np.float64]) -> int | None:
    """The line, from 0, from which all others of `longer` stand too low, when the lengths of lines are clear on it."""
    missing, n = len(longer) - len(shorter), len(shorter)
    if n < 10 or missing > n // 2:
        return None
    ratios = np.log((longer[:n] + 5) / (shorter + 5)), np.log((longer[missing:] + 5) / (shorter + 5))
    level = np.median(np.concatenate(ratios))  # one language is wordier than the other
    unmoved, moved = (np.abs(ratio - level) for ratio in ratios)
    costs = np.concatenate([[0.0], np.cumsum(unmoved)]) + np.concatenate([np.cumsum(moved[::-1])[::-1], [0.0]])
    gap = int(np.argmin(costs))
    before, after = (
        unmoved[:gap].sum() / moved[:gap].sum(initial=1e-9),
        moved[gap:].sum() / unmoved[gap:].sum(initial=1e-9),
    )
    clear = (gap < n // 20 or before < CONVINCING) and (n - gap < n // 20 or after < CONVINCING)
    return gap if clear else None


def _lengths(file: SourceFile) -> NDArray[np.float64]:
    return np.fromiter(map(len, file.lines()), dtype=np.float64)


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def aligned(first: SourceFile, second: SourceFile) -> Iterator[tuple[str, str]]:
    """The lines side by side, without the spaces around them."""
    return ((a.strip(), b.strip()) for a, b in zip(first.lines(), second.lines(), strict=True))
