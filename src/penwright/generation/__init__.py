"""Prompt in, completion out."""
