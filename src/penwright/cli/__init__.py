"""The commands, one module each. Only they print, and they import slow modules when they run."""
