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

# Vocabulary of writers in alphabets for a text of less than SMALL_TEXT characters: at most OFTEN[0] * millions of
# characters ** OFTEN[1] / (training tokens per character) ** OFTEN[2], but not below FEWEST_PIECES. This was fitted to
# five novels in Latin script. With a width of 128 and five million training tokens, 384 was best for 0.8 million
# characters, 1,024 or 2,048 for 1.8 to 2 million, and 4,096 for 3.4 million (2,048 was nearly as good, and its steps
# are faster). The effect of more training is a guess. In Cyrillic, it holds for a novel of 0.9 million characters.
OFTEN, FEWEST_PIECES, SMALL_TEXT = (1500.0, 0.7, 0.5), 384, 4e6


class Facts(NamedTuple):
    """The properties of the training set that the plan depends on."""

    task: Task
    n_examples: int  # number of documents, pairs or labelled texts
    n_bytes: int  # size of the text in UTF-8 bytes; for pairs, only the target side counts
    n_distinct: int  # number of distinct characters
    n_labels: int = 0
    length: int = 0  # length of the text in characters; 0: the same as `n_bytes`
    teacher_bytes: int = 0  # size of the teachers' weights in memory
    has_few_labels: bool = False  # whether the texts are so few that a pretrained encoder should be tuned contrastively

    @property
    def n_characters(self) -> int:
        """Length of the text in characters."""
        return self.length or self.n_bytes

    @property
    def has_many_characters(self) -> bool:
        """Whether the script has thousands of characters, like Chinese or Japanese."""
        return self.n_distinct > MANY_CHARACTERS and self.n_bytes > 2 * self.n_characters

    def tokens_in(self, kind: str, vocab_size: int) -> float:
        """Estimate the number of tokens in the text with this kind of tokenizer."""
        if kind == "bytes":
            return float(max(1, self.n_bytes))
        if kind == "characters":
            return float(max(1, self.n_characters))
        least, more = CHARACTERS_PER_TOKEN_CJK if self.has_many_characters else CHARACTERS_PER_TOKEN
        return max(1.0, self.n_characters / max(0.5, least + more * log2(vocab_size / 1024)))

    @property
    def is_small_novel(self) -> bool:
        """Whether a writer trains on a small text in an alphabet."""
        return self.task == "generate" and not self.has_many_characters and self.n_characters < SMALL_TEXT

    def vocabulary(self, *, is_short: bool, tokens_per_character: float = 0.0) -> tuple[int, str]:
        """Return a vocabulary size for subwords, and the reason. `is_short` means that the budget is short.

        The size is a power of two, proportional to the square root of the text's size (after Gowda and May 2020). A
        writer that reads a small text often gets a smaller vocabulary, since it then overfits later. How often it reads
        the text is given by `tokens_per_character`: the number of training tokens for each character.
        """
        # source and target share one vocabulary
        text = self.n_bytes * (2 if self.task == "translate" else 1)
        doublings = log2(max(256.0, 4000 * (text / 4e6) ** 0.5))
        pieces = 2 ** (floor(doublings) if is_short or self.is_small_novel else round(doublings))
        if self.task == "translate":
            pieces *= 2  # shorter token sequences raised BLEU after two minutes by 3 points
        size = f"{rounded(text / 1e6)} MB of text"
        if self.task in ("classify", "encode"):
            return min(32_000, max(512, 8 * pieces)), f"for {size}, so that most words are single tokens"
        if self.is_small_novel and tokens_per_character:
            scale, growth, decay = OFTEN
            most = scale * (self.n_characters / 1e6) ** growth / tokens_per_character**decay
            if most < pieces:
                reason = f"for {size}, which is read often: a small vocabulary delays overfitting"
                return max(FEWEST_PIECES, int(most // 128) * 128), reason
        return min(32_000, max(512, pieces)), f"for {size}, so that most tokens occur often"
