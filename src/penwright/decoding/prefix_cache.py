"""What was read once and may be asked for again: the keys and values of the beginnings of texts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from penwright.model.attention import KeysValues

Tokens = Int64[np.ndarray, "_"]
WORTH = 32  # tokens in common that are worth the trouble


class Prefix(NamedTuple):
    """Tokens from position 0 on, with their keys and values in each layer."""

    tokens: Tokens
    layers: Sequence[KeysValues]

    def cut(self, n_tokens: int) -> list[KeysValues]:
        """Those of the first tokens."""
        return [KeysValues(*(x[:, :, :n_tokens] for x in layer)) for layer in self.layers]

    @property
    def n_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for layer in self.layers for x in layer)


@dataclass
class Prefixes:
    """Texts that were read or written lately, as many as fit."""

    max_bytes: int = 128 * 2**20
    kept: list[Prefix] = field(default_factory=list)  # the latest last

    def keep(self, tokens: Tokens, layers: Sequence[KeysValues]) -> None:
        """Copy what there is of this text; what it begins with need not be kept any longer."""
        if len(tokens) < WORTH or any(n_common(each.tokens, tokens) == len(tokens) for each in self.kept):
            return
        self.kept = [each for each in self.kept if n_common(each.tokens, tokens) < len(each.tokens)]
        self.kept.append(Prefix(tokens, [KeysValues(*(x.clone() for x in layer)) for layer in layers]))
        while sum(each.n_bytes for each in self.kept) > self.max_bytes:
            del self.kept[0]


def n_common(one: Tokens, other: Tokens) -> int:
    """How many tokens both begin with."""
    n = min(len(one), len(other))
    different = np.flatnonzero(one[:n] != other[:n])
    return int(different[0]) if len(different) else n
