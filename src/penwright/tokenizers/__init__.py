"""From text to token ids and back: characters, bytes, BPE and unigram, each trained on the user's own text."""

from penwright.tokenizers.streaming import TextStream
from penwright.tokenizers.tokenizer import Tokenizer
from penwright.tokenizers.training import train_tokenizer

__all__ = ["TextStream", "Tokenizer", "train_tokenizer"]
