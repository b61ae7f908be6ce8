"""Text in, label out."""
