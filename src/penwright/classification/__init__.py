"""Text classification: text in, label out."""
