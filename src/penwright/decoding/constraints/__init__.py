"""Constraints: on completions, as one regular language, and on translations, as terms in beam search."""
