"""Readers and writers for the model formats of other programs; tables map their names to ours."""
