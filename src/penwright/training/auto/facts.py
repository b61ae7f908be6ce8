"""What the plan needs to know of a corpus, and what follows from how it is written."""

from math import log2
from typing import NamedTuple

from penwright.config import Task

MANY_CHARACTERS = 400  # different ones, in no alphabet
LETTERS_A_PIECE = (2.4, 0.4)  # of an alphabet, in a vocabulary of 1,024 and for each doubling of it (measured)
OF_MANY = (1.05, 0.22)  # the same where there are thousands of characters


class Facts(NamedTuple):
    """Of the training part."""

    task: Task
    n_examples: int  # documents, pairs or labelled texts
    n_bytes: int  # of their text (of pairs: of the target side)
    n_characters: int  # distinct ones
    n_labels: int = 0
    n_letters: int = 0  # characters of their text; 0: as many as bytes

    @property
    def letters(self) -> int:
        return self.n_letters or self.n_bytes

    @property
    def has_many_characters(self) -> bool:
        """Whether it is written in no alphabet, as Chinese and Japanese are."""
        return self.n_characters > MANY_CHARACTERS and self.n_bytes > 2 * self.letters

    def tokens_in(self, kind: str, vocab_size: int) -> float:
        """How many tokens of a kind of tokenizer the text has, roughly."""
        if kind == "bytes":
            return float(max(1, self.n_bytes))
        if kind == "characters":
            return float(max(1, self.letters))
        least, more = OF_MANY if self.has_many_characters else LETTERS_A_PIECE
        return max(1.0, self.letters / max(0.5, least + more * log2(vocab_size / 1024)))
