"""Training: the training loop, the optimizers, training in several processes, and automatic settings."""
