"""Training data from files: reading, cleaning, splitting, storing as tokens, and batching."""
