"""How far a classifier's probabilities can be trusted: of texts it was so sure about, how many it got right."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penwright.data.batches import LabelledBatch
from penwright.decoding.batches import evaluating
from penwright.model.encoder_only import EncoderOnly

N_BINS = 10  # between 0 and 1


class Bin(NamedTuple):
    """Texts whose likeliest label has a probability from `low` to `high`."""

    low: float
    high: float
    n: int
    confidence: float  # the mean probability of that label
    accuracy: float  # the share of them whose label it is


class Calibration(NamedTuple):
    """Only bins that have texts, from the least sure."""

    bins: tuple[Bin, ...]
    n: int
    error: float  # the mean distance of accuracy and confidence, by texts (Guo et al. 2017, expected calibration error)


def calibration(model: EncoderOnly, batches: Iterable[LabelledBatch], device: torch.device) -> Calibration:
    """On labelled texts that the model has not learned from."""
    confidences, right = [np.zeros(0)], [np.zeros(0, dtype=bool)]
    with evaluating(model), torch.inference_mode():
        for batch in batches:
            logits = model(batch.tokens.to(device), batch.padding.to(device))
            best = logits.double().softmax(-1).max(-1)
            confidences.append(best.values.cpu().numpy())
            right.append((best.indices.cpu() == batch.targets).numpy())
    return calibration_of(np.concatenate(confidences), np.concatenate(right))


def calibration_of(confidences: NDArray[np.float64], right: NDArray[np.bool_]) -> Calibration:
    """Of texts by how sure the model is of each, and whether it is right; a border belongs to the bin above it."""
    which = np.minimum((confidences * N_BINS).astype(int), N_BINS - 1)
    bins = []
    for number in np.unique(which):
        mine = which == number
        edges = number / N_BINS, (number + 1) / N_BINS
        bins.append(Bin(*edges, int(mine.sum()), float(confidences[mine].mean()), float(right[mine].mean())))
    error = sum(each.n * abs(each.accuracy - each.confidence) for each in bins) / max(1, len(confidences))
    return Calibration(tuple(bins), len(confidences), error)
