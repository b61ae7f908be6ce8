"""The run folder: settings, tokenizer, checkpoints, metrics and samples."""
