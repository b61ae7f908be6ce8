"""Tokenizers of four kinds, trained on the user's own text: characters, bytes, BPE and unigram."""

from penwright.tokenizers.tokenizer import TextStream, Tokenizer

__all__ = ["TextStream", "Tokenizer"]
