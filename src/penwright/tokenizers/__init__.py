"""From text to token ids and back: characters, bytes, BPE and unigram, each trained on the user's own text."""

from penwright.tokenizers.tokenizer import TextStream, Tokenizer
from penwright.tokenizers.training import train_tokenizer

__all__ = ["TextStream", "Tokenizer", "train_tokenizer"]
