"""What a Transformer is made of. Knows no task, no text and no file."""
