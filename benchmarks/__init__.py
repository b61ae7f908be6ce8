"""Benchmarks of speed and quality: one script each, with dated results in `results/`."""
