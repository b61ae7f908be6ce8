"""Comparison of two texts under one model, or of two models on one text: token surprisals and head statistics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from penwright.errors import UsageError
from penwright.inspection.forward_pass import PartName, with_bytes
from penwright.inspection.head_statistics import STATISTICS, HeadStatistics

MOST_PAIRS = 1_000_000  # maximum number of pairs of differing tokens to compare
Spans = Iterator[tuple[slice, slice]]


class TokenNlls(NamedTuple):
    """The surprisal (-log p) of each token of a text, or of each label of a classifier."""

    texts: Sequence[str]
    nats: Float[np.ndarray, " pieces"]  # surprisals in nats
    spelling: Sequence[bytes] = ()  # the part of the text that each token stands for, in UTF-8; empty: as in `texts`
    are_labels: bool = False  # whether `texts` are the labels of a classifier


@dataclass(frozen=True)
class Comparison:
    """The surprisals of two texts side by side. Where token boundaries differ, the tokens are joined."""

    first_texts: tuple[str, ...]  # tokens of the first text; "" where only the second text has a token
    second_texts: tuple[str, ...]
    first: Float64[np.ndarray, " rows"]  # surprisals in nats; NaN where the first text has no token
    second: Float64[np.ndarray, " rows"]
    differences: Float64[np.ndarray, " rows"]  # surprisals of the second text minus those of the first
    sums: tuple[float, float]  # total surprisal of each text, in nats; NaN for labels, of which only one is true


@dataclass(frozen=True)
class HeadComparison:
    """The head statistics of one part of two models, or of one model for two texts.

    If only one of the models has a head, its statistics are NaN in the other.
    """

    name: PartName
    layers: tuple[int, ...]
    first: dict[str, Float64[np.ndarray, "n_layers n_heads"]]  # an array for each statistic, by name
    second: dict[str, Float64[np.ndarray, "n_layers n_heads"]]


def compare(first: TokenNlls, second: TokenNlls) -> Comparison:
    """Align the surprisals of two texts.

    Identical texts, which may have different tokens, are split wherever a token ends in both. Different texts are
    aligned by their longest common sequences of tokens. Labels are paired by name. Raises UsageError if the differences
    are too long to align.
    """
    labels = first.are_labels
    spelled = [list(side.spelling) or [text.encode() for text in side.texts] for side in (first, second)]
    same = not labels and b"".join(spelled[0]) == b"".join(spelled[1])
    spans = list(_same_ends(*spelled) if same else (_by_name if labels else _shared)(first.texts, second.texts))
    columns = zip(*spans, strict=True) if spans else ((), ())
    sides = (
        (
            tuple((same and with_bytes(b"".join(pieces[span]))) or "".join(side.texts[span]) for span in chosen),
            np.array([side.nats[span].sum() if span.start < span.stop else np.nan for span in chosen], np.float64),
        )
        for side, pieces, chosen in zip((first, second), spelled, columns, strict=True)
    )
    (first_texts, ours), (second_texts, theirs) = sides
    sums = (float("nan"),) * 2 if labels else (float(first.nats.sum()), float(second.nats.sum()))
    return Comparison(first_texts, second_texts, ours, theirs, theirs - ours, sums)


def _by_name(first: Sequence[str], second: Sequence[str]) -> Spans:
    """Pair equal labels, in the order of the first classifier. A label that only one classifier has stays unpaired."""
    for name in dict.fromkeys((*first, *second)):
        places = (texts.index(name) if name in texts else None for texts in (first, second))
        one, other = (slice(0, 0) if place is None else slice(place, place + 1) for place in places)
        yield one, other


def _same_ends(first: Sequence[bytes], second: Sequence[bytes]) -> Spans:
    """Yield the smallest groups of tokens that spell the same text in both sequences."""
    ends = [list(accumulate(map(len, pieces))) for pieces in (first, second)]
    starts, at = [0, 0], [0, 0]
    while at[0] < len(first) and at[1] < len(second):
        behind = int(ends[0][at[0]] > ends[1][at[1]])
        if ends[0][at[0]] != ends[1][at[1]]:
            at[behind] += 1
            continue
        at = [at[0] + 1, at[1] + 1]
        yield slice(starts[0], at[0]), slice(starts[1], at[1])
        starts = list(at)
    if at != [len(first), len(second)]:  # one text ends with tokens that have no characters
        yield slice(starts[0], len(first)), slice(starts[1], len(second))


def _shared(first: Sequence[str], second: Sequence[str]) -> Spans:
    """Align equal tokens one to one. Align differing spans one to one if equally long, otherwise as a whole."""
    begin, end = _ends_in_common(first, second)
    one, other = first[begin : len(first) - end], second[begin : len(second) - end]
    if len(one) * len(other) > MOST_PAIRS:
        raise UsageError(
            f"the parts that differ have {len(one):,} and {len(other):,} tokens, too many to compare. "
            "Compare shorter texts"
        )
    yield from ((slice(at, at + 1), slice(at, at + 1)) for at in range(begin))
    for _, a, b, c, d in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        yield from _side_by_side(slice(begin + a, begin + b), slice(begin + c, begin + d))
    for back in range(end, 0, -1):
        places = len(first) - back, len(second) - back
        yield slice(places[0], places[0] + 1), slice(places[1], places[1] + 1)


def _ends_in_common(first: Sequence[str], second: Sequence[str]) -> tuple[int, int]:
    """Return the lengths of the common prefix and the common suffix, which do not overlap."""
    shorter = min(len(first), len(second))
    begin = next((at for at in range(shorter) if first[at] != second[at]), shorter)
    end = next((at for at in range(shorter - begin) if first[-1 - at] != second[-1 - at]), shorter - begin)
    return begin, end


def _side_by_side(one: slice, other: slice) -> Spans:
    """Pair the tokens of two spans one to one, or as a whole if the spans differ in length and neither is empty."""
    n, m = one.stop - one.start, other.stop - other.start
    if n and m and n != m:
        yield one, other
        return
    for at in range(max(n, m)):
        place, beside = one.start + min(at, n), other.start + min(at, m)
        yield slice(place, place + (n > 0)), slice(beside, beside + (m > 0))


def compare_heads(first: Sequence[HeadStatistics], second: Sequence[HeadStatistics]) -> tuple[HeadComparison, ...]:
    """Compare the head statistics of the parts that both models have; skip statistics that are NaN for both."""
    known = {part.name: part for part in second}
    return tuple(_compare_part(part, known[part.name]) for part in first if part.name in known)


def _compare_part(first: HeadStatistics, second: HeadStatistics) -> HeadComparison:
    layers = tuple(sorted({*first.layers, *second.layers}))
    shape = len(layers), max(first.entropy.shape[1], second.entropy.shape[1])
    sides: list[dict[str, np.ndarray]] = []
    for side in (first, second):
        rows = [layers.index(layer) for layer in side.layers]
        tables = {name: np.full(shape, np.nan) for name in STATISTICS}
        for name, values in tables.items():
            values[rows, : side.entropy.shape[1]] = getattr(side, name)
        sides.append(tables)
    known = [name for name in STATISTICS if not all(np.isnan(side[name]).all() for side in sides)]
    ours, theirs = ({name: side[name] for name in known} for side in sides)
    return HeadComparison(first.name, layers, ours, theirs)
