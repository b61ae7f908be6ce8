"""Penwright: make a Transformer of your own."""

__version__ = "0.1.0"
