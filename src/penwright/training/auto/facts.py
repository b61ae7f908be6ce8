"""The facts about a text that a plan depends on, and what follows from them alone."""

from math import floor, log2
from typing import NamedTuple

from penwright.config import Task
from penwright.text import rounded

MANY_CHARACTERS = 400  # a script with more distinct characters than this is not an alphabet
# Measured characters per token with a vocabulary of 1,024, and the increase for each doubling of the vocabulary.
CHARACTERS_PER_TOKEN = (2.4, 0.4)
# In Chinese and Japanese: characters per token with a vocabulary of 1,024, and the increase for each doubling.
CHARACTERS_PER_TOKEN_CJK = (1.05, 0.22)

# Vocabulary of writers. It is halved at each of these numbers of epochs by characters. Measured with models of d 128
# after about five million tokens: 384 tokens for 0.8 MB of text, 1,024 for 1.8 MB, 2,048 for 3.4 MB.
OFTEN_READ, FEWEST_PIECES, SMALL_TEXT = (2.0, 6.0), 384, 4e6


class Facts(NamedTuple):
    """The properties of the training set that the plan depends on."""

    task: Task
    n_examples: int  # number of documents, pairs or labelled texts
    n_bytes: int  # size of the text in UTF-8 bytes; for pairs, only the target side counts
    n_distinct: int  # number of distinct characters
    n_labels: int = 0
    length: int = 0  # length of the text in characters; 0: the same as `n_bytes`
    teacher_bytes: int = 0  # size of the teachers' weights in memory

    @property
    def n_characters(self) -> int:
        """Length of the text in characters."""
        return self.length or self.n_bytes

    @property
    def has_many_characters(self) -> bool:
        """Whether the script has thousands of characters, like Chinese or Japanese."""
        return self.n_distinct > MANY_CHARACTERS and self.n_bytes > 2 * self.n_characters

    @property
    def has_short_characters(self) -> bool:
        """Whether most characters take one byte in UTF-8, as in Latin scripts."""
        return self.n_bytes < 1.5 * self.n_characters

    def tokens_in(self, kind: str, vocab_size: int) -> float:
        """Estimate the number of tokens in the text with this kind of tokenizer."""
        if kind == "bytes":
            return float(max(1, self.n_bytes))
        if kind == "characters":
            return float(max(1, self.n_characters))
        least, more = CHARACTERS_PER_TOKEN_CJK if self.has_many_characters else CHARACTERS_PER_TOKEN
        return max(1.0, self.n_characters / max(0.5, least + more * log2(vocab_size / 1024)))

    def vocabulary(self, *, epochs: float, is_short: bool) -> tuple[int, str]:
        """Return a vocabulary size for subwords, and the reason.

        The size is a power of two, proportional to the square root of the text's size (after Gowda and May 2020). A
        writer that reads its text often overfits later with a smaller vocabulary (measured in Latin scripts). Pass its
        `epochs` by characters, and `is_short` for a short budget.
        """
        # source and target share one vocabulary
        text = self.n_bytes * (2 if self.task == "translate" else 1)
        doublings = log2(max(256.0, 4000 * (text / 4e6) ** 0.5))
        is_writer = self.task == "generate" and self.has_short_characters
        pieces = 2 ** (floor(doublings) if is_short or (is_writer and text < SMALL_TEXT) else round(doublings))
        if self.task == "translate":
            pieces *= 2  # shorter token sequences raised BLEU after two minutes by 3 points
        size = f"{rounded(text / 1e6)} MB of text"
        if self.task in ("classify", "encode"):
            return min(32_000, max(512, 8 * pieces)), f"for {size}, so that most words are single tokens"
        if is_writer and not is_short and (often := sum(epochs >= limit for limit in OFTEN_READ)):
            reason = f"for {size}, which is read often: a small vocabulary delays overfitting"
            return max(FEWEST_PIECES, pieces // 2**often), reason
        return min(32_000, max(512, pieces)), f"for {size}, so that most tokens occur often"
