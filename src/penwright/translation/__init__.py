"""Translation: source text in, translation out."""
