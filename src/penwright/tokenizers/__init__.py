"""Tokenizers of four kinds, trained on the user's own text: characters, bytes, BPE and unigram."""

from penwright.tokenizers.tokenizer import TextStream, Tokenizer
from penwright.tokenizers.training import train_tokenizer

__all__ = ["TextStream", "Tokenizer", "train_tokenizer"]
