"""Choosing the next token: filters, penalties and the draw."""
