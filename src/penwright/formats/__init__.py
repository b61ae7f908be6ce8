"""Readers and writers for the model formats of other programs, with tables that map their names to ours."""
