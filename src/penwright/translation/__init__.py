"""Translation of texts and documents, with constraints, alternatives and word alignment."""
