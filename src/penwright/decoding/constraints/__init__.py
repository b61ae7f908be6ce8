"""Constraints on decoding: a regular language for completions, and terms in beam search for translations."""
