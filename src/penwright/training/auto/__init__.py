"""Automatic choices: sizes, budget and schedule from the text and the machine."""
