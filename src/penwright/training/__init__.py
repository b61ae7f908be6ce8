"""The training loop and what stands around it."""
