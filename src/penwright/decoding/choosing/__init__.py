"""Which token comes next: rules that reshape the scores, and the draw."""
