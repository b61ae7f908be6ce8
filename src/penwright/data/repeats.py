"""Texts that occur in two parts of data, such as held-out texts that the base of a run was trained on."""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from penwright.data.conversations import Conversation
from penwright.data.corpus import Document, Labelled, Pair
from penwright.text import count

AnyExample = Document | Pair | Labelled | Conversation
SHORTEST_LINE = 40  # minimum length in characters of a line of running text that is compared
TOO_SHORT = 0  # in place of the hash of a shorter line
MANY_LINES = 0.05  # share of the lines that is worth a note: some lines, such as headers, are in many documents
MOST = 5_000_000  # maximum number of texts or lines to search


class Repeats(NamedTuple):
    """The number of texts of one part that also occur in another, and the number of texts compared."""

    n: int
    n_texts: int
    unit: str  # "text", "sentence" or "prompt"; "line" for running text

    @property
    def are_many(self) -> bool:
        """Whether there are enough for a note: any, or more than MANY_LINES of the lines."""
        return self.n > (MANY_LINES * self.n_texts if self.unit == "line" else 0)

    def describe(self, kind: str = "") -> str:
        """Return the numbers in words: "3 of 40 held-out texts" if the kind is "held-out "."""
        return f"{self.n:,} of {count(self.n_texts, f'{kind}{self.unit}')}"


def find_repeats(examples: Iterable[AnyExample], *others: Iterable[AnyExample]) -> Repeats:
    """Count the texts of these examples that also occur in the others. In very large data, only the first are sought.

    The texts of a pair are its two sentences, that of a conversation is all before the last answer, and those of
    running text are its lines.
    """
    units = {Pair: "sentence", Conversation: "prompt", Document: "line"}
    unit, keys = "text", list[int]()
    for example in examples:
        unit = units.get(type(example), unit)
        keys += keys_of(example)
    known = {*keys} - {TOO_SHORT}
    found = known.intersection(islice(chain.from_iterable(map(keys_of, chain(*others))), MOST))
    return Repeats(sum(key in found for key in keys), len(keys) - keys.count(TOO_SHORT), unit)


def keys_of(example: AnyExample) -> Iterator[int]:
    """Yield the hashes of the texts of an example. They hold in this process only."""
    match example:
        case Pair(source, target):
            yield from (hash(source), hash(target))
        case Labelled(text):
            yield hash(text)
        case Conversation((*before, _)):
            yield hash(tuple(before))
        case Document(chunks=chunks):
            for line in chain.from_iterable(chunk.split("\n") for chunk in chunks):
                stripped = line.strip()
                yield hash(stripped) if len(stripped) >= SHORTEST_LINE else TOO_SHORT
