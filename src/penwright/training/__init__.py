"""Training: the loop, its optimizers, several processes, and automatic settings."""
