"""Source text in, translation out."""
