"""From logits to text: the decoding step, sampling, beam search, constraints."""
