"""Ids of many texts or words, of different lengths, in one array."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt

IdType = type[np.uint16] | type[np.uint32]
TokenIds = UInt[np.ndarray, " tokens"]
Counts = Int64[np.ndarray, " texts"]


class Ragged(NamedTuple):
    """The ids of many texts, one after another, and how many belong to each."""

    tokens: TokenIds
    lengths: Counts

    def taken(self, which: Int64[np.ndarray, " some"]) -> "Ragged":
        """The ids of some of the texts, in the order asked for, one perhaps several times."""
        lengths = self.lengths[which]
        starts, ends = (np.cumsum(self.lengths) - self.lengths)[which], np.cumsum(lengths)
        places = np.arange(lengths.sum()) + np.repeat(starts - ends + lengths, lengths)
        return Ragged(self.tokens[places], lengths)


def ids_type(vocab_size: int) -> IdType:
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def lengths_of(texts: Sequence[str] | Sequence[bytes]) -> Counts:
    return np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
