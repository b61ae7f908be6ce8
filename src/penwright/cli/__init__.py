"""The commands: one module each. Only they print; what is slow to import, they import when they run."""
