"""What a run may be expected to reach, told before it is trained: from how well a compressor does on the same text.

How hard a text is, no formula knows; but what a general compressor, having seen the training part, needs for the
held-out one tells most of it. The rest is how much there is to learn from and how much of it the model will have seen.
Only a handful of runs (benchmarks/LOG.md) stand behind the law below, hence its wide range. Of translators and
classifiers no more can be told than when more time stops paying.
"""

import lzma
from math import exp
from typing import NamedTuple

from penwright.config import Task

CONTEXT, MEASURED = 4_000_000, 300_000  # bytes of the training part that it sees, and of what it then compresses
BELOW, ABOVE = 0.06, 0.08  # how far the recorded runs of an epoch or more lie from the law ...
YOUNG = 0.2  # ... and above it those of less, for what is missing to an epoch
AT_MOST = 8.0  # bits a byte, which need no model
SATURATION = 8.0  # epochs that a text is worth, however often it is read
PAYS = 0.01  # a doubling of the time that gains a smaller share is not worth it
MOST_DOUBLINGS = 10
ENOUGH_EPOCHS: dict[Task, float] = {"translate": 16.0, "classify": 8.0}
# ... after which more taught the few recorded runs little: Multi30k, of 55 a quarter of a BLEU more than of 13


class Outlook(NamedTuple):
    """Bits a byte of held-out text, in a range, and what is behind it; None for tasks that are not measured so."""

    low: float | None
    high: float | None
    compressed: float | None  # what the compressor needs
    pays_up_to: float | None  # minutes; of a writer: beyond which a doubling gains less than a hundredth


def compressed_bits(before: bytes, text: bytes) -> float:
    """Bits a byte that xz needs for `text` after it has seen `before`."""
    return 8 * (_packed(before + text) - _packed(before)) / max(1, len(text))


def outlook_for(compressed: float, corpus_bytes: int, epochs: float, minutes: float | None) -> Outlook:
    """For a text that is read so many times in so many minutes."""
    middle = compressed * _ratio(corpus_bytes, epochs)
    above = ABOVE + YOUNG * max(0.0, 1 - epochs)
    doublings = 0
    while doublings < MOST_DOUBLINGS:
        now, doubled = (_ratio(corpus_bytes, epochs * 2 ** (doublings + more)) for more in (0, 1))
        if now - doubled < PAYS * now:
            break
        doublings += 1
    pays_up_to = None if minutes is None else minutes * 2**doublings
    return Outlook(middle * (1 - BELOW), min(AT_MOST, middle * (1 + above)), compressed, pays_up_to)


def outlook_by_epochs(task: Task, epochs: float, minutes: float | None) -> Outlook:
    """For what is not measured in bits, and is read so many times in so many minutes."""
    pays_up_to = None if minutes is None else minutes * max(1.0, ENOUGH_EPOCHS[task] / epochs)
    return Outlook(None, None, None, pays_up_to)


def _ratio(corpus_bytes: int, epochs: float) -> float:
    """Of our bits to the compressor's: falls with what was read, of which repetitions count less and less."""
    fresh = SATURATION * (1 - exp(-epochs / SATURATION)) * corpus_bytes / 1e6
    return 0.63 + 0.32 * max(1e-9, fresh) ** -0.4


def _packed(text: bytes) -> int:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 2 * CONTEXT}]
    return len(lzma.compress(text, format=lzma.FORMAT_RAW, filters=filters))
