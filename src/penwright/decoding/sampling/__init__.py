"""Sampling of the next token: penalties, filters and the draw."""
