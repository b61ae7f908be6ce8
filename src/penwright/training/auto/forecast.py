"""A forecast of the result of a run, made before training by compressing the same text.

The difficulty of a text is estimated mainly by a general compressor: how well it compresses the held-out set after it
has seen the training set. The amount of text, and how much of it the model will see, also matter. The formula below is
fitted to only a handful of runs (benchmarks/LOG.md), hence the wide range. For translators, the forecast
says how much of the best possible score training will reach. For classifiers, it is the accuracy of a linear
classifier.
"""

import lzma
from math import exp
from typing import NamedTuple

from penwright.config import Task

# bytes of the training set that the compressor sees, and bytes of the held-out set to compress
CONTEXT, MEASURED = 4_000_000, 300_000
# largest relative deviations of the recorded runs from the formula, for runs of at least one epoch
BELOW, ABOVE = 0.06, 0.08
YOUNG = 0.2  # for runs of n < 1 epochs, ABOVE grows by YOUNG * (1 - n)
AT_MOST = 8.0  # bits per byte of uncompressed text
SATURATION = 8.0  # repeated epochs are together worth less than this many epochs of new text
PAYS = 0.01  # minimum relative gain for which doubling the time pays off
MOST_DOUBLINGS = 10
# Number of epochs after which the few recorded runs gained little: on Multi30k, 55 epochs gave 0.25 BLEU more than 13.
ENOUGH_EPOCHS: dict[Task, float] = {"chat": 8.0, "translate": 16.0, "classify": 8.0, "encode": 16.0}


# After n epochs, translators of Multi30k and Tatoeba fell short of their best BLEU by a fraction between LACKS[0] / n
# and LACKS[1] / n (LOG.md). The largest fraction was measured with 19,000 pairs of Tatoeba: BLEU 15.2 after 1.8
# epochs, 22.3 after 4.2.
LACKS = 0.12, 0.7
FEWEST_EPOCHS = 1.0  # minimum number of epochs for a forecast; with fewer, the range would be too wide to be useful


class Forecast(NamedTuple):
    """A forecast in bits per byte of held-out text, as a range; None for tasks that are not measured in bits."""

    low: float | None
    high: float | None
    compressed: float | None  # bits per byte that the compressor needs
    pays_up_to: float | None  # minutes after which doubling the time gains less than 1 %
    share: tuple[float, float] | None = None  # translators: lowest and highest expected fraction of the best BLEU
    accuracy: float | None = None  # classifiers: percent of held-out texts that a linear classifier labels correctly


def compressed_bits(before: bytes, text: bytes) -> float:
    """Return the bits per byte that xz needs for `text` after it has seen `before`."""
    return 8 * (_packed(before + text) - _packed(before)) / max(1, len(text))


def forecast_bits(compressed: float, corpus_bytes: int, epochs: float, minutes: float | None) -> Forecast:
    """Forecast the bits per byte after training on a text for this many epochs in this many minutes."""
    middle = compressed * _ratio(corpus_bytes, epochs)
    above = ABOVE + YOUNG * max(0.0, 1 - epochs)
    doublings = 0
    while doublings < MOST_DOUBLINGS:
        now, doubled = (_ratio(corpus_bytes, epochs * 2 ** (doublings + more)) for more in (0, 1))
        if now - doubled < PAYS * now:
            break
        doublings += 1
    pays_up_to = None if minutes is None else minutes * 2**doublings
    return Forecast(middle * (1 - BELOW), min(AT_MOST, middle * (1 + above)), compressed, pays_up_to)


def forecast_by_epochs(task: Task, epochs: float, minutes: float | None) -> Forecast:
    """Make a forecast for a task that is not measured in bits.

    It says when more time stops paying off and, for translators, what fraction of the best BLEU to expect.
    """
    pays_up_to = None if minutes is None else minutes * max(1.0, ENOUGH_EPOCHS[task] / epochs)
    return Forecast(None, None, None, pays_up_to, share_of_best(epochs) if task == "translate" else None)


def share_of_best(epochs: float) -> tuple[float, float] | None:
    """Return the lowest and highest fraction of its best BLEU that a translator should reach after this many epochs.

    Return None if there are too few epochs for an estimate.
    """
    if epochs < FEWEST_EPOCHS:
        return None
    least, most = LACKS
    return 1 - most / epochs, 1 - least / epochs


def _ratio(corpus_bytes: int, epochs: float) -> float:
    """Return the ratio of the model's bits to the compressor's. More text lowers it; repeated text counts less."""
    fresh = SATURATION * (1 - exp(-epochs / SATURATION)) * corpus_bytes / 1e6
    return 0.63 + 0.32 * max(1e-9, fresh) ** -0.4


def _packed(text: bytes) -> int:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 2 * CONTEXT}]
    return len(lzma.compress(text, format=lzma.FORMAT_RAW, filters=filters))
