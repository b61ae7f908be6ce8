"""Claims of speed and quality, each measured by a script beside its dated results."""
