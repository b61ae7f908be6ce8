"""Decoding, from logits to text: the decoding step, sampling, beam search and constraints."""
