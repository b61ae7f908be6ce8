"""Parallel text files: line n of one file is the translation of line n of the other."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from penwright.data.files import SourceFile
from penwright.data.paths import suffix_of
from penwright.errors import PenwrightError

CONVINCING = 0.6  # a gap is clear if skipping it cuts the mismatch of line lengths to this share
SAMPLE = 2000  # lines compared to see whether two files are translations
FEWEST = 20  # pairs of lines needed for a verdict
ALIKE = 0.4  # two files may be translations if their line lengths correlate more than this
MOST_LINES = 5_000_000  # in longer files, the gap is not searched for


def look_like_translations(first: SourceFile, second: SourceFile) -> bool:
    """Return whether two files look like translations: different lines of correlated lengths."""
    lines = [file.first_lines(SAMPLE) for file in (first, second)]
    pairs = [(a, b) for a, b in zip(*lines, strict=False) if a.strip() and b.strip()]
    if len(pairs) < FEWEST or sum(a == b for a, b in pairs) > len(pairs) // 2:
        return False
    a, b = (np.log([len(line) for line in side]) for side in zip(*pairs, strict=True))
    if min(a.std(), b.std()) == 0:
        return False
    return bool(np.corrcoef(a, b)[0, 1] > ALIKE)


def check_alignment(first: SourceFile, second: SourceFile) -> None:
    """Raise PenwrightError if the files differ in their number of lines.

    The message gives both counts and, if line lengths show it, the line where the files diverge.
    """
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
        f"{have.format(longer.path)} no partner in {shorter.path} ({counts}{where}). "
        "Add or remove lines until they correspond one to one."
    )


def first_gap(longer: NDArray[np.float64], shorter: NDArray[np.float64]) -> int | None:
    """Return the line (from 0) at which extra lines begin in `longer`, or None if line lengths do not show it.

    The gap is where the line lengths mismatch least: unshifted before it, shifted after it.
    """
    missing, n = len(longer) - len(shorter), len(shorter)
    if n < 10 or missing > n // 2:
        return None
    ratios = np.log((longer[:n] + 5) / (shorter + 5)), np.log((longer[missing:] + 5) / (shorter + 5))
    level = np.median(np.concatenate(ratios))  # one language may be wordier than the other
    unshifted, shifted = (np.abs(ratio - level) for ratio in ratios)
    costs = np.concatenate([[0.0], np.cumsum(unshifted)]) + np.concatenate([np.cumsum(shifted[::-1])[::-1], [0.0]])
    gap = int(np.argmin(costs))
    before, after = (
        unshifted[:gap].sum() / shifted[:gap].sum(initial=1e-9),
        shifted[gap:].sum() / unshifted[gap:].sum(initial=1e-9),
    )
    clear = (gap < n // 20 or before < CONVINCING) and (n - gap < n // 20 or after < CONVINCING)
    return gap if clear else None


def _lengths(file: SourceFile) -> NDArray[np.float64]:
    return np.fromiter(map(len, file.lines()), dtype=np.float64)


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def aligned(first: SourceFile, second: SourceFile) -> Iterator[tuple[str, str]]:
    """Return the lines of both files in pairs, without surrounding whitespace."""
    return ((a.strip(), b.strip()) for a, b in zip(first.lines(), second.lines(), strict=True))
